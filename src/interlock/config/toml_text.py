"""TOML as text: find the line on which each key is written, and write values.

`tomllib` does not report lines. Call this with text that `tomllib` has accepted (lines end in "\\n"), because nothing
is validated again. Array entries are counted from 0: the second [[tool]] is ("tool", 1), the first origin
("node", "origins", 0).
"""

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'  # up to two quotes may stand before the closing three
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line number of every table, key and list entry in a valid TOML text."""
    return _Scanner(text).document()


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a key or, if it has none, of the nearest table that contains it.

    Return None if only the top level contains it.
    """
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path)


class _Scanner:
    """A scanner that reads a valid TOML text to find the line of each key."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}
        self._table_counts: dict[KeyPath, int] = {}

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while True:
            self._skip(_GAP)
            if self._at >= len(self._text):
                return self._lines
            if self._text.startswith("[", self._at):
                line = self._line()
                double = self._text.startswith("[[", self._at)
                brackets = 2 if double else 1
                self._at += brackets
                path: KeyPath = ()
                for part in self._take_dotted_key():
                    path = (*self._newest(path), part)
                    self._lines.setdefault(path, line)
                if double:
                    self._table_counts[path] = self._table_counts.get(path, 0) + 1
                path = self._newest(path)
                self._lines.setdefault(path, line)
                self._at += brackets
                table = path
            else:
                self._pair(table)

    def _newest(self, path: KeyPath) -> KeyPath:
        """Return the path of the last entry if `path` is a list of tables such as [[tool]]. Otherwise return `path`
        unchanged.

        Keys below a [[header]] belong to it.
        """
        count = self._table_counts.get(path)
        return path if count is None else (*path, count - 1)

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for part in self._take_dotted_key():
            path = (*path, part)
            self._lines.setdefault(path, line)
        self._at += 1  # =
        self._skip(_BLANK)
        self._value(path)

    def _take_dotted_key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip(_BLANK)
            if self._text[self._at] in "\"'":
                parts.append(str(tomllib.loads(f"key = {self._take(_STRING)}")["key"]))
            else:
                parts.append(self._take(_BARE_KEY))
            self._skip(_BLANK)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        match self._text[self._at]:
            case '"' | "'":
                self._skip(_STRING)
            case "[":
                for index, _ in enumerate(self._items("]")):
                    self._lines[(*path, index)] = self._line()
                    self._value((*path, index))
            case "{":
                for _ in self._items("}"):
                    self._pair(path)
            case _:
                self._skip(_SCALAR)

    def _items(self, closing: str) -> Iterator[None]:
        """Iterate over the items of an array or inline table. The caller reads each item before it asks for the next
        one.
        """
        self._at += 1
        while True:
            self._skip(_GAP)
            character = self._text[self._at]
            if character in (closing, ","):
                self._at += 1
            if character == closing:
                return
            if character != ",":
                yield

    def _take(self, pattern: re.Pattern[str]) -> str:
        start = self._at
        self._skip(pattern)
        return self._text[start : self._at]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _line(self) -> int:
        return bisect_right(self._line_ends, self._at) + 1


def toml_lines(table: Mapping[str, Any]) -> list[str]:
    """Return the members of a table as TOML, one line for each."""
    return [f"{name} = {toml_text(value)}" for name, value in table.items()]


def toml_text(value: Any) -> str:
    """Return a value as TOML on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows DEL, TOML does not
        case list() | tuple():
            return f"[{', '.join(toml_text(each) for each in value)}]"
        case dict():
            pairs = (f"{json.dumps(name)} = {toml_text(each)}" for name, each in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case _:
            raise TypeError(f"no TOML for {type(value).__name__}")
