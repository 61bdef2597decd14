"""The running node: the only layer with tasks, the clock and state that changes.

Its packages stand in an order, bottom up, that tests/test_architecture.py enforces; each imports only those below it.
"""
