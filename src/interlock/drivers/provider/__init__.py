"""A driver's running servers: instances, health, hooks, and the link that contracts call."""
