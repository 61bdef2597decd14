"""The fronts that receive clients: HTTP of both eras, SSE, stdio, their sessions and subscriptions."""
