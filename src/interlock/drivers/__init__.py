"""Drivers (AIP-32): MCP servers that are declared in files, run in a sandbox and called through checked contracts."""
