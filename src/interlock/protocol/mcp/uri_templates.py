"""Whether a URI can come from a resource template (RFC 6570), for reads of a bare URI.

One peer writes the template, another the URI, and no pair of them may make matching slow: nothing backtracks. The set
of places a match can have reached is one integer, bit i for "the first i characters are used up", and every part of the
template moves all places at once.
"""

import functools
import re
from typing import Final

import msgspec

# A server may list thousands of templates, and all of them are tried.
TEMPLATE_CHARS_MAX: Final = 2048
EXPRESSIONS_MAX: Final = 20
URI_CHARS_MAX: Final = 8192

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class _Run(msgspec.Struct, frozen=True):
    """What an expression expands to: nothing, or `lead` and then any characters but those that end it."""

    lead: str
    ends: str


_RUNS: Final = {
    "": _Run("", "/?#"),
    "+": _Run("", ""),
    "#": _Run("#", ""),
    ".": _Run(".", "/?#"),
    "/": _Run("/", "?#"),
    ";": _Run(";", "/?#"),
    "?": _Run("?", "#"),
    "&": _Run("&", "#"),
}


class _Template(msgspec.Struct, frozen=True):
    head: str  # the literal before the first expression
    body: tuple[tuple[_Run, str], ...]  # each expression and the literal after it, but for the last literal
    last: _Run
    tail: str


def matches(template: str, uri: str) -> bool:
    if len(template) > TEMPLATE_CHARS_MAX or len(uri) > URI_CHARS_MAX:
        return False
    parts = _parts(template)
    if parts is None:
        return uri == template
    if not uri.startswith(parts.head) or not uri.endswith(parts.tail):
        return False
    reached = 1 << len(parts.head)
    for run, literal in parts.body:
        reached = _past_run(reached, uri, run)
        for character in literal:
            reached = (reached & _where(uri, character, False)) << 1
        if not reached:
            return False
    return bool(_past_run(reached, uri, parts.last) >> len(uri) - len(parts.tail) & 1)


@functools.lru_cache(maxsize=1024)
def _parts(template: str) -> _Template | None:
    """None where there is no expression, or more than we expand."""
    literals, runs, at = [], [], 0
    for found in _EXPRESSION.finditer(template):
        literals.append(template[at : found.start()])
        runs.append(_RUNS[found[1]])
        at = found.end()
    if not 0 < len(runs) <= EXPRESSIONS_MAX:
        return None
    return _Template(literals[0], tuple(zip(runs, literals[1:], strict=False)), runs[-1], template[at:])


def _past_run(reached: int, uri: str, run: _Run) -> int:
    inside = _where(uri, run.ends, True)
    began = (reached & _where(uri, run.lead, False)) << 1 if run.lead else reached
    # Adding carries each start through the ones above it, so that exclusive or leaves every place it can get to.
    return reached | began | ((began & inside) + inside) ^ inside


@functools.lru_cache(maxsize=64)
def _where(uri: str, characters: str, others: bool) -> int:
    """Bit i is set where character i of the URI is one of these, or one of the others."""
    return int("0" + "".join("01"[(one in characters) is not others] for one in reversed(uri)), 2)
