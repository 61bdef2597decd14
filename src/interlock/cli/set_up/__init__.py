"""What `check` and `doctor` look at: the machine, drivers, servers, and the set-up as a whole."""
