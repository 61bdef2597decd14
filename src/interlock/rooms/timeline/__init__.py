"""What a room has published: its one order on disk and on the way to everyone, and which ids are taken."""
