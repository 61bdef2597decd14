"""Sections of the plan about agents: [aql], [safety], [rooms], [[room]] and [registry].

The defaults and the types of values come from the pure packages of the specifications (`aql.protocol`,
`safety.protocol`, `rooms.protocol`), so that a value which the configuration accepts is one that they can use.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from interlock.aql.protocol.families import MODES, PREFIX, PROFILES, custom_profile
from interlock.aql.protocol.families import Mode as AqlMode
from interlock.aql.protocol.model import Category
from interlock.aql.protocol.requests import RANGES
from interlock.aql.protocol.requests import PayloadLimits as AqlLimits
from interlock.aql.protocol.tool_operations import OperationRule
from interlock.config.keys import Key, StructTable
from interlock.config.order import (
    ADDED_IS_LOOSER,
    ANY_CHANGE,
    FALSE_IS_LOOSER,
    FREE,
    MORE_IS_LOOSER,
    REMOVED_IS_LOOSER,
    TRUE_IS_LOOSER,
    Order,
    declared_fields,
    fields,
    if_set,
    join_structs,
    ranked,
    table,
)
from interlock.config.problems import At, WrongValue
from interlock.config.value_types import Choice, Many, ParsedText, Seconds, Size, Table, Text, Whole
from interlock.rooms.protocol.participants import Privilege
from interlock.rooms.protocol.settings import RoomSettings
from interlock.safety.protocol.evaluation import (
    AUTO_APPROVE,
    DENY,
    PATTERN_CHARS_MAX,
    REQUIRES_APPROVAL,
    STEPS_DEFAULT,
    Mode,
    Pattern,
    Tolerance,
)

# [aql]

_MONTH_S: Final = 30 * 86_400
SKEW_PLAIN_S: Final = 60  # above, the operator is warned
_NAME: Final = Text(r"[a-z][a-z0-9_]*", "a name of a-z, 0-9 and _")
OPERATION: Final = StructTable(
    OperationRule,
    "an operation",
    example='aql = { category = "READ" }',
    kinds={"name": _NAME, "family": _NAME, "identifiers": Many(_NAME)},
    removed={
        "read": (
            "'read' of aql is not available: the node merges nothing into what a tool has stored",
            'write merge = "upstream" where the tool merges nested objects itself',
        )
    },
)
_LIMITS: Final = StructTable(
    AqlLimits,
    "the limits of a request",
    example="limits = { batch_operations = 20 }",
    kinds={name: (Size if name.endswith("_bytes") else Whole)(low, high) for name, (low, high) in RANGES.items()},
)
_MEMBER: Final = Text(
    "|".join((*(category.value for category in Category), "[a-z][a-z0-9_]*")),
    "a category (CREATE, READ, UPDATE, DELETE, EXECUTE) or the name of an operation",
)


class _ClockSkew(Whole, frozen=True):
    """A kind of configuration value: the seconds by which clocks may differ. A large number causes a warning, because
    expired tokens would stay valid.
    """

    def read(self, value: object, at: At) -> Any:
        skew = super().read(value, at)
        if isinstance(skew, int) and skew > SKEW_PLAIN_S:
            at.warn(f"{at.name} = {skew}: confirmation tokens are good so many seconds after they have expired")
        return skew


class _Families(Table, frozen=True):
    """A kind of configuration value: the operation families of a custom AQL profile, by name."""

    def read(self, value: object, at: At) -> Any:
        families = super().read(value, at)
        if isinstance(families, WrongValue) or not families:
            return families
        profile = custom_profile("custom", families)
        return at.wrong(f"{at.name}: {profile}") if isinstance(profile, str) else families


class _EndpointMode(Choice, frozen=True):
    """A kind of configuration value: a mode of the AQL endpoints. The older name `crude` is read as `semantic`, with a
    warning.
    """

    def read(self, value: object, at: At) -> str | WrongValue:
        if value == "crude":
            at.warn(f"{at.name} = 'crude' is an older word for 'semantic'", "write semantic")
            return "semantic"
        return super().read(value, at)


class _ToolPrefix(Text, frozen=True):
    """A kind of configuration value: a prefix for names of tools, which may be empty."""

    def read(self, value: object, at: At) -> str | WrongValue:
        prefix = super().read(value, at)
        if isinstance(prefix, str) and prefix and PREFIX.fullmatch(prefix) is None:
            message = f"{at.name} must be under 20 of the characters a-z, 0-9 and _, ending in _"
            return at.wrong(message, "such as github_")
        return prefix


class AqlTokenPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The time for which a confirmation token is valid, in seconds, for each danger level of an operation."""

    destructive: Annotated[int, Whole(1, 900)] = 300
    dangerous: Annotated[int, Whole(1, 900)] = 300
    forbidden: Annotated[int, Whole(1, 300)] = 120


class AqlDangerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for destructive operations of MCP-AQL, which a caller must confirm with a token."""

    enforce: bool = True
    skew_s: Annotated[int, _ClockSkew(0, 300)] = 0
    token_s: Annotated[
        AqlTokenPlan,
        StructTable(AqlTokenPlan, "the lives of confirmation tokens", example="token_s = { forbidden = 60 }"),
    ] = AqlTokenPlan()


_DANGER: Final = fields(
    enforce=FALSE_IS_LOOSER,
    skew_s=MORE_IS_LOOSER,
    token_s=fields(destructive=MORE_IS_LOOSER, dangerous=MORE_IS_LOOSER, forbidden=MORE_IS_LOOSER),
)


class AqlPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of MCP-AQL, which offers operations behind a few endpoints.

    Keys:
        mode: What /mcp/aql lists: tools per family, one, or both.
        auto_tokens: With surface = "auto": from how many tokens of the flat list on a client gets the AQL surface.
        families: Families of your own: the categories and operations of each.
        tool_prefix: What the names of the AQL tools begin with.
        execution_idle_s: After how long without activity an execution has failed.
        execution_keep_s: How long an execution that has ended can still be read.
        limits: The limits of requests and answers.
        danger: Whether destructive operations need a confirmation token, and how long one is good.
        strict_mode: Whether unknown parameters are refused; off only for development.
        batch: Whether several operations can be sent in one call.
        field_selection: Whether READ operations take `fields`.
        response_meta: Whether every success says how long it took.
    """

    mode: Annotated[AqlMode, _EndpointMode(MODES), Key("single", variable="MCP_AQL_ENDPOINT_MODE"), FREE] = "semantic"
    # Measured by bench.tokens: a longer flat list costs more tokens than search, details and call.
    auto_tokens: Annotated[int, Whole(0, 10_000_000), Key(20_000), FREE] = 4000
    profile: Annotated[
        str,
        _NAME,
        Key(
            "database",
            variable="MCP_AQL_ENDPOINT_PROFILE",
            help=f"Which families there are: {', '.join(PROFILES)}, or a name of your own with `families`.",
        ),
        FREE,
    ] = "crude"
    families: Annotated[
        dict[str, tuple[str, ...]],
        _Families(names=r"[a-z][a-z0-9_]*", names_are="the name of a family", item=Many(_MEMBER)),
        Key({"look": ["READ"], "change": ["CREATE", "UPDATE", "DELETE"], "run": ["EXECUTE"]}),
        FREE,
    ] = {}
    tool_prefix: Annotated[str, _ToolPrefix(empty=True), Key("github_", variable="MCP_AQL_TOOL_PREFIX"), FREE] = ""
    execution_idle_s: Annotated[float, Seconds(1, _MONTH_S), Key(600), FREE] = 1800
    execution_keep_s: Annotated[float, Seconds(0, _MONTH_S), Key(3600), FREE] = 86_400
    limits: Annotated[AqlLimits, _LIMITS, Key({"batch_operations": 20}), FREE] = AqlLimits()
    danger: Annotated[
        AqlDangerPlan,
        StructTable(AqlDangerPlan, "the handling of dangerous operations", example="danger = { enforce = false }"),
        Key({"enforce": False}),
        _DANGER,
    ] = AqlDangerPlan()
    # AQL-4.6.2-2
    strict_mode: Annotated[bool, Key(False), FALSE_IS_LOOSER] = True
    batch: Annotated[bool, Key(False), FREE] = True
    field_selection: Annotated[bool, Key(False), FREE] = True
    response_meta: Annotated[bool, Key(True), FREE] = False


