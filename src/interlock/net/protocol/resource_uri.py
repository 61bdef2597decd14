"""The resource identifier of RFC 8707: when two spellings name the same server."""


def same_resource(one: str, other: str) -> bool:
    """MCP (Canonical Server URI): scheme and host may be in capitals, nothing else may differ."""
    return one == other or canonical_uri(one) == canonical_uri(other)


def canonical_uri(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + mark + host.lower() + slash + path
