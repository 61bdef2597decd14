"""The registry of tool surface names (draft-morrison-mcp-tool-surface-names-registry-00): what a name means.

Values in, values out: the entries and their grammar, the criteria of a request, the life of a request and of an entry,
what a change controller signs, and the published forms. Dates are UTC days as `YYYY-MM-DD`.
"""
