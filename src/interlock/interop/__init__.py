"""Import from and export to other MCP clients: find their files, draft drivers, write them, and add this node to
clients.
"""
