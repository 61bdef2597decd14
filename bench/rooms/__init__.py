"""Rooms against a bare broadcast with the same WebSocket library, in the same run."""
