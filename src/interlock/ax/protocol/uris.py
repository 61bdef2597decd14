"""Resource URIs in the tree: mcpax://<segments joined by dots>/<the server's own URI, verbatim> (MCP-AX 3.1, ours).

A URI that an aggregator lists has this form already; one more hop puts one more segment in front of those it has. To
take a prefix off is to cut a literal text.
"""

from typing import Final

from interlock.ax.protocol.names import is_qualified, read_dotted

SCHEME: Final = "mcpax://"


def show_uri(path: str, uri: str, *, aggregator: bool) -> str:
    """Return the URI of a resource in the tree. `path` is the segments of its server, joined by dots."""
    if aggregator and uri.startswith(SCHEME):
        return f"{SCHEME}{path}.{uri[len(SCHEME) :]}"
    return f"{SCHEME}{path}/{uri}"


def maybe_own_uri(path: str, shown: str, *, aggregator: bool) -> str | None:
    """Return the URI as the server below `path` knows it, or None if `shown` is not below `path`."""
    if not shown.startswith(SCHEME + path):
        return None
    rest = shown[len(SCHEME) + len(path) :]
    if rest[:1] == "/":
        return rest[1:]
    return SCHEME + rest[1:] if aggregator and rest[:1] == "." else None


def is_nested(uri: str) -> bool:
    """Return whether a URI of an aggregator is a URI of the tree: valid segments, then the rest."""
    head, slash, _ = uri[len(SCHEME) :].partition("/")
    return uri.startswith(SCHEME) and slash == "/" and is_qualified(head)


def nested_segments(uri: str) -> tuple[str, ...]:
    """Return the segments of a URI of the tree, or nothing if it is not one."""
    return read_dotted(uri[len(SCHEME) :].partition("/")[0]) or () if is_nested(uri) else ()


def bare_uri(uri: str) -> str:
    """Return the URI that the server at the end of the path wrote, as in its results."""
    return uri[len(SCHEME) :].partition("/")[2] if is_nested(uri) else uri
