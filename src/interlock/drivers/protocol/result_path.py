"""Paths of result_extract and patterns of result_parse: parsing and application (AIP-extract-1 to -3, -6, -8).

A path is `$` followed by any number of `.name`, `['any key']`, `["any key"]`, `[N]`, `[*]` and `[?(@.name=='text')]`.
`read_path` returns a `ResultPath`, or the position of an error. `ResultPath.find` returns the value at the end of the
path, or a `Miss`. Every step goes one level down, so no part of the value is visited twice.

A pattern comes from a driver, and the lines that it is applied to come from a server. With the module `re`, a server
could send lines that make a pattern extremely slow. `read_pattern` therefore compiles patterns with RE2, whose time is
linear in the length of the text. RE2 has no lookaround and no backreferences, because these cannot be matched in linear
time.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.wire.jsontext.canonical import quoted
from interlock.wire.schemas.budget import PATTERN_CHARS_MAX

PROGRAM_BYTES_MAX: Final = 1024 * 1024


class RecordPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A regular expression that turns a line of text into a record, with one field for each named group."""

    compiled: Any
    groups: tuple[str, ...]

    def record(self, line: str) -> dict[str, str] | None:
        """Return the record that a line of text contains, or None if the line does not match."""
        groups = self.compiled.fullmatch(line)
        if groups is None:
            return None
        return {name: groups[name] for name in self.groups if groups[name] is not None}


def read_pattern(text: str) -> RecordPattern | str:
    """Compile a regular expression, or return a text that says what is wrong with it."""
    if len(text) > PATTERN_CHARS_MAX:
        return f"a pattern has at most {PATTERN_CHARS_MAX} characters"
    try:
        import re2
    except ImportError:
        return "patterns need the package google-re2, which is not installed: pip install 'interlock[records]'"
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    try:
        compiled = re2.compile(text, options=options)
    except (re2.error, ValueError):
        return "this is no pattern of RE2: it has no lookaround and no references to groups"
    if not compiled.groupindex:
        return "the pattern names no part: write (?P<name>...) around each"
    named = sorted(compiled.groupindex, key=lambda name: int(compiled.groupindex[name]))
    return RecordPattern(compiled=compiled, groups=tuple(named))


