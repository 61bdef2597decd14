"""Bringing servers of other clients in, and pointing those clients at this node: finding files, writing folders."""
