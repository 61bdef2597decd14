"""The resource identifier of RFC 8707: when two spellings name the same server."""


def same_resource(uri: str, other: str) -> bool:
    """Return whether two URIs name the same resource. Only the case of scheme and host may differ (MCP, Canonical
    Server URI).
    """
    return uri == other or canonical_uri(uri) == canonical_uri(other)


def canonical_uri(uri: str) -> str:
    scheme, mark, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    return scheme.lower() + mark + host.lower() + slash + path
