"""What the specifications say, as values and pure functions: no I/O, no async, no clock, no randomness, no logging."""
