"""What is wrong with a configuration, where it is, and what to write instead.

    ConfigInvalid   the person's fault; holds every Problem, in the order of files and lines

A warning is a Problem that does not stop the node. Messages never repeat a value unless it is a name or a choice:
anything else may be a secret.

A `Layer` is one source of settings (a file, the environment, the command line). An `At` is one key in one layer: value
types read the value `at` it and report there what is wrong.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.config.toml_text import KeyPath

PROBLEMS_MAX: Final = 100  # more than a person fixes at once; bounds the work a hostile file can cause
_BARE_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
SHOWN_MAX: Final = 60  # characters of a person's own word repeated in a message


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A mistake in the configuration, or a warning: its place, a message, and what to write instead."""

    file: str | None = None  # or "environment variable NAME", or "command line"
    line: int | None = None
    column: int | None = None
    key: str | None = None  # dotted: node.listen, access[0].who
    message: str
    hint: str | None = None
    code: str | None = None  # where the fault has a public one

    @property
    def prefix(self) -> str:
        """Return the place as `file:line:column: `, which editors and terminals recognise, or an empty text if the
        place is unknown.
        """
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: " if place else ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.message}; {self.hint}" if self.hint else f"{self.prefix}{self.message}"


class ConfigInvalid(Exception):
    """An error raised if the configuration cannot be used. It has all problems that were found."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class Findings:
    """The problems and warnings collected while the configuration is read."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []
        self._left_out = 0

    @property
    def full(self) -> bool:
        """Return whether the maximum number of problems is reached, so that further ones will not be shown."""
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
        problems = _in_reading_order(self._problems)
        if self._left_out:
            problems += (Problem(message=f"{self._left_out} more problems are not shown; fix these first"),)
        return problems

    def warnings(self) -> tuple[Problem, ...]:
        return _in_reading_order(self._warnings)


def quoted_word(word: str, most: int = SHOWN_MAX) -> str:
    """Return a word from the configuration in quotes for a message. Control characters are escaped, and a long word is
    cut.
    """
    return repr(word if len(word) <= most else word[: most - 1] + "…")


def _in_reading_order(problems: list[Problem]) -> tuple[Problem, ...]:
    files = {file: order for order, file in reversed(list(enumerate(each.file for each in problems)))}
    return tuple(sorted(problems, key=lambda each: (files[each.file], each.line or 0)))


_WORD_MAX: Final = 64  # nothing known is longer; comparing more is work for nothing


def nearest(word: str, words: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the word of `words` that is most similar to `word`. Upper case and dashes do not count.

    Return None if none has at least the similarity `likeness`.
    """
    from difflib import get_close_matches  # here, because an idle node needs it for nothing

    if len(word) > _WORD_MAX:
        return None
    plain = {each.lower().replace("-", "_"): each for each in words}
    matches = get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=likeness)
    return plain[matches[0]] if matches else None


class WrongValue:
    """The type of WRONG, which is returned for an invalid value after its problem was reported."""


WRONG: Final = WrongValue()


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """The settings from one source, such as a file, the environment or the command line."""

    tree: dict[str, Any]
    base: Path  # the folder relative paths start from
    locate: Callable[[KeyPath], tuple[str, int | None]]  # the file (or what stands for it) and line of a path


class ConfigContext(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings in which a configuration is read: environment variables and the home folder."""

    env: Mapping[str, str]
    home: Path
    starting: bool = True  # whether what `${env:NAME}` stands for will be used


class At(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The place of one key in one source of settings. Values are read from it, and problems are reported at it.

    `table` is the part of the path that names the enclosing table. Messages show it separately from the key. All places
    inside a table share two lists: `substituted` contains the values inserted for ${env:NAME}, and `unset` contains the
    names of missing variables.
    """

    layer: Layer
    around: ConfigContext
    findings: Findings
    path: KeyPath = ()
    table: KeyPath = ()
    substituted: list[str] = []
    unset: list[str] = []  # variables of a server that the environment lacks

    def inside(self, part: str | int) -> "At":
        """Return the place of a key or entry inside the value at this place."""
        return msgspec.structs.replace(self, path=(*self.path, part))

    def enter(self, *parts: str | int) -> "At":
        """Return the place of a table inside this place. Messages about keys of the table contain its name.

        It has separate lists of inserted values and missing variables.
        """
        path = (*self.path, *parts)
        return msgspec.structs.replace(self, path=path, table=path, substituted=[], unset=[])

    @property
    def worth_reporting(self) -> bool:
        """Return whether a further problem would still be shown. It would not after PROBLEMS_MAX problems."""
        return not self.findings.full

    @property
    def name(self) -> str:
        """Return the name of this place for a message, such as "entry 2 of allow in [servers.files]"."""
        words = ""
        for part in self.path[len(self.table) :]:
            word = quoted_word(part) if isinstance(part, str) else f"entry {part + 1}"
            words = f"{word} of {words}" if words else word
        if not words:
            return self.title
        return f"{words} in {self.title}" if self.table else words

    @property
    def title(self) -> str:
        """Return the name of the enclosing table for a message, such as "[node]"."""
        if self.table and isinstance(self.table[-1], int):
            return f"[[{dotted_name(self.table[:-1])}]] number {self.table[-1] + 1}"
        return f"[{dotted_name(self.table)}]" if self.table else "the top level"

    def wrong(self, message: str, hint: str | None = None, *, code: str | None = None) -> WrongValue:
        """Report a problem at this place, and return WRONG."""
        problem = self.problem(message, hint, code) if self.worth_reporting else Problem(message=message)
        self.findings.problem(problem)
        return WRONG

    def must_be(self, what: str, value: object, hint: str | None = None) -> WrongValue:
        """Report that the value has the wrong type, and return WRONG. `what` names the expected type."""
        return self.wrong(f"{self.name} must be {what}, not {type_word(value)}", hint)

    def warn(self, message: str, hint: str | None = None) -> None:
        """Report a warning at this place."""
        self.findings.warning(self.problem(message, hint))

    def problem(self, message: str, hint: str | None = None, code: str | None = None) -> Problem:
        """Return a problem at this place without reporting it."""
        file, line = self.layer.locate(self.path)
        return Problem(file=file, line=line, key=dotted_name(self.path) or None, message=message, hint=hint, code=code)


def dotted_name(path: KeyPath) -> str:
    """Return the path of a key as people write it, such as access[0].who.

    A word that is no plain TOML key is quoted and cut.
    """
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        word = part if _BARE_PART.fullmatch(part) and len(part) <= SHOWN_MAX else quoted_word(part)
        text += f".{word}" if text else word
    return text


_TYPE_WORDS: Final = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
}


def type_word(value: object) -> str:
    """Return the name of a value's type for a message, such as "a list"."""
    return _TYPE_WORDS.get(type(value), "a date or time")
