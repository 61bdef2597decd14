"""Installation of a driver's server: programs, packages, containers, records of installations, version checks."""
