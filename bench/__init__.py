"""What a call through the node costs, against nginx and other MCP proxies in front of the same server.

`python -m bench` measures and prints; `--write` also writes docs/benchmarks.md. Every figure is a ratio or a difference
within one run: contestants take turns in rounds, the load generator and the server share one core and the contestant
has the other. Nothing here is imported by Interlock.
"""
