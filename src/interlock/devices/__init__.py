"""Devices as links: their sessions, presence, registration and calls."""
