"""Who may come in: bearer tokens, OAuth access tokens, introspection."""
