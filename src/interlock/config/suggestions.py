"""Which known word a person most likely meant. Pure."""

import difflib
from collections.abc import Iterable
from typing import Final

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
