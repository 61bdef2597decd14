"""The operator endpoint: API, pages, approvals, passkeys; one module of handlers for each noun.

A new endpoint is a struct in `api.py` of its capability, a handler and a row in the module of its noun; then run
`python spec/operator_api.py`, which writes the OpenAPI document.
"""
