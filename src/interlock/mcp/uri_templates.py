"""Matching of URIs with resource templates (RFC 6570), for reads of a bare URI.

One peer writes the template, another the URI, and no pair of them may make matching slow. A regular expression would
backtrack. Here the set of places that a match can have reached is one integer, in which bit i means "the first i
characters are used up". Each part of the template moves all places at once:

- A literal character keeps the places at which the URI has that character, and moves them by one.
- An expression spreads each place over the characters that its expansion may contain. The carry of an addition does
  that for all places in one step.

The work over all templates of a list is limited (`STEPS_MAX`), because a server may list thousands of them.
"""

import functools
import re
from typing import Final

import msgspec

# A server may list thousands of templates, and all of them are tried.
TEMPLATE_CHARS_MAX: Final = 2048
EXPRESSIONS_MAX: Final = 20
URI_CHARS_MAX: Final = 8192
STEPS_MAX: Final = 100_000  # characters of literals that one URI is compared with, over all templates: some 30 ms

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class _Expansion(msgspec.Struct, frozen=True):
    """The text that an expression of a template can expand to: nothing, or `lead` followed by any characters except
    those in `ends`.
    """

    lead: str
    ends: str


_EXPANSIONS: Final = {
    "": _Expansion("", "/?#"),
    "+": _Expansion("", ""),
    "#": _Expansion("#", ""),
    ".": _Expansion(".", "/?#"),
    "/": _Expansion("/", "?#"),
    ";": _Expansion(";", "/?#"),
    "?": _Expansion("?", "#"),
    "&": _Expansion("&", "#"),
}


class _Template(msgspec.Struct, frozen=True):
    """A template, split into its expressions and the literal text around them."""

    head: str  # the literal before the first expression
    body: tuple[tuple[_Expansion, str], ...]  # each expression and the literal after it, but for the last literal
    last: _Expansion
    tail: str


def matches(template: str, uri: str) -> bool:
    """Return whether a URI is a possible expansion of a template."""
    return Matcher(uri).matches(template)


class Matcher:
    """A comparison of one URI with many templates.

    Facts about the URI are computed once, and the work is bounded: after STEPS_MAX steps, no further template
    with an expression matches.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._steps_left = STEPS_MAX
        self._masks: dict[str, int] | None = None

    def matches(self, template: str) -> bool:
        uri = self._uri
        if len(template) > TEMPLATE_CHARS_MAX or len(uri) > URI_CHARS_MAX:
            return False
        parts = _parts(template)
        if parts is None:
            return uri == template
        if not uri.startswith(parts.head) or not uri.endswith(parts.tail):
            return False
        self._steps_left -= len(template) - len(parts.head) - len(parts.tail)
        if self._steps_left < 0:
            return False
        masks = self._masks = self._masks or _masks(uri)
        reached = 1 << len(parts.head)
        for run, literal in parts.body:
            reached = self._past_run(reached, run)
            for character in literal:
                reached = (reached & masks.get(character, 0)) << 1
                if not reached:
                    return False
        return bool(self._past_run(reached, parts.last) >> len(uri) - len(parts.tail) & 1)

    def _past_run(self, reached: int, run: _Expansion) -> int:
        masks = self._masks or {}
        inside = ~sum(masks.get(end, 0) for end in run.ends) & ((1 << len(self._uri)) - 1)
        began = (reached & masks.get(run.lead, 0)) << 1 if run.lead else reached
        # Adding carries each start through the ones above it, so that exclusive or leaves every place it can get to.
        return reached | began | ((began & inside) + inside) ^ inside


def _masks(uri: str) -> dict[str, int]:
    """Return a bit mask for each character of the URI. Bit i is set if the URI has that character at index i."""
    places: dict[str, bytearray] = {}
    for index, character in enumerate(uri):
        if character not in places:
            places[character] = bytearray(len(uri) // 8 + 1)
        places[character][index >> 3] |= 1 << (index & 7)
    return {character: int.from_bytes(bits, "little") for character, bits in places.items()}


@functools.lru_cache(maxsize=1024)
def _parts(template: str) -> _Template | None:
    """Split a template. Return None if it has no expression, or more expressions than the gateway supports."""
    literals, runs, at = [], [], 0
    for expression in _EXPRESSION.finditer(template):
        literals.append(template[at : expression.start()])
        runs.append(_EXPANSIONS[expression[1]])
        at = expression.end()
    if not 0 < len(runs) <= EXPRESSIONS_MAX:
        return None
    return _Template(literals[0], tuple(zip(runs, literals[1:], strict=False)), runs[-1], template[at:])
