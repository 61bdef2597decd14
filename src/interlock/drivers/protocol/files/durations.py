"""ISO 8601 durations of days and less: PT5M, PT30S, P1D. Months and years have no fixed length and are refused."""

import re
from typing import Final

DURATION_S_MAX: Final = 366 * 86400.0

_DURATION = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,6})W|(?:(?P<days>[0-9]{1,6})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,6})M)?(?:(?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,3})?)S)?)?)",
    re.ASCII,
)
_SECONDS = {"weeks": 604800.0, "days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}


def duration_s(text: str) -> float | None:
    """Seconds, more than none and at most a year; None when the text says no such duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    total = sum(float(found[unit]) * seconds for unit, seconds in _SECONDS.items() if found[unit])
    return total if 0 < total <= DURATION_S_MAX else None
