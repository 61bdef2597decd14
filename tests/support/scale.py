"""How much of the same a run does: little in `make quick`, more in every other run, much in `make soak`.

Both targets set a variable of the environment, because programs that tests start read it as well.
"""

import os

SOAK = os.environ.get("TESTS_SOAK") == "1"
QUICK = os.environ.get("TESTS_QUICK") == "1"
QUICK_SHARE = 5  # `make quick` tries one of so many examples


def many(usual: int, in_soak: int) -> int:
    """Return how often a test repeats its main step."""
    return in_soak if SOAK else usual


def quick_or(in_quick: int, usual: int) -> int:
    """Return the size of an input that takes seconds to handle: smaller in `make quick`."""
    return in_quick if QUICK else usual


def examples(usual: int, in_soak: int | None = None) -> int:
    """Return how many examples of a property hypothesis tries."""
    if SOAK and in_soak is not None:
        return in_soak
    return usual // QUICK_SHARE if QUICK else usual
