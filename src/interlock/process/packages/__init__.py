"""Installation of servers published as npm and PyPI packages: resolving, pinning, unpacking, launching."""
