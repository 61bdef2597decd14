"""The execution safety loop as a capability (MCP-AQL 8.6 to 8.8)."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="safety",
    sections=("safety",),
    operations=("interlock.safety.api:OPERATIONS",),
    commands={"agents": Command("interlock.safety.cli:app", "agent")},
    parts="interlock.safety.parts:AgentParts",
)
