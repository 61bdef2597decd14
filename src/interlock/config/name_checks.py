"""Names that the configuration itself shows cannot be listed: two tools with one local name, or with one alias.

A file names tools where it classifies them (`tools` of a server) and where a [[tool]] matches exactly one; only a
server's own list has the rest (`interlock check --upstream`). What is found is a warning: the node withholds the names
and runs.
"""

from interlock.config.location import At
from interlock.config.problems import shown
from interlock.config.reader import Settings
from interlock.protocol.ax.names import (
    QUALIFIED_MAX,
    is_qualified,
    qualify,
    resolve_locals,
    withhold_colliding_aliases,
)


def check_names(settings: Settings) -> None:
    """MCP-AX 3.2, our rule: colliding names are all withheld, and said before the node runs."""
    root = settings.tables.get("ax", {}).get("root_segment")
    above = (root,) if root else ()
    written: dict[str, At] = {}
    for segment, server in settings.servers.items():
        tools = settings.written["servers", segment].inside("tools")
        resolution = resolve_locals(list(server.classes))
        for one in resolution.withheld:
            _warn(tools.inside(one.name), one.name, one.reason)
        for original, local in resolution.local_names.items():
            qualified = qualify((*above, segment), local)
            if isinstance(qualified, str):
                written.setdefault(qualified, tools.inside(original))
    for index, rule in enumerate(settings.tools):
        if is_qualified(rule.match) and ("tool", str(index)) in settings.written:
            written.setdefault(rule.match, settings.written["tool", str(index)].inside("match"))
    for one in withhold_colliding_aliases(written).withheld:
        _warn(written[one.name], one.name, one.reason)


def _warn(at: At, name: str, reason: str) -> None:
    what, _, hint = reason.partition("; ")
    at.warn(f"{shown(name, QUALIFIED_MAX)} will be withheld: {what}", hint or "rename it at the server")
