"""The registry of names of this node: its log, requests and their decisions, changes by controllers, publication."""
