"""The live conformance check of the AQL surface: a node in this process, and its clients."""
