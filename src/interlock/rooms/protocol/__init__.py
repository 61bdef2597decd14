"""MCPx v0.1 without I/O: the envelopes of rooms, who may send which, and the gateway's own messages.

An `mcp` payload is bytes here and stays so (MCPx 3.2, 4.1).
"""
