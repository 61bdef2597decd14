"""The grammar of surface names, vendor prefixes, authentication scopes and ~handles (draft section 4.2).

Beside the grammar are the comparisons of names: names that a reader could confuse (`is_lookalike`, `Lookalikes`), and
advice for a server that has registered and unregistered names side by side (`sibling_advice`).
"""

import re
import string
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from interlock.names.protocol.entry import NONE, RegistryEntry

NAME_OCTETS_MAX: Final = 64  # REG-4.2-4
AX_SEGMENT_MAX: Final = 63  # MCP-AX 4.1
ALIAS_BUDGET: Final = 48  # from here on a namespace prefix exceeds the 64 characters that common clients take

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)*")  # REG-4.2-1, REG-4.2-2, REG-4.2-3
_PREFIX: Final = re.compile(r"(?:[a-z][a-z0-9]*_)+")
_SCOPE: Final = re.compile(r"~?[a-z][a-z0-9-]*(?::[a-z0-9][a-z0-9._-]*)?")
_HANDLE: Final = re.compile(r"~[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_PRONOUN: Final = "~org"  # stands for the organisation of a session, and never names one

SCOPE_CLASSES: Final = frozenset(  # those that the draft's section 4.1 names
    ["public", "member-recognition", "trust-tier", "~handle-signed-token"]  # REG-4.1-6
)
# Scopes that demand a credential without saying which (criterion 4 of section 5).
AMBIGUOUS_SCOPES: Final = frozenset(
    ["", "authenticated", "auth", "user", "login", "private", "token", "yes", "any", "trust-tier"]  # REG-5-6
)


class NameFault(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a text is not a surface name. `offset` is the index of the character at fault."""

    code: str  # name_syntax or name_too_long
    offset: int
    reason: str


def is_name(text: str) -> bool:
    return len(text) <= NAME_OCTETS_MAX and _NAME.fullmatch(text) is not None


def find_name_fault(text: str) -> NameFault | None:
    """Return why a text is not a surface name, or None if it is one."""
    if len(text) > NAME_OCTETS_MAX and _NAME.fullmatch(text) is not None:  # REG-4.2-4
        reason = f"a surface name has at most {NAME_OCTETS_MAX} octets, this one has {len(text)}"
        return NameFault(code="name_too_long", offset=NAME_OCTETS_MAX, reason=reason)
    if is_name(text):
        return None
    offset, reason = _syntax_fault(text)
    return NameFault(code="name_syntax", offset=offset, reason=reason)


def _syntax_fault(text: str) -> tuple[int, str]:
    """Return the index of the fault in a text that is not a surface name, and the reason. The reason for a character
    that is not allowed suggests the surface name that was probably meant.
    """
    if not text:
        return 0, "a surface name is not empty"
    begins = True  # whether the next character begins a component
    for offset, each in enumerate(text):
        if each == "_":
            if begins:  # REG-4.2-1
                return offset, "a component between underscores has at least one letter"
            begins = True
        elif "0" <= each <= "9":
            if begins:  # REG-4.2-1
                return offset, f"a component begins with a letter, not with {each}"
        elif "a" <= each <= "z":
            begins = False
        else:
            break  # REG-4.2-3
    else:
        return len(text) - 1, "a surface name does not end with an underscore"
    shown = f"U+{ord(each):04X}" if not each.isascii() or not each.isprintable() else repr(each)
    if "." in text and is_name(text.rpartition(".")[2]):
        return offset, f"{shown} is not allowed; register the last segment alone: {text.rpartition('.')[2]}"
    spelt = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") if text.isascii() else ""
    hint = f"; {spelt} would be a surface name" if is_name(spelt) else ""
    return offset, f"{shown} is not allowed, only a to z, 0 to 9 and underscores{hint}"


def is_prefix(text: str) -> bool:
    return len(text) < NAME_OCTETS_MAX and _PREFIX.fullmatch(text) is not None  # REG-3-5


def covers(prefix: str, name: str) -> bool:
    """Return whether a name is under a prefix: it is longer than the prefix and continues with a new component."""
    return len(name) > len(prefix) and name.startswith(prefix)  # REG-3-5


def is_scope(text: str) -> bool:
    return len(text) <= 128 and _SCOPE.fullmatch(text) is not None


def scope_class(scope: str) -> str:
    """Return the class of credential that a scope requires, for example `trust-tier` for `trust-tier:engineering`."""
    return scope.partition(":")[0]


def is_handle(text: str) -> bool:
    """Return whether a text is a valid label of an operator (REG-3-4). A handle proves no identity."""
    return text != _PRONOUN and _HANDLE.fullmatch(text) is not None


def length_warnings(name: str) -> tuple[tuple[str, str], ...]:
    """Return the problems that a long name causes in other systems, as pairs of code and reason. Long names can be
    registered nevertheless (REG-4.2-4).
    """
    warnings = []
    if len(name) > AX_SEGMENT_MAX:  # REG-4.2-4
        warnings.append(("ax_segment_overflow", f"a segment of MCP-AX has at most {AX_SEGMENT_MAX} octets"))
    if len(name) >= ALIAS_BUDGET:  # REG-4.2-4
        reason = "with a namespace prefix it exceeds the 64 characters that common clients take"
        warnings.append(("alias_budget", reason))
    return tuple(warnings)


def is_lookalike(name: str, other: str) -> bool:
    """Return whether a reader could confuse two different names. Such names are one edit apart, or equal except for
    characters that look the same.
    """
    if name == other or abs(len(name) - len(other)) > 4:
        return False
    if _surface_skeleton(name) == _surface_skeleton(other):
        return True
    # One edit inserts, removes or changes one character, or exchanges two neighbours.
    if abs(len(name) - len(other)) > 1:
        return False
    short, long = sorted((name, other), key=len)
    start = 0
    while start < len(short) and short[start] == long[start]:
        start += 1
    if len(short) < len(long):
        return short[start:] == long[start + 1 :]
    if short[start + 1 :] == long[start + 1 :]:
        return True
    return short[start : start + 2] == long[start : start + 2][::-1] and short[start + 2 :] == long[start + 2 :]


def _surface_skeleton(name: str) -> str:
    """Return a simplified form of a surface name. Surface names that look alike have the same form."""
    return name.replace("0", "o").replace("1", "l").replace("rn", "m").replace("vv", "w").replace("_", "")


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
    """Return a simplified form of a name. Names that look alike, even if their letters come from different alphabets,
    have the same form.
    """
    text = name[:SKELETON_CHARS_MAX]
    if not text.isascii():
        folded = unicodedata.normalize("NFKD", text.casefold())
        text = "".join(each for each in folded if not unicodedata.combining(each)).translate(_ALIKE)
        text = "".join(each for each in text if unicodedata.category(each) not in ("Cf", "Cc"))
    return text.lower().translate(_PLAIN).replace("rn", "m").replace("vv", "w")


class Lookalikes:
    """An index of registered names that finds names which a reader could confuse.

    It finds names with the same skeleton, and names that are one edit apart. The skeleton of a name is what is left
    after folding case, other alphabets, digits that replace letters, and separators. An edit inserts, removes or
    changes one character, or exchanges two neighbours.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(names)
        self._skeletons: dict[str, str] = {}
        for name in sorted(self.names):
            self._skeletons.setdefault(skeleton(name), name)
        self._by_beginning = sorted(self.names)
        self._by_end = sorted(name[::-1] for name in self.names)

    def near(self, name: str) -> str | None:
        """Return a registered name that a reader could confuse with this name. Return None if there is none, or if this
        name itself is registered.
        """
        if name in self.names:
            return None
        if (alike := self._skeletons.get(skeleton(name))) is not None:
            return alike
        size = len(name)
        if not EDITED_CHARS_MIN <= size <= EDITED_CHARS_MAX:
            return None
        # An edit is tried only where the text before it begins a registered name and the text after it ends one.
        first = size - _longest_common_prefix(self._by_end, name[::-1]) - 2
        last = _longest_common_prefix(self._by_beginning, name)
        for at in range(max(first, 0), min(last, first + PLACES_MAX) + 1):
            match = next((each for each in _edited(name, at) if each in self.names), None)
            if match is not None:
                return match
        return None


def _longest_common_prefix(ordered: list[str], text: str) -> int:
    """Return the length of the longest prefix that a text has in common with one of the sorted texts."""
    place = bisect_left(ordered, text)
    return max((_common(each, text) for each in ordered[max(place - 1, 0) : place + 1]), default=0)


def _common(text: str, other: str) -> int:
    for count, (here, there) in enumerate(zip(text, other, strict=False)):
        if here != there:
            return count
    return min(len(text), len(other))


def _edited(name: str, at: int) -> Iterator[str]:
    """Yield every name that differs from this name by one edit at this index."""
    before, after = name[:at], name[at + 1 :]
    yield before + after
    if at + 1 < len(name):
        yield before + name[at + 1] + name[at] + name[at + 2 :]
    for each in _ALPHABET:
        yield before + each + after
        yield before + each + name[at:]


UNREGISTERED_SIBLING: Final = "unregistered_sibling"
PREFIX_ADVICE: Final = "prefix_advice"


class SiblingAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice about an unregistered name, given because the same server also offers registered names."""

    code: str
    reason: str


def sibling_advice(
    names: Collection[str], find_entry: Callable[[str], RegistryEntry | None]
) -> Mapping[str, SiblingAdvice]:
    """Return advice for unregistered names of a server that also offers registered names (REG-4.2-5), by name.
    `find_entry` returns the entry of a name, or None if it is not registered.

    A vendor should register all its surfaces under one prefix. No record says who runs a server, so it is assumed to be
    the only controller under whose prefixes the server offers names. No tool is refused because of this advice.
    """
    registered = {name: entry for name in names if (entry := find_entry(name)) is not None}
    vendors = {entry.vendor_prefix: entry for entry in registered.values() if entry.vendor_prefix != NONE}
    controllers = {entry.change_controller for entry in vendors.values()}
    if len(controllers) != 1:
        return {}
    (controller,) = controllers
    prefixes = " and ".join(sorted(vendors))
    advice: dict[str, SiblingAdvice] = {}
    for name in names:
        if name in registered or not is_name(name):
            continue
        if any(covers(prefix, name) for prefix in vendors):
            reason = f"{controller} registers names under {prefixes}, and this one is not registered"
            advice[name] = SiblingAdvice(code=UNREGISTERED_SIBLING, reason=reason)
        else:
            reason = f"names that {controller} registered stand beside it, under {prefixes}; this one does not"
            advice[name] = SiblingAdvice(code=PREFIX_ADVICE, reason=reason)
    return advice
