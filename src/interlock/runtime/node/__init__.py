"""The node itself: its parts in order, reloads, listening, operations for the operator API."""
