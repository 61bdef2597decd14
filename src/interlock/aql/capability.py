"""Operations behind a few endpoints (MCP-AQL)."""

from interlock.core.capability import Capability

CAPABILITY = Capability(name="aql", sections=("aql",), parts="interlock.aql.parts:AqlParts")
