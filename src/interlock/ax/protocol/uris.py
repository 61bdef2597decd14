"""Resource URIs in the tree: mcpax://<segments joined by dots>/<the server's own URI, verbatim> (MCP-AX 3.1, ours).

A URI that an aggregator lists has this form already; one more hop puts one more segment in front of those it has. To
take a prefix off is to cut a literal text.
"""

from typing import Final

from interlock.ax.protocol.names import is_qualified, read_dotted

SCHEME: Final = "mcpax://"


def show_uri(path: str, uri: str, *, aggregator: bool) -> str:
    """`path` is the way to the server that said `uri`: its segments joined by dots."""
    if aggregator and uri.startswith(SCHEME):
        return f"{SCHEME}{path}.{uri[len(SCHEME) :]}"
    return f"{SCHEME}{path}/{uri}"


def maybe_own_uri(path: str, shown: str, *, aggregator: bool) -> str | None:
    """The URI as the server below `path` knows it, or None where `shown` is not below `path`."""
    if not shown.startswith(SCHEME + path):
        return None
    rest = shown[len(SCHEME) + len(path) :]
    if rest[:1] == "/":
        return rest[1:]
    return SCHEME + rest[1:] if aggregator and rest[:1] == "." else None


def is_nested(uri: str) -> bool:
    """Whether what an aggregator calls a URI of the tree is one: valid segments, then the rest."""
    head, slash, _ = uri[len(SCHEME) :].partition("/")
    return uri.startswith(SCHEME) and slash == "/" and is_qualified(head)


def nested_segments(uri: str) -> tuple[str, ...]:
    """The segments that a URI of the tree names; none where it is not one."""
    return read_dotted(uri[len(SCHEME) :].partition("/")[0]) or () if is_nested(uri) else ()


def bare_uri(uri: str) -> str:
    """The URI that the server at the end of the way wrote, as it stands in its results too."""
    return uri[len(SCHEME) :].partition("/")[2] if is_nested(uri) else uri
