"""Names that look like registered ones: other alphabets, digits for letters, other separators, other case, one edit.

A name's skeleton is what is left when all that is taken away. Two names with one skeleton are told apart by no reader.
An edit is a character more, less or another, or two neighbours exchanged.
"""

import string
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

SKELETON_CHARS_MAX: Final = 256
EDITED_CHARS_MIN: Final = 5  # of shorter names, many are one edit apart
EDITED_CHARS_MAX: Final = 65  # one more than a name has
PLACES_MAX: Final = 24  # at which an edit is tried
_ALPHABET: Final = f"{string.ascii_lowercase}{string.digits}_"

# Letters of other alphabets that are drawn like one of a to z, after case is folded.
_DRAWN_ALIKE: Final = {
    "а": "a", "ɑ": "a", "α": "a", "Ь": "b", "ь": "b", "с": "c", "ϲ": "c", "ԁ": "d", "е": "e", "є": "e", "ε": "e",
    "ɡ": "g", "һ": "h", "і": "i", "ı": "i", "ι": "i", "ɩ": "i", "ј": "j", "κ": "k", "к": "k", "ⅼ": "l", "ӏ": "l",
    "м": "m", "ո": "n", "η": "n", "о": "o", "ο": "o", "օ": "o", "σ": "o", "р": "p", "ρ": "p", "ԛ": "q", "г": "r",
    "ѕ": "s", "τ": "t", "т": "t", "υ": "u", "ս": "u", "ν": "v", "ѵ": "v", "ԝ": "w", "ω": "w", "х": "x", "χ": "x",
    "у": "y", "γ": "y", "ʏ": "y", "ᴢ": "z",
}  # fmt: skip
_PLAIN: Final = str.maketrans({"0": "o", "1": "l", "i": "l", "5": "s", "_": "", "-": "", ".": "", "/": "", " ": ""})
_ALIKE: Final = str.maketrans(_DRAWN_ALIKE)


def skeleton(name: str) -> str:
    text = name[:SKELETON_CHARS_MAX]
    if not text.isascii():
        folded = unicodedata.normalize("NFKD", text.casefold())
        text = "".join(each for each in folded if not unicodedata.combining(each)).translate(_ALIKE)
        text = "".join(each for each in text if unicodedata.category(each) not in ("Cf", "Cc"))
    return text.lower().translate(_PLAIN).replace("rn", "m").replace("vv", "w")


class Lookalikes:
    """The registered names by their skeletons, and in the order of their beginnings and of their ends."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self._skeletons: dict[str, str] = {}
        for name in sorted(self.names):
            self._skeletons.setdefault(skeleton(name), name)
        self._by_beginning = sorted(self.names)
        self._by_end = sorted(name[::-1] for name in self.names)

    def near(self, name: str) -> str | None:
        """The registered name that this one looks like and is not."""
        if name in self.names:
            return None
        return self._skeletons.get(skeleton(name)) or self._maybe_one_edit(name)

    def _maybe_one_edit(self, name: str) -> str | None:
        """Only where an edit can be is one tried: what stands before it begins a registered name, and what stands after
        it ends one."""
        size = len(name)
        if not EDITED_CHARS_MIN <= size <= EDITED_CHARS_MAX:
            return None
        first = size - _shared(self._by_end, name[::-1]) - 2
        last = _shared(self._by_beginning, name)
        for at in range(max(first, 0), min(last, first + PLACES_MAX) + 1):
            found = next((each for each in _edited(name, at) if each in self.names), None)
            if found is not None:
                return found
        return None


def _shared(ordered: list[str], text: str) -> int:
    """How many characters of a text begin one of these, which are in order."""
    place = bisect_left(ordered, text)
    return max((_common(each, text) for each in ordered[max(place - 1, 0) : place + 1]), default=0)


def _common(one: str, other: str) -> int:
    for count, (here, there) in enumerate(zip(one, other, strict=False)):
        if here != there:
            return count
    return min(len(one), len(other))


def _edited(name: str, at: int) -> Iterator[str]:
    before, after = name[:at], name[at + 1 :]
    yield before + after
    if at + 1 < len(name):
        yield before + name[at + 1] + name[at] + name[at + 2 :]
    for each in _ALPHABET:
        yield before + each + after
        yield before + each + name[at:]
