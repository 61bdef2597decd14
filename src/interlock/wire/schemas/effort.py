"""The effort that comparing schemas may take, in steps. Many pairs of one peer share one effort.

A step is a few microseconds. What is charged grows with the schemas, so a hostile pair ends as soon as a large one.
"""

from typing import Final

PAIR_STEPS_MAX: Final = 5_000  # of one pair of schemas; alternatives multiply


class EffortSpent(Exception):
    """Too much to compare."""


class Effort:
    def __init__(self, steps: int = PAIR_STEPS_MAX) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise EffortSpent
