"""Versions: tests of versions against npm ranges, and the MCP version that a driver means.

Ranges are interpreted as in node-semver (AIP-30.implements-3). A range is a list of alternatives separated by ||. Each
alternative is converted to bounds (`_RangeBound`), all of which must hold: ^1.2.3 means >=1.2.3 and <2.0.0-0. A
pre-release is in a range only if one of the bounds is a pre-release with the same three numbers.
"""

import functools
import itertools
import operator
import re
from typing import Final, Literal, NamedTuple

TEXT_CHARS_MAX: Final = 256  # node-semver's own bound for a version; ours for a range too
PROTOCOL_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")  # AIP-proto-2
CALENDAR_MAJOR_MIN: Final = 1970  # a first number like 2026 is a year and says nothing about compatibility

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRE = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_TAIL = rf"(?:-(?P<pre>{_PRE}(?:\.{_PRE})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
_VERSION = re.compile(rf"[v=\s]*(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER}){_TAIL}", re.ASCII)
_PART = rf"(?:{_NUMBER}|[xX*])"
_PARTIAL = re.compile(rf"[v=\s]*(?P<major>{_PART})(?:\.(?P<minor>{_PART})(?:\.(?P<patch>{_PART}){_TAIL})?)?", re.ASCII)
_PYPI = re.compile(
    r"(?:[0-9]+!)?(?P<numbers>[0-9]+(?:\.[0-9]+)*)(?:[._-]?(?P<pre>(?:a|b|rc|alpha|beta)[0-9]*))?(?:\.?(?:post|dev)[0-9]*)?"
    r"(?:\+[0-9A-Za-z.]+)?",
    re.ASCII,
)
_COMPARATOR = re.compile(r"(?P<operator>~>|~|\^|>=|<=|>|<|=|)(?P<rest>.*)", re.DOTALL)
_HYPHEN = re.compile(r"\s*(?P<low>\S+)\s+-\s+(?P<high>\S+)\s*")
_GAP_AFTER_OPERATOR = re.compile(r"(~>|[<>]=?|[~^=])\s+")


Numbers = tuple[int, int, int]
PreRelease = tuple[tuple[int, int, str], ...]  # numbers sort below words; none at all sorts above everything
_LOWEST: PreRelease = ((0, 0, ""),)  # -0


class SemanticVersion(NamedTuple):
    """A semantic version. Versions are compared by `order`."""

    numbers: Numbers
    pre: PreRelease = ()

    @property
    def order(self) -> tuple[Numbers, bool, PreRelease]:
        """Return the key by which versions are sorted. A pre-release comes before its release."""
        return (self.numbers, not self.pre, self.pre)


class _RangeBound(NamedTuple):
    """A limit of a range of versions, such as >=1.2.0."""

    comparator: Literal["<", "<=", ">", ">=", "="]
    version: SemanticVersion

    def holds(self, version: SemanticVersion) -> bool:
        """Return whether a version is within this limit."""
        return bool(_COMPARE[self.comparator](version.order, self.version.order))


_COMPARE: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_NOTHING = _RangeBound("<", SemanticVersion((0, 0, 0), _LOWEST))


def parse_version(text: str) -> SemanticVersion | None:
    """Parse a semantic version. Return None if the text is not one."""
    parts = _VERSION.fullmatch(text.strip()) if len(text) <= TEXT_CHARS_MAX else None
    if parts is None:
        return None
    return SemanticVersion((int(parts["major"]), int(parts["minor"]), int(parts["patch"])), _pre(parts["pre"]))


def semantic(version: str) -> str:
    """Convert a PyPI version to npm's notation: 6.1 becomes 6.1.0, and 2.0rc1 becomes 2.0.0-rc1.

    Other texts are returned unchanged.
    """
    parts = _PYPI.fullmatch(version) if len(version) <= TEXT_CHARS_MAX and parse_version(version) is None else None
    if parts is None:
        return version
    numbers = (*(str(int(number)) for number in re.findall(r"[0-9]+", parts["numbers"])), "0", "0")
    return ".".join(numbers[:3]) + (f"-{parts['pre']}" if parts["pre"] else "")


def is_range(text: str) -> bool:
    """Return whether a text is a valid range of versions in npm's notation."""
    return _alternatives(text) is not None


