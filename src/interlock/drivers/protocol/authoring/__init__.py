"""Proposals for driver and contract files, drafted from what a server lists."""
