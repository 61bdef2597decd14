"""The node itself: its parts in order, reloads, listening, shutdown."""
