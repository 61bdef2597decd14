"""JSON from elsewhere as a person reads it before deciding: laid out, and not one character other than it is.

Numbers keep their digits, strings their escapes. What could make a line read differently from what it holds (control
and direction marks, other spaces, what no font shows) stands as its escape. What is too long for this is folded
(`fold`): values may then be left out, keys never.
"""

import re
import unicodedata
from itertools import islice
from typing import Final

import msgspec

INDENT: Final = "  "
INDENTS_MAX: Final = 20  # deeper is set no further to the right
COMPARED_MAX: Final = 500  # lines; comparing takes the square of it
_CLOSES_AT_ONCE: Final = re.compile(r"[ \t\r\n]*[}\]]")
_HIDING: Final = frozenset(("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"))
# Letters and marks that no font shows: Default_Ignorable_Code_Point of Unicode as far as the categories above do not
# have them, and the empty braille pattern.
_BLANK: Final = frozenset(
    (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0)
) | frozenset(range(0xE0100, 0xE01F0))


def plain(untrusted: str) -> str:
    """Return a text as one line in which every character is visible: invisible and control characters are escaped."""
    if untrusted.isascii() and untrusted.isprintable():
        return untrusted
    return "".join(
        character if character == " " or _is_plain(character) else _escape(character) for character in untrusted
    )


def layout_lines(raw: bytes) -> list[str]:
    """Return a JSON text as indented lines for a person to read, with invisible characters escaped. Whether the text is
    JSON is not checked.
    """
    text = raw.decode("utf-8", "backslashreplace")
    lines: list[str] = []
    line: list[str] = []
    depth, in_string, escaped = 0, False, False

    def close() -> None:
        lines.append(INDENT * min(depth, INDENTS_MAX) + plain("".join(line)))
        line.clear()

    for position, sign in enumerate(text):
        if in_string:
            line.append(sign)
            in_string = escaped or sign != '"'
            escaped = sign == "\\" and not escaped
        elif sign in " \t\r\n":
            continue
        elif sign in "{[" and _CLOSES_AT_ONCE.match(text, position + 1):
            line.append(sign)
        elif sign in "{[":
            line.append(sign)
            close()
            depth += 1
        elif sign in "}]":
            if not line or line[-1] not in "{[":
                if line:
                    close()
                depth = max(0, depth - 1)
            line.append(sign)
        elif sign == ",":
            line.append(sign)
            close()
        elif sign == ":":
            line.append(": ")
        else:
            line.append(sign)
            in_string = sign == '"'
    if line:
        close()
    return lines


def differences(before: bytes, after: bytes) -> list[str]:
    """Compare two JSON texts line by line. Removed lines begin with "- ", added lines with "+ ", unchanged lines around
    them with two spaces. Beyond COMPARED_MAX lines, all lines count as removed and added.
    """
    from difflib import unified_diff  # here, because an idle node needs it for nothing

    old, new = layout_lines(before), layout_lines(after)
    if max(len(old), len(new)) > COMPARED_MAX:
        return [*(f"- {line}" for line in old), *(f"+ {line}" for line in new)]
    diff = islice(unified_diff(old, new, lineterm="", n=2), 3, None)  # two heads, and where the first part is
    return [f"{line[0]} {line[1:]}" if line[0] in "+- " else "..." for line in diff]


def _is_plain(sign: str) -> bool:
    category = unicodedata.category(sign)
    return category not in _HIDING and category != "Zs" and ord(sign) not in _BLANK


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


# Long JSON as a person reads it before deciding: folded, so that it can be read, with no key left out.
#
# What is short is shown whole. Of what is long every key stands on a line of its own with the size of its value, and
# the items of a long list stand together: each key that any of them has, how often, and how much. A text of n
# characters takes time and memory in proportion to n, however deep it is and however many keys it has.

WHOLE_CHARS_MAX: Final = 400  # of a value that is shown whole inside of what is folded
BEGIN_CHARS: Final = 80  # of a long value

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_OBJECT, _LIST, _TEXT, _OTHER = "object", "list", "text", "other value"


class Shown(msgspec.Struct, frozen=True):
    """A JSON text as lines for a person to read. If it is folded, every key is shown, but not every value."""

    lines: list[str]
    is_folded: bool = False  # not every value is in them; every key is


class _Values:
    """The keys, kinds and sizes of the values at one place of a JSON text. All items of a list are counted at the same
    place.
    """

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
    """Return a JSON text as indented lines. If they exceed the given number of lines or characters, long values are
    shortened, but no key is left out. A text that is not JSON is never shortened.
    """
    lines = layout_lines(raw)
    if len(lines) <= lines_max and sum(map(len, lines)) <= chars_max:
        return Shown(lines)
    try:
        msgspec.json.decode(raw)
        text = raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Shown(lines)  # no key may be left out, and of such a text it is not sure which there are
    return Shown(_folded_lines(text, _measure_values(text)), is_folded=True)


def fold_differences(before: bytes, after: bytes, *, lines_max: int, chars_max: int) -> Shown:
    """Compare two JSON texts line by line. If the result exceeds the given number of lines or characters, both texts
    are shown folded instead.
    """
    lines = differences(before, after)
    if len(lines) <= lines_max and sum(map(len, lines)) <= chars_max:
        return Shown(lines)
    folded = [(sign, fold(text, lines_max=0, chars_max=0)) for sign, text in (("-", before), ("+", after))]
    lines_of_both = [f"{sign} {line}" for sign, shown in folded for line in shown.lines]
    return Shown(lines_of_both, is_folded=any(shown.is_folded for _, shown in folded))


def _measure_values(text: str) -> _Values:
    """Return a tree with the keys, kinds and sizes of all values in a JSON text."""
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
        inner = [(f"{key}: ", member, depth + 1) for key, member in values.members.items()]
        if values.items is not None:
            inner.append(("each: ", values.items, depth + 1))
        waiting += reversed(inner)
    return lines


def _description(text: str, values: _Values) -> str:
    kinds = ", ".join(
        kind if count == 1 == values.count else f"{count} x {kind}" for kind, count in values.kinds.items()
    )
    description = f"<{kinds}, {values.size} characters>"
    if values.members or values.items is not None:
        return description
    begin = text[values.begin : min(values.end, values.begin + BEGIN_CHARS)]
    return f"{description} {'begins' if values.count == 1 else 'the first'} {plain(begin)}"
