"""Names that look like registered ones: other alphabets, digits for letters, other separators, other case.

A name's skeleton is what is left when all that is taken away. Two names with one skeleton are told apart by no reader.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

SKELETON_CHARS_MAX: Final = 256

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
    """The registered names by their skeletons."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[str, str] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        self._names.setdefault(skeleton(name), name)

    def near(self, name: str) -> str | None:
        """The registered name that this one looks like and is not."""
        found = self._names.get(skeleton(name))
        return found if found != name else None
