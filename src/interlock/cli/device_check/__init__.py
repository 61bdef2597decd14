"""The conformance check of a device's stub: its line, what is asked of each profile, and the report."""
