"""The terminal client of a room: messages, participants, and proposals to approve or deny with one key."""
