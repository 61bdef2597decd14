"""The registry of names from outside: the command line, HTTP, MCP."""
