"""Parsers and writers of DRIVER.md, TOOL.md, SECRETS.md and server.json, which report every problem with its line."""
