"""The running servers of a driver: their processes, health checks and hooks, and the link that contract calls use."""
