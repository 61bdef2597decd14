"""How a verb reaches a node: the admin socket, the operator endpoint, files when no node runs."""
