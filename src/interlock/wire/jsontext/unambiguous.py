"""JSON that means one thing to every reader: what a person approves must be what the tool's server reads.

Most readers take the last of two equal keys, some the first; a number beyond a double's reach is one value here and
another there. `read_untrusted` takes bytes and refuses whatever is not the same everywhere, with `AmbiguousJson`. It is
for the calls that are held and for the proofs that release them, not for plain traffic.
"""

import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final, NoReturn

from interlock.wire.jsontext.canonical import INTEGER_MAX, canonical

NESTING_MAX: Final = 64  # a person cannot read what lies deeper
VALUES_MAX: Final = 10_000  # a digest of them takes a few hundredths of a second, in which no other call is served
NUMBER_CHARS_MAX: Final = 400  # the longest double in full, 5e-324, has 326
_INTEGER_DIGITS: Final = len(str(INTEGER_MAX))


class AmbiguousJson(ValueError):
    """Error for text that is not JSON, or JSON that two readers may understand differently. `reason` is a word, the
    message the end of a sentence.
    """

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def read_untrusted(data: bytes, *, exact: bool = True) -> Any:
    """Decode JSON that every reader understands the same way. Raise AmbiguousJson for any other JSON.

    Without `exact`, numbers may lose digits. Dates are read this way, because they are not compared to their last
    digit.
    """
    reading = _Reading(exact)
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=reading.object,
            parse_int=reading.integer,
            parse_float=reading.real,
            parse_constant=reading.constant,
        )
    except UnicodeDecodeError:
        raise AmbiguousJson("malformed", "it is not valid UTF-8") from None
    except json.JSONDecodeError:
        raise AmbiguousJson("malformed", "it is not valid JSON") from None
    except RecursionError:
        raise _too_deep() from None
    _look_over(value)
    return value


class _Reading:
    """The hooks of one reading."""

    def __init__(self, exact: bool) -> None:
        self._exact = exact
        self._left = VALUES_MAX

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._count()
        members = dict(pairs)
        if len(members) != len(pairs):
            raise AmbiguousJson("duplicate_key", "an object has the same key twice")
        return members

    def integer(self, text: str) -> int:
        self._count()
        if len(text.lstrip("-")) > _INTEGER_DIGITS or not -INTEGER_MAX <= (value := int(text)) <= INTEGER_MAX:
            raise AmbiguousJson("number", f"an integer lies outside +-{INTEGER_MAX}, where readers round differently")
        if value == 0 and text[0] == "-":
            raise _negative_zero()
        return value

    def real(self, text: str) -> float:
        self._count()
        if len(text) > NUMBER_CHARS_MAX:
            raise AmbiguousJson("number", f"a number is longer than {NUMBER_CHARS_MAX} characters")
        value = float(text)
        if not math.isfinite(value):
            raise AmbiguousJson("number", "a number is too large for a double")
        if self._exact:
            # Reject a decimal that rounds to a double but is not the number that RFC 8785 writes for that double. 1,
            # 1.0 and 10e-1 are one number. 0.1 and 0.1000000000000000055 are two, and canonical JSON has one text for
            # both.
            if value == 0:
                if not set(text.lower().partition("e")[0]) <= set("-0."):
                    raise AmbiguousJson("number", "a number is too small for a double")
                if text[0] == "-":
                    raise _negative_zero()
            elif Decimal(text) != Decimal(canonical(value).decode()):
                raise AmbiguousJson("number", "a number has more digits than a double keeps")
        return value

    def constant(self, text: str) -> NoReturn:
        raise AmbiguousJson("malformed", f"{text} is not JSON")

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _too_many()


def _look_over(value: Any) -> None:
    left = VALUES_MAX
    level: list[Any] = [value]
    for _ in range(NESTING_MAX + 1):
        left -= len(level)
        if left < 0:
            raise _too_many()
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_texts((item,))
            elif isinstance(item, dict):
                _check_texts(item)
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise _too_deep()


def _check_texts(texts: Iterable[str]) -> None:
    for text in texts:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise AmbiguousJson("surrogate", "a string holds half of a surrogate pair") from None


def _negative_zero() -> AmbiguousJson:
    return AmbiguousJson("number", "canonical JSON does not tell -0 from 0")


def _too_deep() -> AmbiguousJson:
    return AmbiguousJson("nesting", f"it is nested deeper than {NESTING_MAX} levels")


def _too_many() -> AmbiguousJson:
    return AmbiguousJson("size", f"it holds more than {VALUES_MAX} values")
