"""The names of one list, settled according to who offers it (MCP-AX 4.1, 4.3), and names that resemble each other.

An unmodified server's names are normalised. A registered leaf may have no dots in them; an aggregator's are dotted, and
every part must be valid as it is. Names that MCP-AX forbids a registrant end its registration.
"""

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

import msgspec

from interlock.ax.protocol.hop_metadata import Offer
from interlock.ax.protocol.names import WithheldName, listed_twice, read_dotted, resolve_locals
from interlock.links.listing import Items
from interlock.mcp.items import Item
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import NAMESPACE_INVALID, Refusal, ax_refusal

INVALID_NAMES_MAX: Final = 100  # how many of them a refusal repeats
INVALID_NAME_CHARS_MAX: Final = 128


class SettledNames(msgspec.Struct, frozen=True):
    """One list with its names settled: (original, item, segments below the server, local name)."""

    items: list[tuple[str, Item, tuple[str, ...], str]]
    withheld: tuple[WithheldName, ...]
    invalid: list[str]


def settle_names(offer: Offer, items: Items) -> SettledNames:
    named = _distinct(items)
    if offer.is_aggregator:
        return _dotted_names(named)
    invalid = [name for name, _ in named if "." in name] if offer.kind == "leaf" else []  # AX-4.3-1
    resolution = resolve_locals([name for name, _ in named])
    locals_ = resolution.local_names
    return SettledNames(
        [(original, item, (), locals_[original]) for original, item in named if original in locals_],
        resolution.withheld,
        invalid,
    )


def _dotted_names(named: list[tuple[str, Item]]) -> SettledNames:
    times = Counter(name for name, _ in named)
    ways: dict[tuple[str, ...], tuple[str, ...]] = {}  # thousands of tools share a way
    settled, invalid = [], []
    for name, item in named:
        parts = read_dotted(name)
        if parts is None:  # AX-4.3-1, AX-4.3-2
            invalid.append(name)
        elif times[name] == 1:
            settled.append((name, item, ways.setdefault(parts[:-1], parts[:-1]), parts[-1]))
    twice = sorted(name for name, count in times.items() if count > 1)
    return SettledNames(settled, tuple(listed_twice(name, times[name]) for name in twice), invalid)


def refuse_names(offer: Offer, names: list[str]) -> Refusal:
    why = (
        "each part of a name that an aggregator lists must be 1 to 63 characters of a-z, 0-9, _ and -"
        if offer.is_aggregator
        else "a leaf's names hold no dots: register as an aggregator, or rename the tools"
    )
    shown = [name[:INVALID_NAME_CHARS_MAX] for name in names[:INVALID_NAMES_MAX]]
    return ax_refusal(NAMESPACE_INVALID, why, names=shown)  # AX-4.3-1


def _distinct(items: Items) -> list[tuple[str, Item]]:
    """Drop repeated items that are equal to the byte. A differing repeat stays, and its name is refused."""
    seen: dict[str, Item] = {}
    distinct = []
    for name, item in items.items:
        if name in seen and encode_value(seen[name]) == encode_value(item):
            continue
        seen[name] = item
        distinct.append((name, item))
    return distinct


NEAR_MAX: Final = 3
NAME_MAX: Final = 128  # characters; nothing listed is longer
LIKENESS: Final = 0.75  # names of one server share their beginning
COMPARED_MAX: Final = 500  # names compared letter by letter: some milliseconds


def near_names(name: str, listed: Iterable[str]) -> list[str]:
    """Return listed names that resemble a name that is not listed: what a model probably meant.

    Names that differ only in separators and case, or that end in the name (`read_file` for `files__read_file`), come
    first; otherwise names with a similar spelling. The work is bounded, because a caller may send any name as often as
    it likes.
    """
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
