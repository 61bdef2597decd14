"""The table of capabilities. A new specification adds a package and a line here.

Configuration, command line, operator API and node go through this table and know no capability by name. The order is
the order in which a node constructs and opens them.
"""

from functools import cache
from typing import Final

from interlock.core.capability import Capability, load_reference

CAPABILITIES: Final = (
    "interlock.node.capability:CAPABILITY",
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
    """Import and return the declarations of all capabilities, in the order of the table."""
    return tuple(load_reference(reference) for reference in CAPABILITIES)
