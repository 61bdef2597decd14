"""MCP-AX clause 11: held calls, proofs of approval, and how both pass between aggregators."""
