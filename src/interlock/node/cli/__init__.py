"""Commands about the node."""
