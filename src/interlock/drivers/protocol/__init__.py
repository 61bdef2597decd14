"""Pure code for MCP server drivers (AIP-32), tool contracts (AIP-14) and inventories of secrets (AIP-19).

The functions take bytes and file names, and return values or problems. Nothing here reads a folder, starts a program or
sees the value of a secret.
"""
