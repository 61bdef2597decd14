"""Canonical JSON (RFC 8785), the digest of a tool's definition (MCP-AX 11.3), and JSON without ambiguity.

RFC 8785 knows only doubles: an integer beyond 2^53 - 1 would be hashed like its neighbour. `canonical` refuses such
integers, and everything else that has no canonical form, with `NotCanonical`. A definition must have a digest whatever
a server puts into it. In `tool_digest`, therefore, large integers are written out, and a member without a canonical
form is represented by the hash of its bytes.

`read_untrusted` reads JSON that means one thing to every reader, because what a person approves must be what the tool's
server reads. Of two equal keys, most readers take the last, some the first; a number beyond the range of a double is
one value here and another there. Such texts raise `AmbiguousJson`. It is used for calls that are held and for the
proofs that release them, not for plain traffic, which it would slow down. For that, `nesting_depth` and
`find_doubled_keys` answer one question each.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import accumulate, count
from json.encoder import encode_basestring
from operator import sub
from typing import Any, Final, NoReturn

from msgspec import Raw

from interlock.wire.jsonrpc.codec import CodecError, decode_value

INTEGER_MAX: Final = 2**53 - 1
_DECIMAL_DIGITS_MAX: Final = 21  # ECMAScript writes exponents from 1e21 and below 1e-6
_DECIMAL_ZEROS_MAX: Final = 6
# What a model may be shown of a tool beside its name, and what decides about its calls. Icons are for people, and what
# `execution` says is about the connection.
DEFINITION_MEMBERS: Final = ("title", "description", "inputSchema", "outputSchema", "annotations", "_meta")
# The same of what is no tool. The text of a server's instructions is an item with one member. A plain resource is
# content of its server, so that only what describes it counts.
ITEM_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt": ("title", "description", "arguments", "_meta"),
    "template": ("name", "title", "description", "mimeType", "annotations", "_meta"),
    "resource": ("title", "description"),
    "instructions": ("text",),
}


class NotCanonical(ValueError):
    """Error for a value without a canonical form. The message says what is wrong with the value."""


def canonical(value: Any) -> bytes:
    """Return the canonical text of a decoded JSON value (RFC 8785). Raise NotCanonical if it has none."""
    return _encode(value, exact=False)


def tool_digest(item: Mapping[str, Raw], *, downstream_name: str, declared: object) -> str:
    """Return the digest of a tool's definition: the SHA-256, in hex, of the members that a person is shown for
    approval.

    `item` is without the keys of MCP-AX in `_meta`, which change from hop to hop. `declared` is the decoded capability
    annotation as the tool's owner wrote it, or None. Its availability is left out, because it changes with the state of
    the link.
    """
    members = {member: _canonical_or_hash(item[member]) for member in DEFINITION_MEMBERS if member in item}
    if members.get("_meta") == b"{}":
        del members["_meta"]
    if isinstance(declared, Mapping):
        declared = {key: value for key, value in declared.items() if key != "availability"}
    if declared is not None:
        members["capability"] = _canonical_or_hash(declared)
    members["downstream_name"] = _canonical_or_hash(downstream_name)
    text = b",".join(b'"%b":%b' % (key.encode(), members[key]) for key in sorted(members))
    return hashlib.sha256(b"{%b}" % text).hexdigest()


def item_digest(kind: str, item: Mapping[str, Raw], *, name: str) -> str:
    """Return the digest of a prompt, resource template, resource or server's instructions: SHA-256 in hex. `kind` is a
    key of ITEM_MEMBERS, and `name` is what the server calls the item.
    """
    members = {member: _canonical_or_hash(item[member]) for member in ITEM_MEMBERS[kind] if member in item}
    if members.get("_meta") == b"{}":
        del members["_meta"]
    members[kind] = _canonical_or_hash(name)
    text = b",".join(b'"%b":%b' % (key.encode(), members[key]) for key in sorted(members))
    return hashlib.sha256(b"{%b}" % text).hexdigest()


def _canonical_or_hash(value: object) -> bytes:
    """Return the canonical JSON text of a value. If the value has none, return the text of an object with the hash of
    the value.
    """
    try:
        return _encode(decode_value(value) if isinstance(value, Raw) else value, exact=True)
    except (CodecError, NotCanonical):
        text = bytes(value) if isinstance(value, Raw) else repr(value).encode("utf-8", "backslashreplace")
        return b'{"sha256":"%b"}' % hashlib.sha256(text).hexdigest().encode()


def _encode(value: Any, *, exact: bool) -> bytes:
    parts: list[str] = []
    try:
        _write(value, parts, exact)
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise NotCanonical("a string holds half of a surrogate pair") from None
    except RecursionError:
        raise NotCanonical("it is nested too deeply") from None


def _write(value: Any, parts: list[str], exact: bool) -> None:
    if value is None:
        parts.append("null")
    elif value is True or value is False:
        parts.append("true" if value else "false")
    elif isinstance(value, str):
        parts.append(encode_basestring(value))
    elif isinstance(value, int):
        if -INTEGER_MAX <= value <= INTEGER_MAX:
            parts.append(str(value))
        elif exact:
            parts.append(hex(value))  # no text of RFC 8785 has this form, so it is taken for no other number
        else:
            raise NotCanonical(f"an integer lies outside the {INTEGER_MAX} that every reader takes alike")
    elif isinstance(value, float):
        parts.append(_double(value))
    elif isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise NotCanonical("the keys of an object are strings")
        # RFC 8785 3.2.3: keys are ordered by their UTF-16 code units. Of ASCII that is the usual order.
        is_ascii = all(map(str.isascii, value))
        keys = sorted(value, key=None if is_ascii else lambda key: key.encode("utf-16-be", "surrogatepass"))
        for position, key in enumerate(keys):
            parts.append("," if position else "{")
            parts.append(encode_basestring(key))
            parts.append(":")
            _write(value[key], parts, exact)
        parts.append("}" if value else "{}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            parts.append("," if position else "[")
            _write(item, parts, exact)
        parts.append("]" if value else "[]")
    else:
        raise NotCanonical("it holds something that is not JSON")


def _double(value: float) -> str:
    """Return a floating-point number in canonical JSON, which has the form of JavaScript (RFC 8785 3.2.2.3)."""
    if not math.isfinite(value):
        raise NotCanonical("a number is not finite")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = (whole + fraction).lstrip("0")
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if len(digits) <= point <= _DECIMAL_DIGITS_MAX:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= _DECIMAL_DIGITS_MAX:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -_DECIMAL_ZEROS_MAX < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{sign}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}{power}"


def pointer_step(key: str) -> str:
    """Escape a key for use as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def quoted(key: str) -> str:
    """Return a key in quotes for a message, with control characters escaped and a long key shortened."""
    return repr(key if len(key) <= 60 else key[:59] + "…")


