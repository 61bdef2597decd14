"""WebSocket pipes: the dialling end, the accepting end, and the frames both share."""
