"""The execution safety loop of MCP-AQL (8.6 to 8.8): agents, executions, grants, blocks, challenges."""
