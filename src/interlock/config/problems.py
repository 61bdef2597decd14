"""What is wrong with a configuration, said so that a person can fix it: where, what, and what to write instead.

    ConfigInvalid   the person's fault; holds every Problem found, in the order of the files and lines

A warning is a Problem that does not stop the node. Values are never repeated here unless they are names or choices:
anything else may be a secret.
"""

import difflib
from collections.abc import Iterable
from typing import Final

import msgspec

PROBLEMS_MAX: Final = 100  # more than a person fixes at once; bounds the work a hostile file can cause
SHOWN_MAX: Final = 60  # characters of a person's own word repeated in a message


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    file: str | None = None  # or "environment variable NAME", or "command line"
    line: int | None = None
    column: int | None = None
    key: str | None = None  # dotted: node.listen, access[0].who
    message: str
    hint: str | None = None
    code: str | None = None  # where the fault has a public one

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        return f"{place}: {text}" if place else text


class ConfigInvalid(Exception):
    """The configuration cannot be used. Nothing was started."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class Findings:
    """Collects problems and warnings while the configuration is read."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []
        self._left_out = 0

    @property
    def full(self) -> bool:
        return len(self._problems) >= PROBLEMS_MAX

    def problem(self, problem: Problem) -> None:
        if self.full:
            self._left_out += 1
        else:
            self._problems.append(problem)

    def warning(self, warning: Problem) -> None:
        if len(self._warnings) < PROBLEMS_MAX:
            self._warnings.append(warning)

    def problems(self) -> tuple[Problem, ...]:
        found = _in_reading_order(self._problems)
        if self._left_out:
            found += (Problem(message=f"{self._left_out} more problems are not shown; fix these first"),)
        return found

    def warnings(self) -> tuple[Problem, ...]:
        return _in_reading_order(self._warnings)


def quoted_word(word: str, most: int = SHOWN_MAX) -> str:
    """A person's own word inside a message: quoted, control characters escaped, cut when long."""
    return repr(word if len(word) <= most else word[: most - 1] + "…")


def _in_reading_order(found: list[Problem]) -> tuple[Problem, ...]:
    files = {file: order for order, file in reversed(list(enumerate(each.file for each in found)))}
    return tuple(sorted(found, key=lambda each: (files[each.file], each.line or 0)))


_WORD_MAX: Final = 64  # nothing known is longer; comparing more is work for nothing


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known word most like `word`, whatever its case and dashes; None when nothing is like it."""
    if len(word) > _WORD_MAX:
        return None
    plain = {_plain(each): each for each in known}
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=likeness)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")
