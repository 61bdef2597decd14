"""The execution safety loop (MCP-AQL 8.6 to 8.8)."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="safety",
    sections=("safety",),
    commands={
        "agents": Command("interlock.safety.cli:app", "agent"),
    },
    parts="interlock.safety.parts:AgentParts",
)
