"""The fronts, which receive clients: HTTP of both eras, SSE, stdio, and their sessions and subscriptions."""
