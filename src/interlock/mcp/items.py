"""List items on their way to a client: renamed, annotated, and otherwise the bytes that the server sent.

Unknown members, their order and every value pass. Across eras, only what the other era forbids is changed: a legacy
client needs object schemas for properties and outputs, and has no use for `execution` of another era.

The module also has our cursor over a merged list. It contains the key after which the list continues, not a position:
paging stays right while servers come and go, and the node keeps no state for it.

`Matcher` matches URIs with resource templates (RFC 6570), for reads of a bare URI. One peer writes the template,
another the URI, and no pair of them may make matching slow. A regular expression would backtrack. Here the set of
places that a match can have reached is one integer, in which bit i means "the first i characters are used up". Each
part of the template moves all places at once:

- A literal character keeps the places at which the URI has that character, and moves them by one.
- An expression spreads each place over the characters that its expansion may contain. The carry of an addition does
  that for all places in one step.

The work over all templates of a list is limited (`STEPS_MAX`), because a server may list thousands of them.
"""

import base64
import functools
import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string

# Our own cursor over a merged list: the key after which to go on.
#
# It names a place in the order, not a position in a version of the list, so paging stays right while servers come and
# go, and no state is kept for it.

CURSOR_BYTES_MAX = 2 * 1024 * 1024  # the key may be a URI as long as a list item (1 MiB), and base64 adds a third
_PREFIX = b"il1:"


def encode_cursor(after: str) -> str:
    """Encode the key after which a list continues as a cursor."""
    return base64.urlsafe_b64encode(_PREFIX + after.encode()).decode().rstrip("=")


def decode_cursor_untrusted(cursor: str) -> str | None:
    """Return the key in a cursor, or None if this gateway did not write the cursor."""
    if len(cursor) > CURSOR_BYTES_MAX:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        after = raw[len(_PREFIX) :].decode()
    except ValueError:
        return None
    return after if encode_cursor(after) == cursor else None


Item = dict[str, Raw]

_FORBIDDEN: Final = b'"forbidden"'  # what a tool says of tasks by saying nothing
_OBJECT_TYPE: Final = b'"object"'
# Before 2026-07-28 the schema of a property is an object; these say the same.
_AS_OBJECT: Final = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}


def tool_item(
    item: Item, *, name: str, meta: dict[str, Any], hints: dict[str, bool], server: Era, client: Era, tasks: bool = True
) -> bytes:
    """Encode a tool for a client. `server` and `client` are the eras of the two sides. `tasks` says whether the server
    can run calls of the tool as tasks.
    """
    shown: dict[str, Any] = dict(item)
    shown["name"] = name
    if not tasks and "execution" in shown:
        # Remove what a tool says about tasks, because its server does not support them (2025-11-25). `forbidden`
        # stays, because it means the same as leaving the member out.
        execution = decode_object(shown["execution"])
        if execution is not None and find_string(execution.get("taskSupport", _FORBIDDEN)) != "forbidden":
            del execution["taskSupport"]
            shown["execution"] = execution
    if server is not client:
        if client is Era.MODERN:
            shown.pop("execution", None)  # 2025-11-25 only
        else:
            for member in ("inputSchema", "outputSchema"):
                schema = decode_object(shown[member]) if member in shown else None
                if schema is not None and bytes(schema.get("type", b"")) == _OBJECT_TYPE:
                    properties = decode_object(schema.get("properties", Raw(b"{}"))) or {}
                    if any(bytes(subschema) in _AS_OBJECT for subschema in properties.values()):
                        named = {key: _AS_OBJECT.get(bytes(value), value) for key, value in properties.items()}
                        shown[member] = {**schema, "properties": named}
                elif member == "outputSchema":
                    shown.pop(member, None)  # before 2026-07-28 an output is an object
    if hints:
        shown["annotations"] = _merge(item.get("annotations"), hints)
    if meta or "_meta" in item:
        shown["_meta"] = _merge(item.get("_meta"), meta)
    return encode_value(shown)


def prompt_item(item: Item, *, name: str, meta: dict[str, Any]) -> bytes:
    """Encode a prompt for a client, under another name and with additional metadata."""
    shown: dict[str, Any] = dict(item)
    shown["name"] = name
    if meta:
        shown["_meta"] = _merge(item.get("_meta"), meta)
    return encode_value(shown)


def resource_item(item: Item, *, member: str, uri: str) -> bytes:
    """Encode a resource or a template for a client. `member` is the member that contains the URI or the URI
    template.
    """
    shown: dict[str, Any] = dict(item)
    shown[member] = uri
    return encode_value(shown)


def find_value(item: Item, member: str) -> Any:
    """Return the decoded member of a list item, or None if the member is absent or cannot be decoded."""
    if (raw := item.get(member)) is None:
        return None
    try:
        return decode_value(raw)
    except CodecError:
        return None


def _merge(raw: Raw | None, extra: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the members of `extra` added. They replace members with the same name."""
    return {**((decode_object(raw) if raw is not None else None) or {}), **extra}


# A server may list thousands of templates, and all of them are tried.
TEMPLATE_CHARS_MAX: Final = 2048
EXPRESSIONS_MAX: Final = 20
URI_CHARS_MAX: Final = 8192
STEPS_MAX: Final = 100_000  # characters of literals that one URI is compared with, over all templates: some 30 ms

_EXPRESSION: Final = re.compile(r"\{([+#./;?&]?)[^{}]*\}")


class _Expansion(msgspec.Struct, frozen=True):
    """The text by which an expression of a URI template can be replaced: nothing, or `lead` followed by any characters
    except those in `ends`.
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
    """A matcher of one URI against many URI templates.

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
        if (parts := _parts(template)) is None:
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
    """Return, for each character in the URI, an integer as a bit mask. Bit i is set if the URI has the character at
    index i.
    """
    places: dict[str, bytearray] = {}
    for index, character in enumerate(uri):
        if character not in places:
            places[character] = bytearray(len(uri) // 8 + 1)
        places[character][index >> 3] |= 1 << (index & 7)
    return {character: int.from_bytes(bits, "little") for character, bits in places.items()}


@functools.lru_cache(maxsize=1024)
def _parts(template: str) -> _Template | None:
    """Split a URI template into its parts. Return None if it contains no expression, or more expressions than the
    gateway supports.
    """
    literals, runs, at = [], [], 0
    for expression in _EXPRESSION.finditer(template):
        literals.append(template[at : expression.start()])
        runs.append(_EXPANSIONS[expression[1]])
        at = expression.end()
    if not 0 < len(runs) <= EXPRESSIONS_MAX:
        return None
    return _Template(literals[0], tuple(zip(runs, literals[1:], strict=False)), runs[-1], template[at:])
