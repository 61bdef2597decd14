"""Credentials for MCP servers: OAuth tokens and their renewal, consents, and secret references."""