PATH_CHARS_MAX: Final = 1024  # AIP-extract-3
STEPS_MAX: Final = 64  # deeper than results are; each [*] is one level of recursion
KEYS_SHOWN_MAX: Final = 20

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_STEP: Final = re.compile(
    rf"""\.(?P<name>{_NAME})
    | \[(?P<index>0|[1-9][0-9]{{0,14}})\]
    | (?P<each>\[\*\])
    | \['(?P<single>(?:[^'\\]|\\['\\])*)'\]
    | \["(?P<double>(?:[^"\\]|\\["\\])*)"\]
    | \[\?\(@\.(?P<member>{_NAME})=='(?P<text>(?:[^'\\]|\\['\\])*)'\)\]""",
    re.VERBOSE | re.ASCII,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class NameStep(msgspec.Struct, frozen=True):
    """A path step that selects an object member by name, as in `.name`."""

    key: str

    def __str__(self) -> str:
        return f".{self.key}" if re.fullmatch(_NAME, self.key) else f"[{_quoted(self.key)}]"


class IndexStep(msgspec.Struct, frozen=True):
    """A path step that selects an array element by index, as in `[N]`."""

    number: int

    def __str__(self) -> str:
        return f"[{self.number}]"


class EachStep(msgspec.Struct, frozen=True):
    """A path step that selects every element of an array: `[*]`."""

    def __str__(self) -> str:
        return "[*]"


class WhereStep(msgspec.Struct, frozen=True):
    """A path step that selects the array elements with a given text member, as in `[?(@.name=='text')]`."""

    member: str
    text: str

    def keeps(self, element: Any) -> bool:
        """Return whether an array element is selected by this step."""
        return isinstance(element, Mapping) and element.get(self.member) == self.text  # AIP-extract-1

    def __str__(self) -> str:
        return f"[?(@.{self.member}=={_quoted(self.text)})]"


Step = NameStep | IndexStep | EachStep | WhereStep


class PathFault(msgspec.Struct, frozen=True, kw_only=True):
    """Syntax error in a path: the position of the character, counted from 1, and what is wrong."""

    position: int
    reason: str


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """Result of following a path that leads nowhere: the step that failed, and what is there instead.

    `there` may contain names of members but never values.
    """

    step: Step
    there: str

    def __str__(self) -> str:
        return f"{self.step} leads nowhere: {self.there}"


class ResultPath(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed path such as $.rows[0].name, which selects a value in a server's result."""

    steps: tuple[Step, ...] = ()

    @property
    def only_name(self) -> str | None:
        """Return the name if the path is a single name such as $.content, otherwise None."""
        return self.steps[0].key if len(self.steps) == 1 and isinstance(self.steps[0], NameStep) else None

    def __str__(self) -> str:
        return "$" + "".join(map(str, self.steps))

    def find(self, value: Any) -> Any:
        """Return the value that the path leads to, or a Miss if it leads nowhere."""
        return _select(value, self.steps, 0)


def read_path(text: str) -> ResultPath | PathFault:
    """Parse a path, or return the position and the reason of its first error."""
    if len(text) > PATH_CHARS_MAX:
        return PathFault(position=PATH_CHARS_MAX + 1, reason=f"a path has at most {PATH_CHARS_MAX} characters")
    if not text.startswith("$"):  # AIP-extract-3
        return PathFault(position=1, reason="a path begins with $")
    steps: list[Step] = []
    at = 1
    while at < len(text):
        step_match = _STEP.match(text, at)
        if step_match is None:  # AIP-extract-3
            reason = "there is none of .name, ['key'], [N], [*], [?(@.name=='text')]"
            return PathFault(position=at + 1, reason=reason)
        match step_match.lastgroup:
            case "index":
                steps.append(IndexStep(int(step_match["index"])))
            case "each":
                steps.append(EachStep())
            case "text":
                steps.append(WhereStep(step_match["member"], _ESCAPED.sub(r"\1", step_match["text"])))
            case "single" | "double" as group:
                steps.append(NameStep(_ESCAPED.sub(r"\1", step_match[group])))
            case _:
                steps.append(NameStep(step_match["name"]))
        at = step_match.end()
    if len(steps) > STEPS_MAX:
        return PathFault(position=at, reason=f"a path has at most {STEPS_MAX} steps")
    return ResultPath(steps=tuple(steps))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _select(value: Any, steps: tuple[Step, ...], at: int) -> Any:
    for place in range(at, len(steps)):
        step = steps[place]
        match step:
            case NameStep(key):
                if not isinstance(value, Mapping) or key not in value:  # AIP-extract-6
                    return Miss(step=step, there=_describe(value))
                value = value[key]
            case IndexStep(number):
                if not _is_array(value) or number >= len(value):  # AIP-extract-6
                    return Miss(step=step, there=_describe(value))
                value = value[number]
            case EachStep() | WhereStep():
                if not _is_array(value):  # AIP-extract-2
                    return Miss(step=step, there=_describe(value))
                elements = value if isinstance(step, EachStep) else [each for each in value if step.keeps(each)]
                # AIP-extract-2: an element in which the rest of the path leads nowhere is left out. If it leads nowhere
                # in all of them, the path is a miss.
                results = [_select(each, steps, place + 1) for each in elements]
                hits = [each for each in results if not isinstance(each, Miss)]  # AIP-extract-2: left out
                return results[0] if results and not hits else hits  # AIP-extract-2, AIP-extract-6
    return value


def _is_array(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        if not value:
            return "there is an object without members"
        listed = ", ".join(quoted(key) for key in list(value)[:KEYS_SHOWN_MAX])
        more = f" and {len(value) - KEYS_SHOWN_MAX} more" if len(value) > KEYS_SHOWN_MAX else ""
        return f"there are {listed}{more}"
    if _is_array(value):
        return f"there is an array of {len(value)}"
    names = {type(None): "null", bool: "a boolean", str: "a string"}
    return f"there is {names.get(type(value), 'a number')}"
