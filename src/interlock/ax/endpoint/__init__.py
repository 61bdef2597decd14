"""The endpoint for subservers, and the Unix socket at which they are known by their user."""
