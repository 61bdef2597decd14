"""The approval record of every kind, as values: its fields, states and digests."""
