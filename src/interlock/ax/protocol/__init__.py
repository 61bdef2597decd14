"""MCP-AX: names, capabilities, budgets, notifications, hop metadata; the words both registration and gates use."""
