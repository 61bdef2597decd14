"""Libraries that need no node: subservers, room participants and MCP-AQL servers."""
