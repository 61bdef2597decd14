"""The namespace: all listed tools, resources and prompts, with their names, routes and definitions."""
