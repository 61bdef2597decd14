"""Long JSON as a person reads it before deciding: folded, so that it can be read, with no key left out.

What is short is shown whole. Of what is long every key stands on a line of its own with the size of its value, and the
items of a long list stand together: each key that any of them has, how often, and how much. A text of n characters
takes time and memory in proportion to n, however deep it is and however many keys it has.
"""

import re
from typing import Final

import msgspec

from interlock.wire.jsontext.display import INDENT, INDENTS_MAX, differences, layout_lines, plain

WHOLE_CHARS_MAX: Final = 400  # of a value that is shown whole inside of what is folded
BEGIN_CHARS: Final = 80  # of a long value

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_OBJECT, _LIST, _TEXT, _OTHER = "object", "list", "text", "other value"


class Shown(msgspec.Struct, frozen=True):
    lines: list[str]
    is_folded: bool = False  # not every value is in them; every key is


class _Values:
    """All values at one place: of one member, or of all items of a list."""

    __slots__ = ("begin", "count", "end", "items", "kinds", "members", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.begin = self.end = 0  # of the first of them, in the text
        self.kinds: dict[str, int] = {}
        self.members: dict[str, _Values] = {}  # by their keys as they are written, in quotes
        self.items: _Values | None = None

    def add(self, kind: str, begin: int) -> None:
        self.count += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if self.count == 1:
            self.begin = begin

    def close(self, begin: int, end: int) -> None:
        self.size += end - begin
        if begin == self.begin:
            self.end = end


def fold(raw: bytes, *, lines_max: int, chars_max: int) -> Shown:
    """The lines of a JSON text, folded where they would be more than this."""
    lines = layout_lines(raw)
    if len(lines) <= lines_max and sum(map(len, lines)) <= chars_max:
        return Shown(lines)
    try:
        msgspec.json.decode(raw)
        text = raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Shown(lines)  # no key may be left out, and of such a text it is not sure which there are
    return Shown(_folded_lines(text, _values(text)), is_folded=True)


def fold_differences(before: bytes, after: bytes, *, lines_max: int, chars_max: int) -> Shown:
    """What was and what is, line by line; both folded where that would be too much."""
    lines = differences(before, after)
    if len(lines) <= lines_max and sum(map(len, lines)) <= chars_max:
        return Shown(lines)
    folded = [(sign, fold(one, lines_max=0, chars_max=0)) for sign, one in (("-", before), ("+", after))]
    told = [f"{sign} {line}" for sign, shown in folded for line in shown.lines]
    return Shown(told, is_folded=any(shown.is_folded for _, shown in folded))


def _values(text: str) -> _Values:
    """The text is JSON."""
    root = _Values()
    open_: list[tuple[_Values, int, bool]] = []  # what is not closed, where it began, whether it is an object
    key: str | None = None
    for token in _TOKEN.finditer(text):
        sign, begin = token[0], token.start()
        if sign in "}]":
            values, began, _ = open_.pop()
            values.close(began, token.end())
        elif sign in ",:":
            continue
        elif open_ and open_[-1][2] and key is None:
            key = sign
        else:
            place = root
            if open_:
                owner = open_[-1][0]
                if key is not None:
                    place = owner.members.setdefault(key, _Values())
                else:
                    place = owner.items = owner.items or _Values()
            key = None
            kind = {"{": _OBJECT, "[": _LIST, '"': _TEXT}.get(sign[0], _OTHER)
            place.add(kind, begin)
            if kind in (_OBJECT, _LIST):
                open_.append((place, begin, kind is _OBJECT))
            else:
                place.close(begin, token.end())
    return root


def _folded_lines(text: str, root: _Values) -> list[str]:
    lines: list[str] = []
    waiting: list[tuple[str, _Values, int]] = [("", root, 0)]
    while waiting:
        label, values, depth = waiting.pop()
        indent = INDENT * min(depth, INDENTS_MAX)
        if values.count == 1 and values.size <= WHOLE_CHARS_MAX:
            whole = layout_lines(text[values.begin : values.end].encode())
            lines += [f"{indent}{plain(label)}{whole[0]}", *(f"{indent}{line}" for line in whole[1:])]
            continue
        lines.append(f"{indent}{plain(label)}{_description(text, values)}")
        inner = [(f"{key}: ", one, depth + 1) for key, one in values.members.items()]
        if values.items is not None:
            inner.append(("each: ", values.items, depth + 1))
        waiting += reversed(inner)
    return lines


def _description(text: str, values: _Values) -> str:
    kinds = ", ".join(
        kind if count == 1 == values.count else f"{count} x {kind}" for kind, count in values.kinds.items()
    )
    told = f"<{kinds}, {values.size} characters>"
    if values.members or values.items is not None:
        return told
    begin = text[values.begin : min(values.end, values.begin + BEGIN_CHARS)]
    return f"{told} {'begins' if values.count == 1 else 'the first'} {plain(begin)}"
