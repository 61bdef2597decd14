"""A call from admission to answer: the call itself, its caller, the guard, budgets, parked calls."""
