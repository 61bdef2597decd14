"""Child processes: spawning, line framing, stderr, process groups, network namespaces, and their supervisor."""
