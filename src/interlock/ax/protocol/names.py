"""Names in the MCP-AX namespace: segments, local names, qualified names, client-safe aliases and resource URIs.

In come the names as servers list them and the segments an operator assigned; out come qualified names, aliases, and
withheld names with a reason a person can act on. Nothing here depends on the order in which names arrive: names that
would collide carry a hash of the server's own name, never a number, so a list stays the same after a restart.

    segment         plant                               assigned by an operator or a registration (4.1)
    local name      read_temperature                    from the server's own name readTemperature
    qualified name  plant.read_temperature              segments and local name, joined by dots
    alias           plant__read_temperature             for clients that accept only [A-Za-z0-9_-]{1,64} (3.2)
    resource URI    mcpx://... as mcpax://plant/mcpx:// the server's own URI below the segments, verbatim (3.1, ours)

A URI that an aggregator lists has this form already; each further hop puts one more segment in front. Removing a
prefix means cutting off a literal text.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

SEGMENT_MAX = 63  # MCP-AX 4.1
QUALIFIED_MAX = 255  # AX-4.1-4
ALIAS_MAX = 64  # what the strictest common model API takes as a tool name; AX-3.2-5

RESERVED_SEGMENTS = frozenset({"rooms", "names", "tools"})
OWN_TOOLS = frozenset({"notifications_dropped"})  # the aggregator's own one-segment names

DUPLICATE = "duplicate_in_manifest"  # the code of a name that a list has twice

_SEGMENT = re.compile(r"[a-z0-9_-]{1,63}")
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OUTSIDE_SEGMENT = re.compile(r"[^a-z0-9_-]")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}

_SHORTENED_HEAD = 54  # + "_" + 8 hex digits = SEGMENT_MAX; AX-4.1-3
_SHORTENED_DIGITS = 8  # AX-4.1-3
_UNWRITABLE = "name"  # the head of a name that contains no letter or digit of a segment
_ALIAS_HEAD = 16  # + "_H" + 10 hex digits + "_" + 35 = ALIAS_MAX; AX-C.3-2
_ALIAS_DIGITS = 10
_ALIAS_TAIL = 35


class WithheldName(msgspec.Struct, frozen=True, kw_only=True):
    """Name that is left out of a list, with the reason.

    `name` is the name as it was passed to the function that withheld it.
    """

    name: str
    reason: str
    code: str = ""  # the named error, if the reason is not the name itself
    is_tool: bool = True  # False: another item with a definition, such as prompts/greet


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """Local names for one server's list. `local_names` maps the server's own names to local names, in list order."""

    local_names: dict[str, str]
    withheld: tuple[WithheldName, ...]  # sorted by name


class Aliases(msgspec.Struct, frozen=True, kw_only=True):
    """Client-safe names (aliases) of all tools, and the names that are withheld because they share an alias.

    `qualified_names` maps each alias to its qualified name, in the order of input.
    """

    qualified_names: dict[str, str]
    withheld: tuple[WithheldName, ...]  # sorted by name


def is_segment(text: str) -> bool:
    return _SEGMENT.fullmatch(text) is not None  # AX-4.1-2


def check_segment(text: str) -> str | None:
    """Return why a subserver must not have the segment `text`, or None if it may.

    A text that fails `is_segment` is namespace_invalid. A text that passes and is still refused is namespace_conflict.
    """
    if not is_segment(text):  # AX-4.1-2
        return describe_malformed(text)
    if text in RESERVED_SEGMENTS:
        return f'segment "{text}" is reserved; choose another'
    if text in OWN_TOOLS:
        return f'segment "{text}" is the name of a tool of this node; choose another'
    return None


def describe_malformed(text: str) -> str:
    """Describe what is wrong with a text that is not a segment."""
    return f"segment {_display(text)} must be 1 to {SEGMENT_MAX} characters of a-z, 0-9, _ and -"


def normalise(original: str) -> str:
    """Return the local name for a tool name that a server chose. A valid segment stays unchanged.

    Every character becomes at least one character, so only an empty name has an empty result, which is not a segment.
    """
    if is_segment(original):  # most are, and the rest would leave it as it is
        return original
    # Characters beyond these cannot reach the result except through the hash; a peer chooses the length.
    head = original[: SEGMENT_MAX + 3]
    local = _OUTSIDE_SEGMENT.sub("_", _WORD_BOUNDARY.sub("_", head).translate(_ASCII_LOWER))
    if len(local) <= SEGMENT_MAX:  # AX-4.1-3
        return local
    return f"{local[:_SHORTENED_HEAD]}_{_digest(original, _SHORTENED_DIGITS)}"


def resolve_locals(originals: Sequence[str]) -> Resolution:
    """Return the local names for the tools of one server, and the names that cannot be listed.

    A name that is a valid segment stays unchanged. If several names would be rewritten to the same local name, each
    gets a hash of its original name instead; so does a name without any usable character. The result for one name never
    depends on the order of the list.

    A name that is listed twice is withheld, because its two definitions may have different safety classes. Remove
    byte-identical repeats before calling this function.
    """
    times_listed = Counter(originals)
    normalised = {original: normalise(original) for original in times_listed}
    times_claimed = Counter(normalised.values())
    locals_: dict[str, str] = {}
    for original, local in normalised.items():
        is_plain = original == local or (times_claimed[local] == 1 and local[:_SHORTENED_HEAD].strip("_-"))
        if not is_plain:
            head = local[:_SHORTENED_HEAD].strip("_-") or _UNWRITABLE
            local = f"{head}_{_digest(original, _SHORTENED_DIGITS)}"
        locals_[original] = local
    times_given = Counter(locals_.values())
    local_names: dict[str, str] = {}
    withheld: list[WithheldName] = []
    for original, local in locals_.items():
        if not original:
            withheld.append(WithheldName(name=original, reason="the name is empty"))
        elif (times := times_listed[original]) > 1:
            withheld.append(listed_twice(original, times))
        elif times_given[local] > 1 and local != normalised[original]:  # a hash that was chosen to collide
            withheld.append(WithheldName(name=original, reason=f'another tool is listed as "{local}"'))
        else:
            local_names[original] = local
    return Resolution(local_names=local_names, withheld=_in_order(withheld))


def listed_twice(name: str, times: int) -> WithheldName:
    """Return the record of a name that is withheld because a list defines it several times in different ways
    (REG-7.1-3).
    """
    reason = f"{DUPLICATE}: {_display(name)} is listed {times} times, with definitions that differ"
    return WithheldName(name=name, reason=reason, code=DUPLICATE)


def qualify(segments: Sequence[str], local: str) -> str | WithheldName:
    """Return the full name of a tool: the segments and the local name, joined by dots. If it is too long, return why it
    is withheld.
    """
    name = ".".join((*segments, local))
    if len(name) > QUALIFIED_MAX:  # AX-4.1-4: withheld, with the reason
        reason = f"the qualified name would have {len(name)} characters, the limit is {QUALIFIED_MAX}"
        return WithheldName(name=local, reason=f"{reason}; shorten a segment above it")
    return name


def is_qualified(text: str) -> bool:
    return len(text) <= QUALIFIED_MAX and all(is_segment(part) for part in text.split("."))  # AX-4.1-4


def read_dotted(name: str) -> tuple[str, ...] | None:
    """Return the segments of a dotted name that an aggregator lists, or None if a segment is invalid (MCP-AX 4.3)."""
    parts = tuple(name.split("."))
    return parts if all(map(is_segment, parts)) else None  # AX-4.3-1


def alias(qualified: str) -> str:
    """Return the client-safe name of a tool, for clients that accept only [A-Za-z0-9_-]{1,64}.

    Segments contain no upper case, so that neither the D of a separator nor the H of a shortened name can come from a
    segment.
    """
    # AX-3.2-5: distinct names. Underscores beside a dot, or two in a row, would make "__" ambiguous.
    is_ambiguous = "__" in qualified or "_." in qualified or "._" in qualified or "_" in (qualified[0], qualified[-1])
    spelled = qualified.replace(".", "_D_" if is_ambiguous else "__")
    if len(spelled) <= ALIAS_MAX:  # AX-3.2-5
        return spelled
    return f"{spelled[:_ALIAS_HEAD]}_H{_digest(qualified, _ALIAS_DIGITS)}_{spelled[-_ALIAS_TAIL:]}"


def may_collide(spelled: str) -> bool:
    """Return whether two names may share this alias. Only a shortened alias can collide."""
    return len(spelled) == ALIAS_MAX and "H" in spelled


def withhold_colliding_aliases(qualified_names: Iterable[str]) -> Aliases:
    """Return the client-safe names (aliases) of tools. If several tools would have the same alias, all of these are
    withheld.
    """
    claimants: dict[str, list[str]] = {}
    for name in dict.fromkeys(qualified_names):
        claimants.setdefault(alias(name), []).append(name)
    return Aliases(
        qualified_names={spelled: names[0] for spelled, names in claimants.items() if len(names) == 1},
        withheld=_in_order(
            WithheldName(name=name, reason=f'{len(names)} names share the alias "{spelled}"; rename a segment')
            for spelled, names in claimants.items()
            if len(names) > 1
            for name in names
        ),
    )


def _digest(text: str, digits: int) -> str:
    # JSON can contain a lone surrogate; it must not break the whole list.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _display(text: str) -> str:
    return ascii(text if len(text) <= SEGMENT_MAX else text[:SEGMENT_MAX] + "...")


def _in_order(withheld: Iterable[WithheldName]) -> tuple[WithheldName, ...]:
    return tuple(sorted(withheld, key=lambda item: item.name))


SCHEME: Final = "mcpax://"


def show_uri(path: str, uri: str, *, aggregator: bool) -> str:
    """Return the URI under which the tree lists a resource of a server.

    `path` contains the segments of its server, joined by dots.
    """
    if aggregator and uri.startswith(SCHEME):
        return f"{SCHEME}{path}.{uri[len(SCHEME) :]}"
    return f"{SCHEME}{path}/{uri}"


def maybe_own_uri(path: str, shown: str, *, aggregator: bool) -> str | None:
    """Return the URI by which the server at `path` knows a resource that is listed as `shown`. Return None if the
    resource is not below `path`.
    """
    if not shown.startswith(SCHEME + path):
        return None
    rest = shown[len(SCHEME) + len(path) :]
    if rest[:1] == "/":
        return rest[1:]
    return SCHEME + rest[1:] if aggregator and rest[:1] == "." else None


def is_nested(uri: str) -> bool:
    """Return whether a URI in the list of an aggregator is a tree URI: it has the scheme, valid segments and a URI
    after them.
    """
    head, slash, _ = uri[len(SCHEME) :].partition("/")
    return uri.startswith(SCHEME) and slash == "/" and is_qualified(head)


def nested_segments(uri: str) -> tuple[str, ...]:
    """Return the segments of a tree URI, or an empty tuple if `uri` is not a tree URI."""
    return read_dotted(uri[len(SCHEME) :].partition("/")[0]) or () if is_nested(uri) else ()


def bare_uri(uri: str) -> str:
    """Return the URI under which the server itself knows a resource: a tree URI without scheme and segments, or any
    other URI as it is.
    """
    return uri[len(SCHEME) :].partition("/")[2] if is_nested(uri) else uri
