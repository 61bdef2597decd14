"""The tree of MCP-AX: subservers and aggregators that register here, and the parents this node registers with."""
