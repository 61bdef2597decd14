"""The budget of every walk over a JSON Schema: how much of one may be looked at before it counts as `object`.

Schemas come from servers. No other call is served while one is walked, so a walk takes at most some 5 ms. Two kinds of
limits bound it. The size of a schema is limited once, before any walk (`validators.find_excess`). A walk that can meet
one schema several times, because it follows references or tries alternatives, spends an `Effort` besides.

A walk that ends early says less, never something else: an operation shows `object`, a comparison is undecided, a
validator is not made. The operator is told which tool it is (`interlock tools show`, and the log).
"""

from typing import Final

# The size of a schema. The largest of 147 tools of well-known servers has 25 values in 354 bytes.
BYTES_MAX: Final = 64 * 1024  # of its text
VALUES_MAX: Final = 2_000  # of its objects, arrays, texts and numbers; 1 to 3 microseconds each in most walks
DEPTH_MAX: Final = 200  # levels; the validator itself ends at about as much
REFERENCES_MAX: Final = 1_000
REFERENCE_CHARS_MAX: Final = 500  # of one $ref, which is followed step by step
WEIGHT_MAX: Final = 2_000  # schemas for one value at one place; milliseconds to tell the first fault
PATTERNS_MAX: Final = 20  # different ones
PATTERN_CHARS_MAX: Final = 1_000
PATTERNS_BYTES_MAX: Final = 1024 * 1024  # of all compiled patterns of a schema together; 2 to 4 ms
PATTERN_BYTES_MIN: Final = 128 * 1024  # of one, however many there are
BACKTRACKS_MAX: Final = 100_000  # of one pattern that needs them; a few milliseconds

# The steps of one walk. A step is a few microseconds.
PAIR_STEPS_MAX: Final = 600  # of comparing one pair of schemas; alternatives multiply
ALONE_BYTES_MAX: Final = 16 * 1024  # parts of a compared schema that are compiled, with its definitions
RESOLVED_MAX: Final = 1_000  # values of a schema whose references are replaced by their targets
TYPE_STEPS_MAX: Final = 300  # objects, alternatives and fields that become named types of one operation
EXAMPLE_STEPS_MAX: Final = 300  # values of the example of one operation


class EffortSpent(Exception):
    """Error raised when a walk over schemas takes more steps than it may."""


class Effort:
    """A number of steps that one or several walks over schemas may take. Using more raises EffortSpent."""

    def __init__(self, steps: int = PAIR_STEPS_MAX) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise EffortSpent
