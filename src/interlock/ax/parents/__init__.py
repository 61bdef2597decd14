"""This node as a subserver: registration with parents, their trees, calls that come from above."""
