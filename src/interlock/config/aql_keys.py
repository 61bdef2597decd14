"""The keys of MCP-AQL: [aql], `aql` of a [[tool]], and [safety], for all agents and for single ones."""

from typing import Any, Final, get_args

from interlock.aql.protocol.families import MODES, PREFIX, PROFILES, custom_profile
from interlock.aql.protocol.limits import RANGES, Limits
from interlock.aql.protocol.model import Category
from interlock.aql.protocol.tool_operations import OperationRule
from interlock.config.location import WRONG, At, WrongValue
from interlock.config.plan import AgentPlan, AqlDangerPlan, AqlPlan, AqlTokenPlan, SafetyPlan, Stage
from interlock.config.sections import Key, choices_of, keys_of
from interlock.config.value_types import (
    Choice,
    Flag,
    Many,
    Record,
    Seconds,
    Size,
    Table,
    Text,
    ValueType,
    Whole,
    read_text,
)
from interlock.safety.protocol.patterns import PATTERN_CHARS_MAX, Pattern

MONTH_S: Final = 30 * 86_400
SKEW_PLAIN_S: Final = 60  # above, the operator is warned
_NAME: Final = Text(pattern=r"[a-z][a-z0-9_]*", what="a name of a-z, 0-9 and _")


class _Operation(Record, frozen=True, kw_only=True):
    def _field(self, name: str, value: object, at: At) -> Any:
        if name == "read":
            return at.wrong(
                "'read' of aql is not available: the node merges nothing into what a tool has stored",
                'write merge = "upstream" where the tool merges nested objects itself',
            )
        return super()._field(name, value, at)


OPERATION: Final = _Operation(
    what="an operation",
    example='aql = { category = "READ" }',
    fields={
        "name": _NAME,
        "category": choices_of(OperationRule, "category"),
        "family": _NAME,
        "identifiers": Many(item=_NAME),
        "merge": choices_of(OperationRule, "merge"),
        "danger": choices_of(OperationRule, "danger"),
        "allow_nul": Flag(),
    },
    make=OperationRule,
)

_LIMITS: Final = Record(
    what="the limits of a request",
    example="limits = { batch_operations = 20 }",
    fields={
        name: (Size if name.endswith("_bytes") else Whole)(low=low, high=high) for name, (low, high) in RANGES.items()
    },
    make=Limits,
)
_TOKENS: Final = Record(
    what="the lives of confirmation tokens",
    example="token_s = { forbidden = 60 }",
    fields={
        "destructive": Whole(low=1, high=900),
        "dangerous": Whole(low=1, high=900),
        "forbidden": Whole(low=1, high=300),
    },
    make=AqlTokenPlan,
)


