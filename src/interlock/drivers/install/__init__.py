"""Installation of a driver's server: programs, packages, containers, locks, version checks."""
