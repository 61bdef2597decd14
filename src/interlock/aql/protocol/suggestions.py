"""What a caller may have meant: the nearest of some names, also across case, spelling and look-alike letters."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from heapq import nlargest
from itertools import pairwise
from typing import Final

from interlock.aql.protocol.tool_names import snake

KNOWN_MAX: Final = 300  # names that are looked through for pairs of letters; one takes some 2 us
COMPARED_MAX: Final = 20  # of these, the ones that are compared letter by letter; one takes some 100 us
NAME_CHARS_MAX: Final = 100
_LIKENESS: Final = 0.6
# Letters of other scripts that look like Latin ones (UTS 39), as far as names are made of them.
_LOOK_ALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u051b\u051d\u04bb\u043a\u043c\u0442\u043d\u0432"
    "\u03b1\u03b5\u03bf\u03c1\u03c4\u03c5\u03b9\u03ba\u03bd\u0131\u0261\u00df",
    "aeopcyxijsdqwhkmthbaeoptuiknigb",
)


def folded(name: str) -> str:
    """The form in which spellings of one name are the same: no case, no separators, no look-alike letters."""
    plain = unicodedata.normalize("NFKD", name[:NAME_CHARS_MAX]).casefold().translate(_LOOK_ALIKE)
    return "".join(sign for sign in plain if sign.isascii() and sign.isalnum())


def nearest(name: str, known: Sequence[str], most: int = 3) -> list[str]:
    """The nearest names, best first. `known` is read only as far as is cheap."""
    form = folded(name)
    same = [each for each in known if folded(each) == form] if len(known) <= KNOWN_MAX else []
    written = snake(name[:NAME_CHARS_MAX])
    pairs = _pairs(written)
    likely = nlargest(COMPARED_MAX, known[:KNOWN_MAX], key=lambda each: len(pairs & _pairs(each)))
    close = get_close_matches(written, likely, n=most, cutoff=_LIKENESS)
    return list(dict.fromkeys((*same, *close)))[:most]


@lru_cache(4096)
def _pairs(name: str) -> frozenset[str]:
    return frozenset(map("".join, pairwise(name)))


def ranked(name: str, candidates: Iterable[str], most: int) -> list[str]:
    """Candidates by how like they are to the name."""
    matcher = SequenceMatcher(b=snake(name[:NAME_CHARS_MAX]))

    def likeness(candidate: str) -> float:
        matcher.set_seq1(candidate)
        return matcher.ratio()

    return sorted(candidates, key=likeness, reverse=True)[:most]


def did_you_mean(unknown: Iterable[str], known: Sequence[str]) -> Mapping[str, str]:
    """Unknown name -> nearest known one, only where one is near."""
    found = {name: nearest(name, known, 1) for name in list(unknown)[:20]}
    return {name: near[0] for name, near in found.items() if near}
