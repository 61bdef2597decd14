"""A leaf of an MCP-AX tree: Python functions as tools, registered with an aggregator and kept there.

    from interlock.subserver import Subserver

    leaf = Subserver("greenhouse", parents=["ws://127.0.0.1:7411/ax"], token="ils_...")

    @leaf.tool(mutable=False)
    def temperature(bench: int) -> float:
        "The air temperature of a bench in degrees Celsius."
        return read_sensor(bench)

    leaf.run()

The library loads nothing of the node: it uses the protocol and the transports alone.
"""

from interlock.sdk.subserver.subserver import Parent, Subserver
from interlock.sdk.subserver.tools import (
    Context,
    RegistrationRefused,
    SubserverInvalid,
    ToolFailed,
    ToolInvalid,
    ToolResult,
)

__all__ = [
    "Context",
    "Parent",
    "RegistrationRefused",
    "Subserver",
    "SubserverInvalid",
    "ToolFailed",
    "ToolInvalid",
    "ToolResult",
]
