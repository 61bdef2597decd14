"""The kinds of value that say how much is too much: a table of limits, and what a call counts for."""

from typing import Final

from interlock.config.plan import UnitsPlan
from interlock.config.table_type import Record
from interlock.config.value_types import Whole
from interlock.protocol.ax.budget import KEYS, LIMIT_MAX, Limits

AMOUNT: Final = Whole(low=0, high=LIMIT_MAX)
BUDGET: Final = Record(
    what="a budget",
    example="budget = { max_calls_per_minute = 60 }",
    fields=dict.fromkeys(KEYS, AMOUNT),
    needed=(),
    make=Limits,
)
UNITS: Final = Record(
    what="the units of a call",
    example="units = { expensive = 50 }",
    fields=dict.fromkeys(UnitsPlan.__struct_fields__, AMOUNT),
    needed=(),
    make=UnitsPlan,
)
