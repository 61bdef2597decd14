"""The checks of the guard, one module each. `guard_checks` beside this package lists them."""
