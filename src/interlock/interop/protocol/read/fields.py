"""The keys of one foreign entry, taken one by one, so that the others can be listed; and values as wanted."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from interlock.wire.jsontext.pointer import quoted

_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
KEYS_TOLD_MAX: Final = 8
TIMEOUT_MS_MIN: Final = 100
TIMEOUT_MS_MAX: Final = 24 * 3600 * 1000


class Fields:
    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self._left = {str(key): value for key, value in raw.items()}

    def take(self, *keys: str) -> Any:
        """The first of these that is written; all of them count as seen."""
        found = [self._left.pop(key) for key in keys if key in self._left]
        return found[0] if found else None

    def put(self, key: str, value: Any) -> None:
        if value is not None:
            self._left.setdefault(key, value)

    def rest(self) -> tuple[str, ...]:
        unused = [key for key, value in self._left.items() if value not in (None, "", [], {})]
        return tuple(quoted(key) for key in sorted(unused)[:KEYS_TOLD_MAX])


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and not _CONTROL.search(value) else None


def texts(value: Any) -> dict[str, str]:
    """A mapping of names to texts; numbers and truth values as a shell would write them, null left out."""
    found = {}
    for name, each in value.items() if isinstance(value, Mapping) else ():
        if isinstance(each, bool):
            each = "true" if each else "false"
        elif isinstance(each, int | float):
            each = str(each)
        if text(each) is not None and text(name):
            found[name] = each
    return found


def names(value: Any) -> tuple[str, ...]:
    """A list of texts; numbers as they are written."""
    if not isinstance(value, list | tuple):
        return ()
    found = [
        str(each) if isinstance(each, int | float) and not isinstance(each, bool) else text(each) for each in value
    ]
    return tuple(each for each in found if each is not None)


def milliseconds(value: Any, unit_ms: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    return int(min(max(value * unit_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX))