NESTING_MAX: Final = 64  # a person cannot read what lies deeper
VALUES_MAX: Final = 10_000  # a digest of them takes a few hundredths of a second, in which no other call is served
NUMBER_CHARS_MAX: Final = 400  # the longest double in full, 5e-324, has 326
_INTEGER_DIGITS: Final = len(str(INTEGER_MAX))


class AmbiguousJson(ValueError):
    """Error for a text that is not JSON, or for JSON that two readers may understand differently.

    `reason` is a machine-readable word. The message is the end of a sentence, to follow the name of the text.
    """

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def find_doubled_keys(text: bytes) -> list[str]:
    """Return the keys that occur twice in the outermost object of a JSON text. Raise ValueError or RecursionError for a
    text that cannot be read.
    """
    doubled: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        """Store the keys that occur twice in one object. The decoder calls this function for each object, last for the
        outermost one, whose keys are the result.
        """
        seen: set[str] = set()
        doubled[:] = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    return doubled


def read_untrusted(data: bytes, *, exact: bool = True) -> Any:
    """Decode JSON that means the same to every reader. Raise AmbiguousJson for any other text, for example one with a
    key twice.

    If `exact` is False, numbers may lose digits. Data that is never compared digit by digit is read this way.
    """
    reading = _UnambiguousReader(exact)
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


# A string to its end, or to the end of a text that does not end it: nothing is looked at twice.
STRING: Final = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)
# Two for what opens, nothing for what closes: the running sum less the number of brackets is the depth.
_DEPTHS: Final = bytes.maketrans(b"[{]}", b"\x02\x02\x00\x00")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def nesting_depth(text: bytes) -> int:
    """Return how deeply arrays and objects are nested in a JSON text. Nothing recurses."""
    brackets = STRING.sub(b"", text).translate(_DEPTHS, _NO_BRACKETS)
    return max(map(sub, accumulate(brackets), count(1)), default=0)


class _UnambiguousReader:
    """Callbacks with which the JSON decoder reads one text. They limit the number of values, and raise an error for
    values that are ambiguous.
    """

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
