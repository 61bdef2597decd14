"""JSON-RPC envelopes, canonical JSON and JSON Schema comparison. Pure: values in, values out."""
