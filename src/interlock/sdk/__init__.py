"""Libraries for programs that are no node: a subserver of a tree, a participant of a room, an MCP-AQL adapter.

Each is imported by its public path (`interlock.subserver`, `interlock.rooms`, `interlock.aql`). A library uses the
protocols and the transports, and loads nothing of the node, so that a small program starts quickly.
"""
