"""The front of participants of rooms: their WebSocket and the paths below /v0."""
