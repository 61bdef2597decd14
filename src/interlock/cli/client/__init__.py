"""The ways in which a verb reaches a node: the admin socket, the operator endpoint, or files if no node runs."""
