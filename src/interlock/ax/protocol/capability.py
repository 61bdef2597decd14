"""The capability annotation of a tool (MCP-AX 9.1): read, derive, override, publish.

In come decoded JSON values: the annotation that the server declared under _meta["x-mcpax-capability"], its MCP
annotations, and the operator's overrides. Out comes one complete Capability, or InvalidAnnotation. A tool with an
invalid annotation is withheld, because a safety class is never guessed from a broken annotation. The caller keeps the
declared bytes and passes them upstream if nothing was changed or filled in.

The second part derives effects from the verbs in a tool's name, by whole words in any notation. A name is no promise:
it yields a proposal for the person who classifies the tool, and a question if the server says that the tool only reads.
"""

import enum
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, Self

import msgspec

NATIVE: Final = "native"
PRIVATE_PREFIX: Final = "x-"
PRIVATE_CLASS: Final = r"x-[a-z0-9_-]{1,61}"


class TransportClass(msgspec.Struct, frozen=True, kw_only=True):
    """Transport class with its framing and payload. `reference` is where it is specified."""

    id: str
    framing: str
    payload: str
    reference: str = "MCP-AX 8.1"
    status: Literal["draft", "private"] = "draft"


# The registry of transport classes (MCP-AX 14 (c)): the one place that says which there are. Registration, the
# annotation, the configuration and docs/ax-reference.md read it. A class of your own begins with "x-", as no other may,
# and is named in `ax.transport_classes`; here it has the status "private".
TRANSPORT_CLASSES: Final[list[TransportClass]] = [  # AX-14-3
    TransportClass(
        id=NATIVE, framing="HTTP, WebSocket or stdio lines", payload="JSON-RPC of MCP", reference="MCP-AX 9.1"
    ),
    TransportClass(id="uart_cbor", framing="UART with COBS", payload="CBOR"),
    TransportClass(id="ble_cbor", framing="BLE GATT characteristics", payload="CBOR"),
    TransportClass(id="spi_cbor", framing="SPI with a length prefix", payload="CBOR"),
    TransportClass(id="can_cbor", framing="CAN with ISO-TP segmentation", payload="CBOR"),
    TransportClass(id="mqtt_json", framing="MQTT topics", payload="JSON"),
]


def is_private_class(text: str) -> bool:
    return re.fullmatch(PRIVATE_CLASS, text, re.ASCII) is not None  # AX-14-3


class _Ordered(enum.Enum):
    """Enumeration whose members compare in the order in which they are defined."""

    def __lt__(self, other: Self) -> bool:
        members = list(type(self))
        return members.index(self) < members.index(other)

    def __le__(self, other: Self) -> bool:
        return self is other or self < other


class LatencyClass(_Ordered):  # AX-9.1-3
    REALTIME = "realtime"
    FAST = "fast"
    STANDARD = "standard"
    SLOW = "slow"
    BATCH = "batch"


class Consistency(enum.Enum):  # AX-9.1-4
    STRONG = "strong"
    EVENTUAL = "eventual"
    BEST_EFFORT = "best_effort"


class AuthScope(_Ordered):  # AX-9.1-8
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class CostClass(enum.Enum):  # AX-9.1-9
    FREE = "free"
    METERED = "metered"
    EXPENSIVE = "expensive"


class Availability(enum.Enum):  # AX-9.1-10
    ALWAYS = "always"
    SCHEDULED = "scheduled"
    BEST_EFFORT = "best_effort"
    DEGRADED = "degraded"


# MCP-AX 7.3, Table 2. None: the caller manages the time.
TIMEOUT_S: Mapping[LatencyClass, float | None] = {
    LatencyClass.REALTIME: 0.5,
    LatencyClass.FAST: 5.0,  # AX-7.3-1
    LatencyClass.STANDARD: 30.0,  # AX-7.3-1
    LatencyClass.SLOW: 120.0,  # AX-7.3-1
    LatencyClass.BATCH: None,
}

