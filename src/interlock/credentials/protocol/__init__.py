"""OAuth 2.1 as MCP uses it: discovery metadata, challenges, token requests, registration."""
