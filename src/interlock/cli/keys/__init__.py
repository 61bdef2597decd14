"""Operator keys and passkeys at the command line: asking, unlocking, signing."""
