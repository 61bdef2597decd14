"""The table of capabilities. A new specification adds a package and a line here.

Configuration, command line, operator API and node go through this table and know no capability by name. The order is
the order in which a node constructs and opens them.
"""

from functools import cache
from typing import Final

from interlock.core.capability import Capability, Command, load_reference

# The node itself: start, configuration, health.
NODE: Final = Capability(
    name="node",
    sections=("node", "mcp", "limits"),
    operations=("interlock.operator.api:OPERATIONS",),
    commands={
        "init": Command("interlock.node.cli.init:app"),
        "serve": Command("interlock.node.cli.serve:app"),
        "check": Command("interlock.node.cli.check:app"),
        "status": Command("interlock.node.cli.status:app"),
        "open": Command("interlock.node.cli.status:open_app"),
        "doctor": Command("interlock.node.cli.doctor:app"),
        "explain": Command("interlock.cli.explain:app"),
        "version": Command("interlock.cli.version:app"),
    },
)
CAPABILITIES: Final = (
    "interlock.node.capabilities:NODE",
    "interlock.store.capability:CAPABILITY",
    "interlock.access.capability:CAPABILITY",
    "interlock.links.capability:CAPABILITY",
    "interlock.credentials.capability:CAPABILITY",
    "interlock.catalog.capability:CAPABILITY",
    "interlock.approvals.capability:CAPABILITY",
    "interlock.safety.capability:CAPABILITY",
    "interlock.ax.capability:CAPABILITY",
    "interlock.aql.capability:CAPABILITY",
    "interlock.rooms.capability:CAPABILITY",
    "interlock.names.capability:CAPABILITY",
    "interlock.devices.capability:CAPABILITY",
    "interlock.drivers.capability:CAPABILITY",
    "interlock.interop.capability:CAPABILITY",
    "interlock.operator.capability:CAPABILITY",
)


@cache
def capabilities() -> tuple[Capability, ...]:
    """Import and return the declarations of all capabilities, in the order of their table."""
    return tuple(load_reference(reference) for reference in CAPABILITIES)
