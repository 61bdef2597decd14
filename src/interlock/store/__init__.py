"""What is remembered: ports, the audit chain, publish and subscribe, and the table of backends."""
