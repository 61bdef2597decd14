"""JSON pointers (RFC 6901) and keys as messages show them."""


def pointer_step(key: str) -> str:
    """Escape a key for use as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def quoted(key: str) -> str:
    """Quote a key for a message: control characters are escaped, and a long key is cut."""
    return repr(key if len(key) <= 60 else key[:59] + "…")
