"""Credentials towards servers: OAuth tokens and their renewal, consents, secret references."""
