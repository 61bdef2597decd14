"""The registry of tool surface names (draft-morrison-mcp-tool-surface-names-registry-00), without I/O.

Entries and their grammar, the criteria of a request, status changes, statements of change controllers, and the
published forms. Dates are UTC days as `YYYY-MM-DD`.
"""
