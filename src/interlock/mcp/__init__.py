"""MCP of all revisions: methods, eras and their translation, capabilities, headers, errors, lists, SSE."""
