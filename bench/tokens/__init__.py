"""Tokens: what a model reads and writes to use many tools, flat, through MCP-AQL and through a search proxy."""
