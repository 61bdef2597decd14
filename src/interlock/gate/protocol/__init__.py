"""MCP-AX clause 11: held calls, proofs that a person agreed, and how they travel between aggregators."""
