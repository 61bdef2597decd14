"""Drivers (AIP-32): servers declared as files, installed, sandboxed, checked against contracts, called through them."""
