"""Bytes and messages over the network: HTTP client, WebSocket, TLS, downloads and the egress proxy. Knows no MCP."""
