"""The approval record of every kind: its fields, its states, its digests."""