# [safety]

Stage = Literal["outcome", "patterns", "risk", "tolerance"]
_STEPS: Final = Whole(1, 1_000_000)


class _HintPattern(ParsedText, frozen=True):
    """A kind of configuration value: a pattern for the hints in which agents describe the steps that they plan."""

    called = "a pattern"

    def parse(self, text: str, at: At) -> str | WrongValue:
        try:
            Pattern(text)
        except ValueError as error:
            return at.wrong(f"{at.name}: {error}")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": PATTERN_CHARS_MAX}


_PATTERNS: Final = Many(_HintPattern())


_TOLERANCES: Final = ranked("conservative", "moderate", "aggressive")


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the safety loop for one agent. A field that is None has the value that is set for all agents."""

    max_autonomous_steps: Annotated[int | None, _STEPS, if_set(MORE_IS_LOOSER)] = None
    risk_tolerance: Annotated[Tolerance | None, if_set(_TOLERANCES)] = None
    # `deny` and `requires_approval` are added to those for all agents.
    deny: Annotated[tuple[str, ...], _PATTERNS, REMOVED_IS_LOOSER] = ()
    requires_approval: Annotated[tuple[str, ...], _PATTERNS, REMOVED_IS_LOOSER] = ()
    auto_approve: Annotated[tuple[str, ...] | None, _PATTERNS, if_set(ADDED_IS_LOOSER)] = None
    stages: Annotated[tuple[Stage, ...] | None, if_set(REMOVED_IS_LOOSER)] = None
    tolerance_relaxes_confirm: Annotated[bool | None, if_set(TRUE_IS_LOOSER)] = None
    preapproved: Annotated[bool | None, if_set(TRUE_IS_LOOSER)] = None


_AGENTS: Final = Table(
    names=r"[^\x00-\x1f\x7f]{1,100}",
    names_are="the name of an agent",
    item=StructTable(AgentPlan, "an agent", example='agents.reporter = { risk_tolerance = "conservative" }'),
)


class SafetyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the execution safety loop (MCP-AQL 8.6 to 8.8).

    Keys:
        mode: Whether reported steps are judged and what was not reported is refused, only judged, only recorded, or
            nothing of it. MCPAQL_SAFETY_LOOP goes first.
        require: Principals (globs) that may call nothing outside a monitored execution. client:* is every client,
            those without a token included.
        max_autonomous_steps: How many steps an agent may take before a person has to agree that it goes on. Reads that
            are approved automatically do not count.
        risk_tolerance: Above which risk an agent pauses: 25, 50 or 75 of 100.
        deny: Actions that block the agent until a person verifies it. Looked for from every word of a hint.
        requires_approval: Actions that wait for a person.
        auto_approve: Actions that need no further judgement, where the pattern covers the whole hint.
        stages: Which stages of the evaluation are on, besides the step limit.
        progressive_lockout: Whether wrong codes beyond the limit make the time to wait longer.
        tolerance_relaxes_confirm: Whether a risk within the tolerance goes on although it is in the tier confirm.
        preapproved: Whether agents start without a person's approval.
        agents: The same for one agent, by its name. Its deny and requires_approval are added to those of all agents.
    """

    mode: Annotated[
        Mode, Key("enforcing", variable="MCPAQL_SAFETY_LOOP"), ranked("enforcing", "monitoring", "logging", "disabled")
    ] = "disabled"
    require: Annotated[tuple[str, ...], Key(["client:coder"]), REMOVED_IS_LOOSER] = ()
    max_autonomous_steps: Annotated[int, _STEPS, Key(10), MORE_IS_LOOSER] = STEPS_DEFAULT
    risk_tolerance: Annotated[Tolerance, Key("conservative"), _TOLERANCES] = "moderate"
    deny: Annotated[tuple[str, ...], _PATTERNS, Key(["drop_*", "rm -rf*"]), REMOVED_IS_LOOSER] = DENY
    requires_approval: Annotated[tuple[str, ...], _PATTERNS, Key(["deploy_*"]), REMOVED_IS_LOOSER] = REQUIRES_APPROVAL
    auto_approve: Annotated[tuple[str, ...], _PATTERNS, Key(["read_*"]), ADDED_IS_LOOSER] = AUTO_APPROVE
    stages: Annotated[tuple[Stage, ...], Key(["patterns"]), REMOVED_IS_LOOSER] = (
        "outcome",
        "patterns",
        "risk",
        "tolerance",
    )
    progressive_lockout: Annotated[bool, Key(False), FALSE_IS_LOOSER] = True
    tolerance_relaxes_confirm: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    preapproved: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    agents: Annotated[
        dict[str, AgentPlan],
        _AGENTS,
        Key({"reporter": {"risk_tolerance": "conservative"}}),
        table(declared_fields(AgentPlan), AgentPlan()),
    ] = {}