def satisfies(version: str, range_text: str) -> bool | None:
    """Return whether a version is in a range, or None if the range is invalid.

    If `version` itself is invalid, return False.
    """
    alternatives = _alternatives(range_text)
    if alternatives is None:
        return None
    parsed = parse_version(version)
    if parsed is None:
        return False
    for bounds in alternatives:
        # AIP-30.implements-3: pre-releases
        allowing = (bound.version.numbers for bound in bounds if bound.version.pre and bound != _NOTHING)
        if all(bound.holds(parsed) for bound in bounds) and (not parsed.pre or parsed.numbers in allowing):
            return True
    return False


def protocol_version(written: str) -> str | None:
    """Return the supported MCP version that a text names, also in short form such as 2025-11. Return None if there is
    none (AIP-proto-2).

    A month (YYYY-MM) denotes the version of that month if there is only one.
    """
    if written in PROTOCOL_VERSIONS:
        return written
    # AIP-proto-2
    matching = [each for each in PROTOCOL_VERSIONS if each.startswith(f"{written}-")] if len(written) == 7 else []
    return matching[0] if len(matching) == 1 else None


@functools.lru_cache(maxsize=1024)
def _alternatives(text: str) -> tuple[tuple[_RangeBound, ...], ...] | None:
    """Parse a range of versions. Return the limits of each alternative, which `||` separates, or None if the range is
    invalid.
    """
    if len(text) > TEXT_CHARS_MAX:
        return None
    alternatives = [_bounds(part) for part in text.split("||")]
    return tuple(bounds for bounds in alternatives if bounds is not None) if None not in alternatives else None


def _bounds(part: str) -> tuple[_RangeBound, ...] | None:
    """Return the limits of one alternative of a range, or None if it is invalid."""
    if hyphen := _HYPHEN.fullmatch(part):
        part = f">={hyphen['low']} <={hyphen['high']}"
    bounds: list[_RangeBound] = []
    for word in _GAP_AFTER_OPERATOR.sub(r"\1", part).split():
        comparator = _COMPARATOR.fullmatch(word)
        partial = _PARTIAL.fullmatch(comparator["rest"]) if comparator is not None else None
        if comparator is None or partial is None:
            return None
        bounds += _range_bounds(comparator["operator"], partial)
    return tuple(bounds)


def _range_bounds(comparator: str, partial: re.Match[str]) -> list[_RangeBound]:
    """Return the limits that one comparator such as ^1.2 or >=1.x means. `partial` is the version after the
    operator.
    """
    # The numbers of the version up to the first x.
    parts = partial.group("major", "minor", "patch")
    written = [int(part) for part in itertools.takewhile(lambda part: part is not None and part.isdigit(), parts)]
    if not written:
        return [_NOTHING] if comparator in {"<", ">"} else []
    is_whole = len(written) == 3
    version = SemanticVersion(_pad(written), _pre(partial["pre"]) if is_whole else ())
    low = _RangeBound(">=", version)
    match comparator:
        case "^":
            fixed = next((place for place in range(len(written)) if written[place]), len(written) - 1)
            return [low, _below_next(written[: fixed + 1])]
        case "~" | "~>":
            return [low, _below_next(written[:2])]
        case "" | "=":
            return [_RangeBound("=", version)] if is_whole else [low, _below_next(written)]
        case ">" if not is_whole:
            return [_RangeBound(">=", SemanticVersion(_below_next(written).version.numbers))]
        case "<=" if not is_whole:
            return [_below_next(written)]
        case "<" if not is_whole:
            return [_RangeBound("<", SemanticVersion(version.numbers, _LOWEST))]
        case ">" | "<" | "<=":
            return [_RangeBound(comparator, version)]
    return [low]


def _pad(written: list[int]) -> Numbers:
    major, minor, patch = (*written, 0, 0)[:3]
    return (major, minor, patch)


def _below_next(written: list[int]) -> _RangeBound:
    """Return the upper limit of a version range: below the next version after `written`, and below the pre-releases of
    that next version.
    """
    return _RangeBound("<", SemanticVersion(_pad([*written[:-1], written[-1] + 1]), _LOWEST))


def _pre(text: str | None) -> PreRelease:
    if text is None:
        return ()
    return tuple((0, int(each), "") if each.isdigit() else (1, 0, each) for each in text.split("."))
