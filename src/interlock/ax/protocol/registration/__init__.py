"""MCP-AX clauses 4 to 6 and 13: registering, heartbeats, leases and authority between aggregators."""
