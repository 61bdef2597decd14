"""MCP-AQL at the node: native operations, the automatic adapter over the namespace, and calls through both."""
