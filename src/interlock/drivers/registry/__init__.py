"""The drivers of a node: which are loaded, trusted and offered, and the requests to trust new ones."""
