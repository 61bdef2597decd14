"""The operator API for tools: the list of tools, the guard's verdict on a call, and calls that an operator makes."""

from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType, field

from interlock.approvals.api import Approval
from interlock.drivers.api import Skills
from interlock.operator.operation import ErrorCase, Operation, RequestBody, TextParameter, operations_in


class ToolOperation(Struct, frozen=True, kw_only=True):
    """A tool as an MCP-AQL operation, and how its category was determined.

    Members:
        name: The name of the operation.
        category: CREATE, READ, UPDATE, DELETE or EXECUTE.
        rule: By which rule: operator, read_only, verb, shape, contradiction or fallback.
        reason: Why, where the rule alone does not say it.
    """

    name: str
    category: str
    rule: str
    reason: str | None


class ToolSurface(Struct, frozen=True, kw_only=True):
    """The verdict of the names registry on a tool.

    Members:
        name: The surface name.
        verdict: identical, compatible, input_only, undecided, mismatch, ...
        status: Of the entry; null: the name is not registered.
        digest: Of the schemas that the server offers.
        registered: Of the schemas of the specification.
        revision: The current one of the specification.
        notes: behind, unknown_revision, claim_mismatch, deprecated, ...
        differences: Where it does not keep to it, or may not.
        refused: Whether every call is refused for it.
        warning: What an operator should know; empty: nothing.
    """

    name: str
    verdict: str
    status: str | None
    digest: str | None
    registered: str | None
    revision: int | None
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    refused: bool
    warning: str


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that is listed or withheld.

    Members:
        name: Its qualified name.
        alias: Its name for clients that take no dots.
        segment: The link it belongs to.
        original: Its name at its server.
        title: Its title.
        description: What it does, in the words of its server.
        state: How its link stands.
        capability: What a call may change (MCP-AX 10); empty: not known.
        unclassified: Whether its effect is not known; absent for what its link withholds.
        operation: What the AQL surfaces call it; absent where they have none.
        hops: Hops to its server.
        withheld: Why it is not listed; null: it is.
        changed: That its server changed the definition since it was accepted, and which of the two is listed; absent:
            it did not.
        surface: What the registry of names says of it; absent: nothing.
    """

    name: str
    alias: str | None
    segment: str
    original: str
    title: str | None
    description: str | None
    state: str
    capability: dict[str, Any]
    unclassified: bool | UnsetType = UNSET
    operation: ToolOperation | UnsetType = UNSET
    hops: int
    withheld: str | None
    changed: str | UnsetType = UNSET
    surface: ToolSurface | UnsetType = UNSET


class Tools(Struct, frozen=True, kw_only=True):
    """The list of all tools.

    Members:
        tools: By link; what links withhold comes last.
    """

    tools: tuple[Tool, ...]


class Owner(Struct, frozen=True, kw_only=True):
    """The party that is responsible for a tool: the operator for a configured server, otherwise the registrant.

    Members:
        kind: configuration, or the kind of link that registered.
        principal: Of a registrant: whom its credential names.
        subserver_id: Of a registrant: its own id.
        authority: Of a registrant: the domain it speaks for.
        verified: Whether that is proved.
    """

    kind: str
    principal: str | UnsetType = UNSET
    subserver_id: str | UnsetType = UNSET
    authority: str | UnsetType | None = UNSET
    verified: bool


class CheckVerdict(Struct, frozen=True, kw_only=True):
    """The verdict that one check of the guard would give on a call.

    Members:
        number: The place of the check in the guard's order.
        name: The name of the check.
        verdict: pass, refuse, hold (a person decides) or later (only the call can tell).
        reason: Why.
    """

    number: int = field(name="rung")
    name: str
    verdict: str
    reason: str


class ToolDetail(Tool, frozen=True, kw_only=True):
    """The details of a tool, with the verdicts of the checks on a call by a given caller.

    Members:
        definition: As clients see it.
        route: The segments that lead to it, and its local name.
        era: The era of its link: legacy or modern.
        owner: Who answers for it.
        caller: The principal for whose call the checks are shown.
        checks: Every check that a call meets, in order.
        schema_excess: Why its schema is too large to be read, so that it counts as object; null: it is not.
    """

    definition: dict[str, Any]
    route: tuple[str, ...]
    era: str
    owner: Owner
    caller: str
    checks: tuple[CheckVerdict, ...] = field(name="rungs")
    schema_excess: str | None = None


class ToolRoute(Struct, frozen=True, kw_only=True):
    """The route from the name of a tool to its server (MCP-AX 7.1).

    Members:
        downstream_session: The session of its link, masked.
        downstream_name: Its name there.
        capability: What a call may change; empty: not known.
        registered_at: Since when.
    """

    downstream_session: str
    downstream_name: str
    capability: dict[str, Any]
    registered_at: str


ToolRoutes = dict[str, ToolRoute]  # by qualified name


class CallProgress(Struct, frozen=True, kw_only=True):
    """The progress of a call, as reported by its server.

    Members:
        progress: How far.
        total: Of how much; null: not known.
        message: In words.
    """

    progress: float
    total: float | None = None
    message: str | None = None


class CallHeld(Struct, frozen=True, kw_only=True):
    """A call that waits for a person's approval. After the approval, this call runs once.

    Members:
        approval_id: The approval that it waits for.
        url: Its page, at the node that holds the call.
    """

    approval_id: str
    url: str | None


class CallEvent(Struct, frozen=True, kw_only=True):
    """An event in the stream of a call: progress, a result or an error.

    Progress may occur any number of times. A result or an error ends the stream.

    Members:
        progress: How far it is.
        result: The result, as clients get it.
        held: With a result that says that the call waits.
        error: Why there is none: code, message and data.
    """

    progress: CallProgress | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    held: CallHeld | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class CallTool(RequestBody, frozen=True, kw_only=True):
    """Request to call a tool.

    Members:
        arguments: An object, sent as the bytes it is; none: {}.
    """

    arguments: Raw | UnsetType = UNSET


# Errors

CLASSIFIED: Final = ErrorCase("classified", 409, "it is known already what the tool does")
WITHHELD: Final = ErrorCase("withheld", 409, "the tool is withheld, or its server is not there; the message says why")


# Query parameters

SEARCH: Final = TextParameter("search", "Words: only the tools that fit them best, best first.")
CALLER: Final = TextParameter(
    "as", "The principal for whose call the checks are shown.", argument="caller", default="local"
)


# Operations

LIST_TOOLS: Final = Operation("GET /admin/tools", "Every tool, listed or withheld.", output=Tools, query=(SEARCH,))
LIST_ROUTES: Final = Operation(
    "GET /admin/tools/routes", "Where every qualified name leads (MCP-AX 7.1).", output=ToolRoutes
)
LIST_SKILLS: Final = Operation("GET /admin/skills", "Skills that drivers bring.", output=Skills)
GET_TOOL: Final = Operation(
    "GET /admin/tools/{name}",
    "One tool, by its qualified name or alias, and what a call of it would meet.",
    output=ToolDetail,
    query=(CALLER,),
    errors=(WITHHELD,),
)
CALL_TOOL: Final = Operation(
    "POST /admin/tools/{name}/call",
    "Call a tool, through the same guard as any client. To close the connection cancels the call.",
    input=CallTool,
    output=CallEvent,
    is_stream=True,
)
CLASSIFY_TOOL: Final = Operation(
    "POST /admin/tools/{name:path}/classify",
    "Ask what a tool does that does not say it, or about a definition that was denied; gives the approval that waits.",
    output=Approval,
    status=201,
    errors=(CLASSIFIED,),
)

OPERATIONS: Final = operations_in(globals(), "tools")
