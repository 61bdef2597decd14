"""Interlock: many MCP servers, one namespace, one guarded door."""

__version__ = "0.1.0"
