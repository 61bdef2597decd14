"""The payload limits of 4.7.5 and what a request's text may hold (4.7.1), exact at every boundary.

`check_request` reads the raw text of a tools/call `arguments` object. Limits are asked in the order request, nesting,
array, string (X-16); encoding after them. Nothing here recurses: a bomb costs one pass. Small ordinary texts, which
are nearly all, are passed by counting alone.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from interlock.aql.protocol.errors import Failure, invalid_encoding, too_large

KEYS: Final[Mapping[str, str]] = {  # our setting -> its name in `_protocol.limits`
    "request_bytes": "max_request_size",  # AQL-4.7.5-8
    "response_bytes": "max_response_size",
    "string_bytes": "max_string_length",
    "array_elements": "max_array_elements",
    "nesting_depth": "max_nesting_depth",  # AQL-4.7.5-8
    "batch_operations": "max_batch_operations",
}
KI: Final = 1024
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "request_bytes": (64 * KI, 10 * KI * KI),
    "response_bytes": (KI * KI, 100 * KI * KI),
    "string_bytes": (64 * KI, 10 * KI * KI),
    "array_elements": (100, 100_000),
    "nesting_depth": (8, 64),
    "batch_operations": (1, 1000),
}
OPEN, CLOSE, SQUARE_OPEN, SQUARE_CLOSE, COMMA, QUOTE = b'{}[],"'
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SUSPECT: Final = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    request_bytes: int = KI * KI
    response_bytes: int = 10 * KI * KI
    string_bytes: int = KI * KI
    array_elements: int = 10_000
    nesting_depth: int = 32
    batch_operations: int = 50

    def shown(self) -> dict[str, int]:
        """`_protocol.limits`."""
        return {name: getattr(self, key) for key, name in KEYS.items()}


def check_request(text: bytes, limits: Limits, *, nul_allowed: bool = False) -> Failure | None:
    """What is wrong with the text of a request, whatever it asks for."""
    size = len(text)
    if size > limits.request_bytes:  # AQL-4.7.5-1
        return too_large("request_size", limits.request_bytes, size)
    if (
        size >= 2 * limits.array_elements
        or size > limits.string_bytes
        or text.count(b"{") + text.count(b"[") > limits.nesting_depth
    ):
        fault = _measure(text, limits)
        if fault is not None:
            return fault
    if text.find(b"\\u") >= 0 and _SUSPECT.search(text):
        return _spelling(text, nul_allowed)
    return None


def _measure(text: bytes, limits: Limits) -> Failure | None:
    """One pass; the worst of each kind, so that the order of the limits holds whatever stands first in the text."""
    level = deepest = longest = widest = 0
    counts: list[int] = []  # of the commas in each open array; -1: an object
    has_item: list[bool] = []
    previous = 0
    for token in _TOKEN.finditer(text):
        start = token.start()
        sign = text[start]
        if has_item and not has_item[-1] and (sign not in (CLOSE, SQUARE_CLOSE) or text[previous:start].strip()):
            has_item[-1] = True
        if sign == QUOTE:
            if token.end() - start - 2 > limits.string_bytes:
                longest = max(longest, _string_bytes(text[start + 1 : token.end() - 1]))
        elif sign in (OPEN, SQUARE_OPEN):
            level += 1
            deepest = max(deepest, level)
            counts.append(0 if sign == SQUARE_OPEN else -1)
            has_item.append(False)
        elif sign in (CLOSE, SQUARE_CLOSE):
            level -= 1
            commas = counts.pop() if counts else -1
            had = has_item.pop() if has_item else False
            if commas >= 0 and had:
                widest = max(widest, commas + 1)
        elif sign == COMMA and counts and counts[-1] >= 0:
            counts[-1] += 1
        previous = token.end()
    if deepest > limits.nesting_depth:  # AQL-4.7.5-1
        return too_large("nesting_depth", limits.nesting_depth, deepest)
    if widest > limits.array_elements:  # AQL-4.7.5-1
        return too_large("array_elements", limits.array_elements, widest)
    if longest > limits.string_bytes:  # AQL-4.7.5-1
        return too_large("string_length", limits.string_bytes, longest)
    return None


def _string_bytes(inner: bytes) -> int:
    """UTF-8 bytes of the string whose JSON text this is, without its quotes."""
    if b"\\" not in inner:
        return len(inner)
    size = len(inner)
    for escape in _ESCAPE.finditer(inner):
        unit = escape[1]
        if unit is None:
            size -= 1
        else:
            point = int(unit, 16)
            size -= 6 - (1 if point < 0x80 else 2 if point < 0x800 or 0xD800 <= point < 0xE000 else 3)  # a half: 2 of 4
    return size


def _spelling(text: bytes, nul_allowed: bool) -> Failure | None:
    """Halves of surrogate pairs, and U+0000, however they are spelled."""
    for token in _TOKEN.finditer(text):
        if text[token.start()] != QUOTE or b"\\u" not in token[0]:
            continue
        high_ends: int | None = None
        for escape in _ESCAPE.finditer(token[0]):
            point = -1 if escape[1] is None else int(escape[1], 16)
            is_low = 0xDC00 <= point < 0xE000
            if high_ends is not None and not (is_low and escape.start() == high_ends):  # AQL-4.7.1-2
                return invalid_encoding("request", token.start() + high_ends - 6)
            if (is_low and high_ends is None) or (point == 0 and not nul_allowed):  # AQL-4.7.1-2
                return invalid_encoding("request", token.start() + escape.start())
            high_ends = escape.end() if 0xD800 <= point < 0xDC00 else None
        if high_ends is not None:  # AQL-4.7.1-2
            return invalid_encoding("request", token.start() + high_ends - 6)
    return None
