"""The execution safety loop of MCP-AQL (8.6 to 8.8), as values: hints, patterns, risk, evaluation, directives."""
