"""Tools that clients see as contracts: calls are mapped to a driver's server, results are mapped back, both are
audited.
"""
