"""Where clients come in: HTTP of both eras, SSE, stdio, their sessions and subscriptions."""
