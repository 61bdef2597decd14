"""MCPx v0.1: the envelopes of rooms, who may send which, and what the gateway itself says.

Values in, values out. An `mcp` payload is bytes here and stays so (MCPx 3.2, 4.1).
"""
