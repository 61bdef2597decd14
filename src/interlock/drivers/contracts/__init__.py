"""Contracts as tools: calls mapped to a driver's server and back, with their audit rows."""
