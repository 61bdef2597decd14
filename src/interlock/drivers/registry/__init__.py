"""The drivers of a node: which are loaded, trusted and shown, and the requests to trust them."""
