"""Names of listed tools that resemble a name which is not listed."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

NEAR_MAX: Final = 3
NAME_MAX: Final = 128  # characters; nothing listed is longer
LIKENESS: Final = 0.75  # names of one server share their beginning
COMPARED_MAX: Final = 500  # names compared letter by letter: some milliseconds


def near_names(name: str, listed: Iterable[str]) -> list[str]:
    """Return listed names that resemble an unlisted name and that the caller probably meant.

    Names that differ only in separators and case, or that end in the name (`read_file` for `files__read_file`), come
    first; otherwise names with a similar spelling are returned. The work is bounded, because a caller may send any name
    as often as it likes.
    """
    from difflib import get_close_matches  # here, because an idle node needs it for nothing

    if not name or len(name) > NAME_MAX:
        return []
    names = list(listed)
    wanted = _plain(name)
    alike = [candidate for candidate in names if (plain := _plain(candidate)) == wanted or plain.endswith(f"_{wanted}")]
    if alike:
        return alike[:NEAR_MAX]
    first = wanted.partition("_")[0]
    likely = [candidate for candidate in names if _plain(candidate).startswith(first)] or names
    return get_close_matches(name, islice(likely, COMPARED_MAX), n=NEAR_MAX, cutoff=LIKENESS)


def _plain(name: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
