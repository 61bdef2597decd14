"""Commands about MCP-AQL."""
