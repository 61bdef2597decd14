"""JSON pointers (RFC 6901) and keys as messages show them."""


def pointer_step(key: str) -> str:
    """One step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def quoted(key: str) -> str:
    """A key inside a message: quoted, control characters escaped, cut when long."""
    return repr(key if len(key) <= 60 else key[:59] + "…")