# [rooms] and [[room]]


class RoomsPlan(RoomSettings, frozen=True, kw_only=True):
    """Settings for all rooms ([rooms]). The [[room]] entry of a room may replace them.

    Keys:
        auto_create: Whether connecting to an unknown topic makes a room of it.
    """

    auto_create: Annotated[bool, Key(True)] = False


class RoomPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of [[room]]: the topic of a room, and settings that differ from those for all rooms.

    Keys:
        topic: The room's name.
    """

    topic: Annotated[
        str,
        Text(
            r"[A-Za-z0-9][A-Za-z0-9._:@~-]{0,127}",
            "1 to 128 of the characters A-Z a-z 0-9 . _ : @ ~ -, beginning with a letter or digit",
        ),
        Key("garden"),
    ]
    written: dict[str, Any] = {}

    def settings(self, rooms: RoomsPlan) -> RoomSettings:
        """Return the settings of this room: the values in its [[room]] entry, completed with the settings for all
        rooms.
        """
        return room_settings(rooms, self.written)


def room_settings(rooms: RoomsPlan, written: dict[str, Any]) -> RoomSettings:
    """Return the settings of a room: the values in `written`, completed with the settings for all rooms."""
    fields = {field.name: getattr(rooms, field.name) for field in msgspec.structs.fields(RoomSettings)}
    fields |= written
    fields["extra_kinds"] = {kind: Privilege(least) for kind, least in fields["extra_kinds"].items()}
    return RoomSettings(**fields)


_ROOM_ORDERS: Final = {
    "mode": ranked("restricted", "mixed", "observe", "open"),
    "members": ADDED_IS_LOOSER,
    "full": ADDED_IS_LOOSER,
    "interlock_tools": ADDED_IS_LOOSER,
    "trust_annotations": TRUE_IS_LOOSER,
    "max_participants": FREE,
    "restricted_replies": ranked("deny", "allow"),
    "restricted_chat": TRUE_IS_LOOSER,
    "extra_kinds": ANY_CHANGE,
    "max_envelope_bytes": FREE,
    "proposal_ttl_s": FREE,
    "per_min": fields(
        proposals=MORE_IS_LOOSER, chat=MORE_IS_LOOSER, envelopes=MORE_IS_LOOSER, sent_bytes=MORE_IS_LOOSER
    ),
    "proposals_pending": FREE,
    "secret_patterns": REMOVED_IS_LOOSER,
    "tracker": FALSE_IS_LOOSER,
    "history_days": FREE,
    "history_max": FREE,
    "history_bytes": FREE,
    "history_visibility": ranked("none", "since_join", "all"),
    "presence_grace_s": FREE,
    "presence_heartbeat_s": FREE,
    "connections_per_participant": FREE,
    "violation_notice": FREE,
    "v0_clients": ranked("refuse", "restricted", "assign", "full"),
    "undeclared_protocol": FREE,
}
_ROOMS_ORDERS: Final = {**_ROOM_ORDERS, "auto_create": TRUE_IS_LOOSER}


def _join_settings(signed: Any, written: Any, orders: Mapping[str, Order]) -> Any:
    """Return the stricter of the signed and the written settings of a room. An empty list of members would admit
    everybody to an open room, so such a list is never emptied.
    """
    joined = join_structs(signed, written, orders)
    is_emptied = (signed.members or signed.full) and not (joined.members or joined.full)
    if is_emptied and joined.mode in ("open", "observe"):
        joined = msgspec.structs.replace(joined, members=signed.members or signed.full)
    return joined


ROOMS: Final = Order(
    "rooms", lambda signed, written, _: _join_settings(signed, written, _ROOMS_ORDERS), parts=_ROOMS_ORDERS
)


def _remember_rooms(rooms: tuple[RoomPlan, ...], plan: Any) -> dict[str, RoomSettings]:
    return {each.topic: each.settings(plan.rooms) for each in rooms}


def _join_rooms(signed: dict[str, Any], written: tuple[RoomPlan, ...], plan: Any) -> tuple[RoomPlan, ...]:
    """Return the written rooms. Settings that are looser than the signed ones get their signed values. A new room is
    compared with the settings for all rooms.
    """
    joined = []
    for each in written:
        settings = each.settings(plan.rooms)
        before = signed.get(each.topic)
        base = (
            room_settings(plan.rooms, {})
            if before is None
            else msgspec.convert(before, RoomSettings, from_attributes=True)
        )
        strict = _join_settings(base, settings, _ROOM_ORDERS)
        changed = {
            name: getattr(strict, name) for name in _ROOM_ORDERS if getattr(strict, name) != getattr(settings, name)
        }
        joined.append(msgspec.structs.replace(each, written={**each.written, **changed}) if changed else each)
    return tuple(joined)


ROOM: Final = Order("rooms", _join_rooms, _remember_rooms)

# [registry]

Enforcement = Literal["reject", "session", "warn", "off"]
_SURFACE_NAME: Final = r"[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)*"


_ENFORCEMENTS: Final = ranked("session", "reject", "warn", "off")


class RegistryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the registry of tool surface names ([registry]). They also say what happens to servers that violate
    it.

    Keys:
        enforce: What becomes of a tool that does not keep to the registered specification of its name: it is refused
            (reject), its server is (session), it is listed with its verdict (warn), or nothing is compared (off).
            Imported registries warn until they are trusted.
        per_name: The same for single names.
        routes: Names that are offered without a segment, and the servers that may serve each: the first that is there
            and keeps to the specification.
        strict: Whether a server without an output schema is refused as well.
        self_review: Whether all who may decide on requests are one person, who then decides on their own requests
            too. The entry says self_reviewed.
        public_read: Whether the registry can be read without a credential.
        tools: Whether clients are offered names.lookup, .check, .verify and .request.
    """

    enforce: Annotated[Enforcement, Key("warn"), _ENFORCEMENTS] = "reject"
    per_name: Annotated[
        dict[str, Enforcement],
        Table(names=_SURFACE_NAME, names_are="a surface name", item=Choice(get_args(Enforcement))),
        Key({"search": "off"}),
        ANY_CHANGE,
    ] = {}
    routes: Annotated[
        dict[str, tuple[str, ...]],
        Table(names=_SURFACE_NAME, names_are="a surface name", item=Many(Text())),
        Key({"search": ["a", "b"]}),
        ANY_CHANGE,
    ] = {}
    strict: Annotated[bool, Key(True), FALSE_IS_LOOSER] = False
    self_review: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    public_read: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False
    tools: Annotated[bool, Key(True), FREE] = False
