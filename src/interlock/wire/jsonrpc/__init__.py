"""JSON-RPC 2.0: envelopes whose params and results stay raw bytes."""
