"""Devices (MCP-AX 8, Appendix B): descriptions, framing, codecs. Values in, values out."""
