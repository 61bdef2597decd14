"""The guard: the checks that every call passes, in order, and budgets."""