ToolClass = Literal["read_only", "reversible", "irreversible"]


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """Capability annotation of a tool, as it applies at this node. The defaults are those of a tool about which nothing
    is known.
    """

    latency_class: LatencyClass = LatencyClass.STANDARD
    consistency: Consistency = Consistency.BEST_EFFORT
    mutable: bool = True  # AX-9.1-2
    reversible: bool = False  # AX-9.1-2
    idempotent: bool = False  # AX-9.1-2
    transport: str = NATIVE  # a class of the registry, or a private one
    auth_scope: AuthScope = AuthScope.WRITE
    cost_class: CostClass = CostClass.FREE
    availability: Availability = Availability.ALWAYS
    schema_version: str = "0.0.0"
    extra: Mapping[str, object] = {}  # keys the schema does not know, as declared


class InvalidAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a capability annotation cannot be used."""

    reason: str


_ALLOWED: Mapping[str, tuple[str, ...]] = {
    field.name: tuple(member.value for member in field.type)
    for field in msgspec.structs.fields(Capability)
    if isinstance(field.type, type) and issubclass(field.type, enum.Enum)
}
_KEYS = tuple(name for name in Capability.__struct_fields__ if name != "extra")

_CLASS_KEYS: Mapping[ToolClass, Mapping[str, object]] = {
    "read_only": {"mutable": False, "reversible": True},
    "reversible": {"mutable": True, "reversible": True},
    "irreversible": {"mutable": True, "reversible": False},
}

_NUMBER = r"(?:0|[1-9][0-9]*)"
_PRERELEASE_PART = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-{_PRERELEASE_PART}(?:\.{_PRERELEASE_PART})*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)


def is_semver(text: str) -> bool:
    return _SEMVER.fullmatch(text) is not None


def read_capability(
    declared: object = msgspec.UNSET,
    *,
    annotations: object = None,
    tool_class: ToolClass | None = None,
    overrides: Mapping[str, object] | None = None,
    private: Collection[str] | None = (),
) -> Capability | InvalidAnnotation:
    """Return the capability of a tool as it applies at this node, or why the annotation of the tool is invalid.

    The values come, in order of authority, from the operator, the declared annotation, the MCP hints, and the defaults.

    `declared` is UNSET if the server sent no annotation; None means an annotation that is not an object. `overrides`
    are keys that an operator wrote for this tool; they take precedence over `tool_class`. `private` are the operator's
    transport classes that a server may name; None allows any, because an aggregator below has its own classes.
    """
    layers: list[Mapping[str, object]] = [_from_hints(annotations)]
    extra: Mapping[str, object] = {}
    if declared is not msgspec.UNSET:
        if not isinstance(declared, Mapping):  # AX-9.1-1
            return InvalidAnnotation(reason=f"the capability annotation must be an object, not {_display(declared)}")
        if not all(isinstance(key, str) for key in declared):
            return InvalidAnnotation(reason="the keys of the capability annotation must be strings")
        recognised = {key: value for key, value in declared.items() if key in _KEYS}
        if invalid := _maybe_invalid(recognised, private):
            return invalid
        layers.append(recognised)
        extra = {key: value for key, value in declared.items() if key not in _KEYS}  # AX-9.1-1: unknown keys
    if tool_class is not None:
        layers.append(_CLASS_KEYS[tool_class])
    if overrides:
        if (unknown := next((key for key in overrides if key not in _KEYS), None)) is not None:
            reason = f"{_display(unknown)} is no capability key; the keys are {', '.join(_KEYS)}"
            return InvalidAnnotation(reason=reason)
        if invalid := _maybe_invalid(overrides, None):
            return invalid
        layers.append(overrides)  # AX-9.1-2: an operator's
    return msgspec.convert({**_merge(layers), "extra": extra}, Capability)


def is_claim(key: str, value: object) -> bool:
    """Return whether a key and its value can be part of a server's declaration about a tool: a valid annotation key or
    MCP hint.
    """
    if key in HINTS:
        return isinstance(value, bool)
    return key in _KEYS and _maybe_invalid({key: value}, None) is None


def changed_claims(
    declared: object, annotations: object, capability: Capability, published: Mapping[str, bool]
) -> dict[str, object]:
    """Return the values in a server's annotation and hints of a tool that are not the values in effect at this node.

    These are the keys of its annotation and its MCP hints that differ from `capability` and from the `published` hints.
    """
    own = declared if isinstance(declared, Mapping) else {}
    hints_of_server = annotations if isinstance(annotations, Mapping) else {}
    holds = {**as_object(capability), **{name: value for name, value in published.items() if name in hints_of_server}}
    claims = {key: value for key, value in {**own, **hints_of_server}.items() if key in holds and is_claim(key, value)}
    return {key: value for key, value in claims.items() if value != holds[key]}


def safety(capability: Capability) -> Literal["irreversible_mutable"] | None:
    """Return the value of x-mcpax-safety for a capability, or None if the tool does not need one (MCP-AX 11.2)."""
    return "irreversible_mutable" if capability.mutable and not capability.reversible else None  # AX-11.2-1, AX-9.1-6


HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint")


def hints(capability: Capability, annotations: object = None) -> dict[str, bool]:
    """Return the MCP hints that follow from the capability, without those that the server already gives in
    `annotations`.
    """
    values = (not capability.mutable, capability.mutable and not capability.reversible, capability.idempotent)
    filled = dict(zip(HINTS, values, strict=True))
    own = annotations if isinstance(annotations, Mapping) else {}
    return {name: value for name, value in filled.items() if name not in own}


_HINT_DEFAULTS: Final = dict(zip(HINTS, (False, True, False), strict=True))  # MCP's own


def needed_hints(published: Mapping[str, bool], annotations: object) -> dict[str, bool]:
    """Return the published hints that must be added to a tool for a client. A hint is left out if the server's own hint
    is equal or, if the server gives none, the default of MCP.
    """
    own = annotations if isinstance(annotations, Mapping) else {}
    read_only = published.get("readOnlyHint", own.get("readOnlyHint")) is True
    holds = {**_HINT_DEFAULTS, **own}
    differing = {name: value for name, value in published.items() if holds[name] is not value}
    if read_only and "destructiveHint" not in own:
        differing.pop("destructiveHint", None)  # MCP gives it no meaning there
    return differing


def as_object(capability: Capability) -> dict[str, object]:
    """Return the annotation as decoded JSON: the ten keys in schema order, followed by the additional ones."""
    values = {key: getattr(capability, key) for key in _KEYS}
    plain = {key: value.value if isinstance(value, enum.Enum) else value for key, value in values.items()}
    return plain | dict(capability.extra)


def _from_hints(annotations: object) -> dict[str, object]:
    """Derive capability keys from MCP hints.

    MCP's defaults apply to missing hints: not read-only, destructive, not idempotent. Values that are not booleans are
    ignored.
    """
    own = annotations if isinstance(annotations, Mapping) else {}
    keys: dict[str, object] = {}
    if own.get("readOnlyHint") is True:  # AX-9.1-2
        keys["mutable"] = False  # MCP gives destructiveHint a meaning only for tools that are not read-only
    elif own.get("destructiveHint") is False:  # AX-9.1-2
        keys["reversible"] = True
    if own.get("idempotentHint") is True:
        keys["idempotent"] = True
    return keys


def _maybe_invalid(keys: Mapping[str, object], private: Collection[str] | None) -> InvalidAnnotation | None:
    for key, value in keys.items():
        # The registry is read when it is needed, so that a class can be added to it.
        if allowed := tuple(each.id for each in TRANSPORT_CLASSES) if key == "transport" else _ALLOWED.get(key):
            if key == "transport" and isinstance(value, str) and is_private_class(value):
                if private is None or value in private:
                    continue
                allowed = (*allowed, *private)
            if value not in allowed:  # AX-9.1-1, AX-9.1-3, AX-9.1-4, AX-9.1-7 to -10
                return InvalidAnnotation(reason=f"{key} must be one of {', '.join(allowed)}, not {_display(value)}")
        elif key == "schema_version":
            if not isinstance(value, str) or not is_semver(value):  # AX-9.1-11
                must = "schema_version must be a semantic version such as 1.0.0"
                return InvalidAnnotation(reason=f"{must}, not {_display(value)}")
        elif not isinstance(value, bool):  # AX-9.1-6
            return InvalidAnnotation(reason=f"{key} must be true or false, not {_display(value)}")
    return None


def _merge(layers: list[Mapping[str, object]]) -> dict[str, object]:
    """Merge the keys of a capability from several sources. A later source overrides an earlier one.

    If a layer changes whether the tool is mutable, the layers before it described another kind of tool: their values
    for `reversible` and a read scope are dropped. Otherwise an operator's `mutable = true` on a tool that declares
    itself read-only and reversible would open the gate.
    """
    merged: dict[str, object] = {"mutable": True, "reversible": False}  # AX-9.1-2
    for layer in layers:
        if layer.get("mutable", merged["mutable"]) is not merged["mutable"]:
            merged["reversible"] = not layer["mutable"]
            if merged.get("auth_scope") == AuthScope.READ.value:
                del merged["auth_scope"]
        merged.update(layer)
    # AX-9.1-8: where it is missing
    merged.setdefault("auth_scope", (AuthScope.WRITE if merged["mutable"] else AuthScope.READ).value)
    return merged


def _display(value: object) -> str:
    if isinstance(value, str):
        return ascii(value if len(value) <= 40 else value[:40] + "...")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return "null" if value is None else "an array"


NAME_CHARS_MAX: Final = 1000
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_JOINING: Final = frozenset(("and", "or", "then"))

# fmt: off
READING: Final = frozenset((
    "check", "count", "describe", "diff", "exists", "fetch", "find", "get", "help", "history", "info", "inspect",
    "list", "log", "lookup", "ls", "peek", "ping", "preview", "read", "schema", "search", "show", "stat", "stats",
    "status", "time", "tree", "validate", "version", "view", "whoami",
))
ADDING: Final = frozenset(("add", "append", "branch", "clone", "copy", "create", "insert", "mkdir", "new", "star"))
LOSING: Final = frozenset((
    "apply", "archive", "call", "cancel", "clear", "close", "commit", "delete", "deploy", "destroy", "drop", "edit",
    "email", "eval", "exec", "execute", "kill", "merge", "migrate", "modify", "move", "overwrite", "patch", "pay",
    "post", "publish", "purge", "push", "put", "remove", "rename", "replace", "reset", "revoke", "rm", "run", "send",
    "set", "shutdown", "start", "stop", "submit", "terminate", "transfer", "truncate", "update", "upload", "wipe",
    "write",
))
_CHANGING_ARGUMENTS: Final = frozenset((
    "append", "commit", "confirm", "content", "contents", "delete", "force", "overwrite", "recursive",
))
# fmt: on


def words_of(name: str) -> tuple[str, ...]:
    """Split a name in snake_case, camelCase, kebab-case or dotted form into lower-case words."""
    return tuple(word.lower() for word in _WORD.findall(name[:NAME_CHARS_MAX]))


def maybe_class(name: str) -> ToolClass | None:
    """Return the class that the verbs of a name suggest, or None if the name contains no known verb.

    If the verbs disagree, the more cautious class is returned.
    """
    words = set(words_of(name))
    if words & LOSING:
        return "irreversible"
    if words & ADDING:
        return "reversible"
    return "read_only" if words & READING else None


def maybe_changing_verb(name: str) -> str | None:
    """Return the verb in a name which suggests that the tool changes something, or None.

    `get_post` has none, because `post` is a noun there; `get_and_post` has `post`.
    """
    words = words_of(name)
    positions = [position for position, word in enumerate(words) if word in READING or word in ADDING or word in LOSING]
    for position in positions:
        is_leading = position == positions[0] or words[position - 1] in _JOINING
        if is_leading and words[position] not in READING:
            return words[position]
    return None


def maybe_changing_argument(arguments: Sequence[str]) -> str | None:
    """Return the first argument whose name suggests that the tool changes something, or None."""
    return next((name for name in arguments if not _CHANGING_ARGUMENTS.isdisjoint(words_of(name))), None)
