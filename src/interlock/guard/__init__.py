"""The guard: the ordered checks that every call passes, and the budgets that calls are charged to."""
