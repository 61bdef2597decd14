"""The pooled HTTP/1.1 client of the call path: pool, connection and response."""
