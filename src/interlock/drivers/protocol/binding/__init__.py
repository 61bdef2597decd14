"""How a contract binds to a server's tool: match, argument mapping, result extraction, effects."""
