"""Types and pure functions of the execution safety loop (MCP-AQL 8.6 to 8.8): hints, patterns, risk, evaluation,
directives.
"""
