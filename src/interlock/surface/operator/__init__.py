"""The operator endpoint: typed API, pages, approvals, passkeys."""
