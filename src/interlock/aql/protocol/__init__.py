"""MCP-AQL: operations behind a few endpoints. Declarations, families, requests, validation, envelopes, limits."""
