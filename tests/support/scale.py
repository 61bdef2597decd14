"""How much of the same: little in every run, much in `make soak`."""

import os

SOAK = os.environ.get("TESTS_SOAK") == "1"


def many(usual: int, in_soak: int) -> int:
    return in_soak if SOAK else usual
