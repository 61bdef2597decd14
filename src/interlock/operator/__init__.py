"""The operator endpoint: operations of all capabilities over HTTP, their OpenAPI document, and the console.

An operation is declared once, in `api.py` of its capability (see `operation`), and listed in `table`.
"""
