"""Admission of clients: bearer tokens, OAuth access tokens, introspection."""
