"""Where a setting was written, and how a reader of settings speaks about that place.

A `Layer` is one source (a file, the environment, the command line). An `At` is one key in one layer: kinds read a value
`at` it, and report there what is wrong. No value is read from anywhere but the layer and the `ConfigContext` given.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.config.problems import SHOWN_MAX, Findings, Problem, quoted_word
from interlock.config.toml_text import KeyPath

_BARE_PART = re.compile(r"[A-Za-z0-9_-]+")


class WrongValue:
    """What reading gives for a value that was refused; the reason is among the findings."""


WRONG: Final = WrongValue()


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    tree: dict[str, Any]
    base: Path  # the folder relative paths start from
    locate: Callable[[KeyPath], tuple[str, int | None]]  # the file (or what stands for it) and line of a path


class ConfigContext(msgspec.Struct, frozen=True, kw_only=True):
    env: Mapping[str, str]
    home: Path
    starting: bool = True  # whether what `${env:NAME}` stands for will be used


class At:
    """One place in one layer. `table` is the part of the path that names the table around it."""

    __slots__ = ("_findings", "around", "layer", "path", "substituted", "table", "unset")

    def __init__(
        self,
        layer: Layer,
        around: ConfigContext,
        findings: Findings,
        *,
        path: KeyPath = (),
        table: KeyPath = (),
        substituted: list[str] | None = None,
        unset: list[str] | None = None,
    ) -> None:
        self.layer = layer
        self.around = around
        self.path = path
        self.table = table
        self.substituted: list[str] = [] if substituted is None else substituted
        self.unset: list[str] = [] if unset is None else unset  # variables of a server that the environment lacks
        self._findings = findings

    def inside(self, part: str | int) -> "At":
        path = (*self.path, part)
        place = (self.layer, self.around, self._findings)
        return At(*place, path=path, table=self.table, substituted=self.substituted, unset=self.unset)

    def enter(self, *parts: str | int) -> "At":
        """The place as a table of its own, which remembers apart what `${env:NAME}` put into it."""
        path = (*self.path, *parts)
        return At(self.layer, self.around, self._findings, path=path, table=path)

    @property
    def worth_reporting(self) -> bool:
        return not self._findings.full

    @property
    def name(self) -> str:
        words = ""
        for part in self.path[len(self.table) :]:
            word = quoted_word(part) if isinstance(part, str) else f"entry {part + 1}"
            words = f"{word} of {words}" if words else word
        if not words:
            return self.title
        return f"{words} in {self.title}" if self.table else words

    @property
    def title(self) -> str:
        if self.table and isinstance(self.table[-1], int):
            return f"[[{dotted_name(self.table[:-1])}]] number {self.table[-1] + 1}"
        return f"[{dotted_name(self.table)}]" if self.table else "the top level"

    def wrong(self, message: str, hint: str | None = None, *, code: str | None = None) -> WrongValue:
        if self.worth_reporting:
            self._findings.problem(self.problem(message, hint, code))
        else:
            self._findings.problem(Problem(message=message))
        return WRONG

    def must_be(self, what: str, value: object, hint: str | None = None) -> WrongValue:
        return self.wrong(f"{self.name} must be {what}, not {type_word(value)}", hint)

    def warn(self, message: str, hint: str | None = None) -> None:
        self._findings.warning(self.problem(message, hint))

    def problem(self, message: str, hint: str | None = None, code: str | None = None) -> Problem:
        """A complaint about this place, for a fault found after the configuration was read."""
        file, line = self.layer.locate(self.path)
        return Problem(file=file, line=line, key=dotted_name(self.path) or None, message=message, hint=hint, code=code)


def dotted_name(path: KeyPath) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        word = part if _BARE_PART.fullmatch(part) and len(part) <= SHOWN_MAX else quoted_word(part)
        text += f".{word}" if text else word
    return text


def type_word(value: object) -> str:
    match value:
        case bool():
            return "true or false"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"
