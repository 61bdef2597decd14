"""Canonical JSON (RFC 8785) and the digest of a tool's definition (MCP-AX 11.3, ours).

RFC 8785 knows only doubles: an integer beyond 2^53 - 1 would be hashed like its neighbour. `canonical` refuses it and
whatever else has no canonical form with `NotCanonical`. A definition must have a digest whatever a server puts into it,
so there such integers are written out, and a member that has no canonical form at all stands as the hash of its bytes.
"""

import hashlib
import math
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final

from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.jsonrpc.errors import CodecError

INTEGER_MAX: Final = 2**53 - 1
_DECIMAL_DIGITS_MAX: Final = 21  # ECMAScript writes exponents from 1e21 and below 1e-6
_DECIMAL_ZEROS_MAX: Final = 6
_MEMBERS: Final = ("description", "inputSchema", "outputSchema", "annotations")


class NotCanonical(ValueError):
    """A value without a canonical form; the message says what is wrong with it."""


def canonical(value: Any) -> bytes:
    """Return the canonical text of a decoded JSON value (RFC 8785). Raise NotCanonical if it has none."""
    return _encode(value, exact=False)


def tool_digest(item: Mapping[str, Raw], *, downstream_name: str, declared: object) -> str:
    """Return the SHA-256 in hex over the canonical JSON of what a person would be shown of a tool.

    `declared` is the decoded capability annotation as its owner wrote it, or None. Its availability changes with the
    link and is left out.
    """
    members = {member: _whole(item[member]) for member in _MEMBERS if member in item}
    if isinstance(declared, Mapping):
        declared = {key: value for key, value in declared.items() if key != "availability"}
    if declared is not None:
        members["capability"] = _whole(declared)
    members["downstream_name"] = _whole(downstream_name)
    text = b",".join(b'"%b":%b' % (key.encode(), members[key]) for key in sorted(members))
    return hashlib.sha256(b"{%b}" % text).hexdigest()


def _whole(value: object) -> bytes:
    """Return the canonical text of a value, or an object with the hash of the value if it has no canonical text."""
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
        parts.append(_integer(value, exact))
    elif isinstance(value, float):
        parts.append(_double(value))
    elif isinstance(value, Mapping):
        _write_object(value, parts, exact)
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            parts.append("," if position else "[")
            _write(item, parts, exact)
        parts.append("]" if value else "[]")
    else:
        raise NotCanonical("it holds something that is not JSON")


def _write_object(value: Mapping[Any, Any], parts: list[str], exact: bool) -> None:
    if not all(isinstance(key, str) for key in value):
        raise NotCanonical("the keys of an object are strings")
    # RFC 8785 3.2.3: keys are ordered by their UTF-16 code units. Of ASCII that is the usual order.
    keys = sorted(value) if all(map(str.isascii, value)) else sorted(value, key=_utf_16)
    for position, key in enumerate(keys):
        parts.append("," if position else "{")
        parts.append(encode_basestring(key))
        parts.append(":")
        _write(value[key], parts, exact)
    parts.append("}" if value else "{}")


def _utf_16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _integer(value: int, exact: bool) -> str:
    if -INTEGER_MAX <= value <= INTEGER_MAX:
        return str(value)
    if exact:
        return hex(value)  # no text of RFC 8785 has this form, so it is taken for no other number
    raise NotCanonical(f"an integer lies outside the {INTEGER_MAX} that every reader takes alike")


def _double(value: float) -> str:
    """Format a number as ECMAScript's Number::toString does (RFC 8785 3.2.2.3)."""
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
    """Quote a key for a message: control characters are escaped, and a long key is cut."""
    return repr(key if len(key) <= 60 else key[:59] + "…")
