"""Names like a name that is not listed: what a model probably meant.

First names that differ in separators and case alone, or end in the name (`read_file` for `files__read_file`); else
names spelled alike. Bounded: a caller may send any name, and as often as it likes.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

NEAR_MAX: Final = 3
NAME_MAX: Final = 128  # characters; nothing listed is longer
LIKENESS: Final = 0.75  # names of one server share their beginning
COMPARED_MAX: Final = 500  # names compared letter by letter: some milliseconds


def near_names(name: str, listed: Iterable[str]) -> list[str]:
    if not name or len(name) > NAME_MAX:
        return []
    known = list(listed)
    wanted = _plain(name)
    alike = [one for one in known if (plain := _plain(one)) == wanted or plain.endswith(f"_{wanted}")]
    if alike:
        return alike[:NEAR_MAX]
    first = wanted.partition("_")[0]
    likely = [one for one in known if _plain(one).startswith(first)] or known
    return get_close_matches(name, islice(likely, COMPARED_MAX), n=NEAR_MAX, cutoff=LIKENESS)


def _plain(name: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
