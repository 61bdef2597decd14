"""The binding of a contract to a server's tool: matching, argument mapping, result extraction and effects."""