class _Skew(Whole, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> Any:
        read = super().read(value, at)
        if isinstance(read, int) and read > SKEW_PLAIN_S:
            at.warn(f"{at.name} = {read}: confirmation tokens are good so many seconds after they have expired")
        return read


_DANGER: Final = Record(
    what="the handling of dangerous operations",
    example="danger = { enforce = false }",
    fields={"enforce": Flag(), "skew_s": _Skew(low=0, high=300), "token_s": _TOKENS},
    make=AqlDangerPlan,
)
_MEMBER: Final = Text(
    pattern="|".join((*(category.value for category in Category), "[a-z][a-z0-9_]*")),
    what="a category (CREATE, READ, UPDATE, DELETE, EXECUTE) or the name of an operation",
)


class _Families(Table, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> Any:
        read = super().read(value, at)
        if isinstance(read, WrongValue) or not read:
            return read
        made = custom_profile("custom", read)
        return at.wrong(f"{at.name}: {made}") if isinstance(made, str) else read


class _Mode(Choice, frozen=True, kw_only=True):
    """The older word `crude` means the semantic mode with that profile."""

    def read(self, value: object, at: At) -> str | WrongValue:
        if value == "crude":
            at.warn(f"{at.name} = 'crude' is an older word for 'semantic'", "write semantic")
            return "semantic"
        return super().read(value, at)


class _Prefix(Text, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> str | WrongValue:
        if value == "":
            return ""
        read = super().read(value, at)
        if isinstance(read, str) and PREFIX.fullmatch(read) is None:
            return at.wrong(
                f"{at.name} must be under 20 of the characters a-z, 0-9 and _, ending in _", "such as github_"
            )
        return WRONG if isinstance(read, WrongValue) else read


AQL: Final = keys_of(
    AqlPlan,
    Key(
        name="mode",
        kind=_Mode(values=MODES),
        example="single",
        help="What /mcp/aql lists: tools per family, one, or both.",
    ),
    Key(
        name="auto_tokens",
        kind=Whole(low=0, high=10_000_000),
        example=20_000,
        help='With surface = "auto": from how many tokens of the flat list on a client gets the AQL surface.',
    ),
    Key(
        name="profile",
        kind=_NAME,
        example="database",
        help=f"Which families there are: {', '.join(PROFILES)}, or a name of your own with `families`.",
    ),
    Key(
        name="families",
        kind=_Families(names=r"[a-z][a-z0-9_]*", names_are="the name of a family", item=Many(item=_MEMBER)),
        default={},
        example={"look": ["READ"], "change": ["CREATE", "UPDATE", "DELETE"], "run": ["EXECUTE"]},
        help="Families of your own: the categories and operations of each.",
    ),
    Key(
        name="tool_prefix",
        kind=_Prefix(empty=True),
        example="github_",
        help="What the names of the AQL tools begin with.",
    ),
    Key(
        name="execution_idle_s",
        kind=Seconds(low=1, high=MONTH_S),
        example=600,
        help="After how long without activity an execution has failed.",
    ),
    Key(
        name="execution_keep_s",
        kind=Seconds(low=0, high=MONTH_S),
        example=3600,
        help="How long an execution that has ended can still be read.",
    ),
    Key(name="limits", kind=_LIMITS, example={"batch_operations": 20}, help="The limits of requests and answers."),
    Key(
        name="danger",
        kind=_DANGER,
        example={"enforce": False},
        help="Whether destructive operations need a confirmation token, and how long one is good.",
    ),
    Key(name="strict_mode", example=False, help="Whether unknown parameters are refused; off only for development."),
    Key(name="batch", example=False, help="Whether several operations can be sent in one call."),
    Key(name="field_selection", example=False, help="Whether READ operations take `fields`."),
    Key(name="response_meta", example=True, help="Whether every success says how long it took."),
)

# [safety]

STEPS_MAX: Final = 1_000_000


class Glob(ValueType, frozen=True, kw_only=True):
    """A pattern over hints."""

    def read(self, value: object, at: At) -> str | WrongValue:
        text = read_text(value, at, "a pattern")
        if isinstance(text, WrongValue):
            return WRONG
        try:
            Pattern(text)
        except ValueError as error:
            return at.wrong(f"{at.name}: {error}")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": PATTERN_CHARS_MAX}


_GLOBS: Final = Many(item=Glob())
_STEPS: Final = Whole(low=1, high=STEPS_MAX)
_STAGES: Final = Many(item=Choice(values=get_args(Stage)))
_AGENTS: Final = Table(
    names=r"[^\x00-\x1f\x7f]{1,100}",
    names_are="the name of an agent",
    item=Record(
        what="an agent",
        example='agents.reporter = { risk_tolerance = "conservative" }',
        fields={
            "max_autonomous_steps": _STEPS,
            "risk_tolerance": choices_of(SafetyPlan, "risk_tolerance"),
            "deny": _GLOBS,
            "requires_approval": _GLOBS,
            "auto_approve": _GLOBS,
            "stages": _STAGES,
            "tolerance_relaxes_confirm": Flag(),
            "preapproved": Flag(),
        },
        make=AgentPlan,
    ),
)

SAFETY: Final = keys_of(
    SafetyPlan,
    Key(
        name="mode",
        example="enforcing",
        help="Whether reported steps are judged and what was not reported is refused, only judged, only recorded,"
        " or nothing of it. MCPAQL_SAFETY_LOOP goes first.",
    ),
    Key(
        name="require",
        kind=Many(item=Text()),
        example=["client:coder"],
        help="Principals that may call nothing outside a monitored execution.",
    ),
    Key(
        name="max_autonomous_steps",
        kind=_STEPS,
        example=10,
        help="How many steps an agent may take before a person has to agree that it goes on. Reads that are approved"
        " automatically do not count.",
    ),
    Key(name="risk_tolerance", example="conservative", help="Above which risk an agent pauses: 25, 50 or 75 of 100."),
    Key(
        name="deny",
        kind=_GLOBS,
        example=["drop_*", "rm -rf*"],
        help="Actions that block the agent until a person verifies it. Looked for from every word of a hint.",
    ),
    Key(name="requires_approval", kind=_GLOBS, example=["deploy_*"], help="Actions that wait for a person."),
    Key(
        name="auto_approve",
        kind=_GLOBS,
        example=["read_*"],
        help="Actions that need no further judgement, where the pattern covers the whole hint.",
    ),
    Key(
        name="stages",
        kind=_STAGES,
        example=["patterns"],
        help="Which stages of the evaluation are on, besides the step limit.",
    ),
    Key(
        name="progressive_lockout",
        example=False,
        help="Whether wrong codes beyond the limit make the time to wait longer.",
    ),
    Key(
        name="tolerance_relaxes_confirm",
        example=True,
        help="Whether a risk within the tolerance goes on although it is in the tier confirm.",
    ),
    Key(name="preapproved", example=True, help="Whether agents start without a person's approval."),
    Key(
        name="agents",
        kind=_AGENTS,
        example={"reporter": {"risk_tolerance": "conservative"}},
        help="The same for one agent, by its name. Its deny and requires_approval are added to those of all agents.",
    ),
)
