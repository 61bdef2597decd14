"""The range that lengths and bounds of a JSON Schema leave: of numbers, of lengths, of counts.

Whole numbers are counted in whole steps: an integer above 0.5 is one from 1 on.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

LOWER: Final = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
UPPER: Final = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")
_KINDS: Final = {
    **dict.fromkeys(("minLength", "maxLength"), ("length", "minLength", "maxLength")),
    **dict.fromkeys(("minItems", "maxItems"), ("items", "minItems", "maxItems")),
    **dict.fromkeys(("minProperties", "maxProperties"), ("properties", "minProperties", "maxProperties")),
}
_NUMBER: Final = ("number", "minimum", "maximum")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`is_open`: the end itself is not among the values."""

    kind: str
    low: float = -math.inf
    is_low_open: bool = False
    high: float = math.inf
    is_high_open: bool = False

    @property
    def is_empty(self) -> bool:
        return self.low > self.high or (self.low == self.high and (self.is_low_open or self.is_high_open))

    def is_within(self, other: "Limits", lower: bool) -> bool:
        """At that end nothing of this range is outside of the other."""
        if lower:
            return self.low > other.low or (self.low == other.low and (self.is_low_open or not other.is_low_open))
        return self.high < other.high or (self.high == other.high and (self.is_high_open or not other.is_high_open))


def limits_of(parts: Iterable[Mapping[str, Any]], key: str, types: frozenset[str]) -> Limits | None:
    """What all parts leave, of the kind that the key limits. None: one of the limits is no number."""
    kind, least, most = _KINDS.get(key, _NUMBER)
    is_whole = kind != "number" or "fraction" not in types
    lows: list[tuple[float, bool]] = [(-math.inf if kind == "number" else 0, False)]
    highs: list[tuple[float, bool]] = [(math.inf, False)]
    for part in parts:
        for name, found in ((least, lows), (most, highs)):
            if name in part:
                found.append((part[name], False))
        if kind == "number":
            for name, found in (("exclusiveMinimum", lows), ("exclusiveMaximum", highs)):
                if name in part:
                    found.append((part[name], True))
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value, _ in (*lows, *highs)):
        return None
    if is_whole:
        lows = [(_whole(value, is_open), False) for value, is_open in lows]
        highs = [(-_whole(-value, is_open), False) for value, is_open in highs]
    low, is_low_open = max(lows)
    high, is_high_open = min(highs, key=lambda each: (each[0], not each[1]))
    return Limits(kind=kind, low=low, is_low_open=is_low_open, high=high, is_high_open=is_high_open)


def _whole(value: float, is_open: bool) -> float:
    """The least whole number from the value on; `is_open`: above it."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    whole = math.ceil(value)
    return whole + 1 if is_open and whole == value else whole
