"""The namespace: every listed tool, resource and prompt, its names, its route and its definition."""
