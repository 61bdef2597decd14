"""One object inside a text of JSON with comments: where its members stand, and the text with one of them changed.

Comments and trailing commas are looked through, not touched. The text has been read before: it is JSON.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from interlock.interop.protocol.formats import blank_comments, without_comments

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_SPACE: Final = re.compile(rb"\s*")
_STRUCTURE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]]', re.DOTALL)


class JsonObjectText:
    def __init__(self, data: bytes, start: int) -> None:
        self._data = data  # as it is written
        self._plain = blank_comments(data)
        self._start = start
        self._members, self._end = _members(self._plain, start)

    @classmethod
    def at(cls, text: str, path: Sequence[str]) -> "JsonObjectText | None":
        """The object at the end of the path; None where there is none."""
        data = text.encode()
        plain = blank_comments(data)
        start = plain.find(b"{")
        for key in path:
            if start < 0:
                return None
            found = [value for name, value, _ in _members(plain, start)[0] if name == key]
            if not found or plain[found[-1] : found[-1] + 1] != b"{":
                return None
            start = found[-1]
        return cls(data, start) if start >= 0 else None

    def member(self, key: str) -> tuple[int, int] | None:
        """Where its value begins and ends. Of two members with one name the last counts."""
        found = [(start, end) for name, start, end in self._members if name == key]
        return found[-1] if found else None

    def with_member(self, key: str, value: Any) -> str:
        indent, step = self._indents()
        written = json.dumps(value, ensure_ascii=False, indent=step or None)
        written = written.replace("\n", f"\n{indent}") if step else written
        place = self.member(key)
        if place is not None:
            return (self._data[: place[0]] + written.encode() + self._data[place[1] :]).decode()
        line = f"{json.dumps(key, ensure_ascii=False)}: {written}".encode()
        return self._with_line(line, indent, step).decode()

    def _with_line(self, line: bytes, indent: str, step: str) -> bytes:
        data, newline = self._data, b"\n" if step else b" "
        own = indent.encode()
        if not self._members:
            inner = data[self._start + 1 : self._end].rstrip()  # comments, perhaps
            outer = newline + own.removesuffix(step.encode()) if step else b""
            return data[: self._start + 1] + inner + newline + own + line + outer + data[self._end :]
        last = self._members[-1][2]
        comma = b"" if self._has_comma(last) else b","
        before = data[: self._end].rstrip()
        at = max(len(before), last)
        return data[:last] + comma + data[last:at] + newline + own + line + data[at:]

    def _has_comma(self, after: int) -> bool:
        return b"," in without_comments(self._data)[after : self._end]

    def _indents(self) -> tuple[str, str]:
        """That of a member, and one step; nothing where all stands on one line."""
        data = self._data
        outer = _line_indent(data, self._start)
        if self._members:
            first = self._plain.rfind(b'"', 0, self._members[0][1])
            line = data.rfind(b"\n", 0, first)
            if line < self._start:
                return "", ""
            inner = _line_indent(data, self._members[0][1])
            return inner, inner.removeprefix(outer) or "  "
        step = "\t" if b"\n\t" in data else "  "
        return outer + step, step


def _line_indent(data: bytes, at: int) -> str:
    line = data[data.rfind(b"\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(b" \t"))].decode()


def _members(plain: bytes, start: int) -> tuple[list[tuple[str, int, int]], int]:
    """Key, begin and end of the value of each member; and where the closing brace stands."""
    found: list[tuple[str, int, int]] = []
    at = _skip(plain, start + 1)
    while plain[at : at + 1] == b'"':
        key = _STRING.match(plain, at)
        if key is None:
            break
        name: str = json.loads(key[0])
        begin = _skip(plain, _skip(plain, key.end()) + 1)  # after the colon
        end = _value_end(plain, begin)
        found.append((name, begin, end))
        at = _skip(plain, end)
        if plain[at : at + 1] == b",":
            at = _skip(plain, at + 1)
    return found, at


def _skip(plain: bytes, at: int) -> int:
    found = _SPACE.match(plain, at)
    return found.end() if found is not None else at


def _value_end(plain: bytes, at: int) -> int:
    if plain[at : at + 1] == b'"':
        found = _STRING.match(plain, at)
        return found.end() if found is not None else len(plain)
    if plain[at : at + 1] not in (b"{", b"["):
        scalar = _SCALAR.match(plain, at)
        return scalar.end() if scalar is not None else at
    depth = 0
    for found in _STRUCTURE.finditer(plain, at):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(plain)
