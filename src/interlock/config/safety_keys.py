"""The keys of [safety]: the execution safety loop of MCP-AQL, for all agents and for single ones."""

from typing import Any, Final, get_args

from interlock.config.location import WRONG, At, WrongValue
from interlock.config.plan import AgentPlan, SafetyPlan, Stage
from interlock.config.sections import Key, choices_of, keys_of
from interlock.config.value_types import Choice, Flag, Many, Record, Table, Text, ValueType, Whole, read_text
from interlock.protocol.aql.safety.patterns import PATTERN_CHARS_MAX, Pattern

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
