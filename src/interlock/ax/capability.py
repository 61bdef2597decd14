"""The tree of aggregators (MCP-AX): subservers, children and parents."""

from interlock.core.capability import Capability

CAPABILITY = Capability(name="ax", sections=("ax", "degraded", "budget"), parts="interlock.ax.parts:AxParts")
