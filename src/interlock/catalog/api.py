"""The operator API for tools: the list of tools, the guard's verdict on a call, and calls that an operator makes."""

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from interlock.approvals.api import Approval
from interlock.drivers.api import Skills
from interlock.operator.operation import NOT_FOUND, ErrorCase, Operation, RequestBody, TextParameter, operations_in


class ToolOperation(Struct, frozen=True, kw_only=True):
    """A tool as an MCP-AQL operation, and how its category was determined."""

    name: Annotated[str, Meta(description="The name of the operation.")]
    category: Annotated[str, Meta(description="CREATE, READ, UPDATE, DELETE or EXECUTE.")]
    rule: Annotated[
        str, Meta(description="By which rule: operator, read_only, verb, shape, contradiction or fallback.")
    ]
    reason: Annotated[str | None, Meta(description="Why, where the rule alone does not say it.")]


class ToolSurface(Struct, frozen=True, kw_only=True):
    """The verdict of the names registry on a tool."""

    name: Annotated[str, Meta(description="The surface name.")]
    verdict: Annotated[str, Meta(description="identical, compatible, input_only, undecided, mismatch, ...")]
    status: Annotated[str | None, Meta(description="Of the entry; null: the name is not registered.")]
    digest: Annotated[str | None, Meta(description="Of the schemas that the server offers.")]
    registered: Annotated[str | None, Meta(description="Of the schemas of the specification.")]
    revision: Annotated[int | None, Meta(description="The current one of the specification.")]
    notes: Annotated[tuple[str, ...], Meta(description="behind, unknown_revision, claim_mismatch, deprecated, ...")]
    differences: Annotated[tuple[str, ...], Meta(description="Where it does not keep to it, or may not.")]
    refused: Annotated[bool, Meta(description="Whether every call is refused for it.")]
    warning: Annotated[str, Meta(description="What an operator should know; empty: nothing.")]


class Tool(Struct, frozen=True, kw_only=True):
    """A tool that is listed or withheld."""

    name: Annotated[str, Meta(description="Its qualified name.")]
    alias: Annotated[str | None, Meta(description="Its name for clients that take no dots.")]
    segment: Annotated[str, Meta(description="The link it belongs to.")]
    original: Annotated[str, Meta(description="Its name at its server.")]
    title: Annotated[str | None, Meta(description="Its title.")]
    description: Annotated[str | None, Meta(description="What it does, in the words of its server.")]
    state: Annotated[str, Meta(description="How its link stands.")]
    capability: Annotated[dict[str, Any], Meta(description="What a call may change (MCP-AX 10); empty: not known.")]
    unclassified: Annotated[
        bool | UnsetType, Meta(description="Whether its effect is not known; absent for what its link withholds.")
    ] = UNSET
    operation: Annotated[
        ToolOperation | UnsetType, Meta(description="What the AQL surfaces call it; absent where they have none.")
    ] = UNSET
    hops: Annotated[int, Meta(description="Hops to its server.")]
    withheld: Annotated[str | None, Meta(description="Why it is not listed; null: it is.")]
    surface: Annotated[
        ToolSurface | UnsetType, Meta(description="What the registry of names says of it; absent: nothing.")
    ] = UNSET


class Tools(Struct, frozen=True, kw_only=True):
    """The list of all tools."""

    tools: Annotated[tuple[Tool, ...], Meta(description="By link; what links withhold comes last.")]


class Owner(Struct, frozen=True, kw_only=True):
    """The party that is responsible for a tool: the operator for a configured server, otherwise the registrant."""

    kind: Annotated[str, Meta(description="configuration, or the kind of link that registered.")]
    principal: Annotated[str | UnsetType, Meta(description="Of a registrant: whom its credential names.")] = UNSET
    subserver_id: Annotated[str | UnsetType, Meta(description="Of a registrant: its own id.")] = UNSET
    authority: Annotated[str | UnsetType | None, Meta(description="Of a registrant: the domain it speaks for.")] = UNSET
    verified: Annotated[bool, Meta(description="Whether that is proved.")]


class CheckVerdict(Struct, frozen=True, kw_only=True):
    """The verdict that one check of the guard would give on a call."""

    number: Annotated[int, Meta(description="The place of the check in the guard's order.")] = field(name="rung")
    name: Annotated[str, Meta(description="The name of the check.")]
    verdict: Annotated[
        str, Meta(description="pass, refuse, hold (a person decides) or later (only the call can tell).")
    ]
    reason: Annotated[str, Meta(description="Why.")]


class ToolDetail(Tool, frozen=True, kw_only=True):
    """The details of a tool, with the verdicts of the checks on a call by a given caller."""

    definition: Annotated[dict[str, Any], Meta(description="As clients see it.")]
    route: Annotated[tuple[str, ...], Meta(description="The segments that lead to it, and its local name.")]
    era: Annotated[str, Meta(description="The era of its link: legacy or modern.")]
    owner: Annotated[Owner, Meta(description="Who answers for it.")]
    caller: Annotated[str, Meta(description="The principal whose call the checks are told for.")]
    checks: Annotated[tuple[CheckVerdict, ...], Meta(description="Every check that a call meets, in order.")] = field(
        name="rungs"
    )


class ToolRoute(Struct, frozen=True, kw_only=True):
    """The route from the name of a tool to its server (MCP-AX 7.1)."""

    downstream_session: Annotated[str, Meta(description="The session of its link, masked.")]
    downstream_name: Annotated[str, Meta(description="Its name there.")]
    capability: Annotated[dict[str, Any], Meta(description="What a call may change; empty: not known.")]
    registered_at: Annotated[str, Meta(description="Since when.")]


ToolRoutes = dict[str, ToolRoute]  # by qualified name


class CallProgress(Struct, frozen=True, kw_only=True):
    """The progress of a call, as reported by its server."""

    progress: Annotated[float, Meta(description="How far.")]
    total: Annotated[float | None, Meta(description="Of how much; null: not known.")] = None
    message: Annotated[str | None, Meta(description="In words.")] = None


class CallHeld(Struct, frozen=True, kw_only=True):
    """A call that waits for a person's approval. After the approval, this call runs once."""

    approval_id: Annotated[str, Meta(description="The approval that it waits for.")]
    url: Annotated[str | None, Meta(description="Its page, at the node that holds the call.")]


class CallEvent(Struct, frozen=True, kw_only=True):
    """An event in the stream of a call: progress, a result or an error.

    Progress may occur any number of times. A result or an error ends the stream.
    """

    progress: Annotated[CallProgress | UnsetType, Meta(description="How far it is.")] = UNSET
    result: Annotated[Raw | UnsetType, Meta(description="The result, as clients get it.")] = UNSET
    held: Annotated[CallHeld | UnsetType, Meta(description="With a result that says that the call waits.")] = UNSET
    error: Annotated[Raw | UnsetType, Meta(description="Why there is none: code, message and data.")] = UNSET


class CallTool(RequestBody, frozen=True, kw_only=True):
    """Request to call a tool."""

    arguments: Annotated[Raw | UnsetType, Meta(description="An object, sent as the bytes it is; none: {}.")] = UNSET


# Errors

CLASSIFIED: Final = ErrorCase("classified", 409, "it is known already what the tool does")
WITHHELD: Final = ErrorCase("withheld", 409, "the tool is withheld; the message says why")


# Query parameters

SEARCH: Final = TextParameter(name="search", description="Words: only the tools that fit them best, best first.")
CALLER: Final = TextParameter(
    name="as", argument="caller", description="The principal whose call the checks are told for.", default="local"
)


# Operations

LIST_TOOLS: Final = Operation(
    "list_tools", "tools", "GET /admin/tools", "Every tool, listed or withheld.", output=Tools, query=(SEARCH,)
)
LIST_ROUTES: Final = Operation(
    "list_routes",
    "tools",
    "GET /admin/tools/routes",
    "Where every qualified name leads (MCP-AX 7.1).",
    output=ToolRoutes,
)
LIST_SKILLS: Final = Operation("list_skills", "tools", "GET /admin/skills", "Skills that drivers bring.", output=Skills)
GET_TOOL: Final = Operation(
    "get_tool",
    "tools",
    "GET /admin/tools/{name}",
    "One tool, by its qualified name or alias, and what a call of it would meet.",
    output=ToolDetail,
    query=(CALLER,),
    errors=(
        NOT_FOUND,
        WITHHELD,
    ),
)
CALL_TOOL: Final = Operation(
    "call_tool",
    "tools",
    "POST /admin/tools/{name}/call",
    "Call a tool, through the same guard as any client. To close the connection cancels the call.",
    role="admin",
    input=CallTool,
    output=CallEvent,
    is_stream=True,
)
CLASSIFY_TOOL: Final = Operation(
    "classify_tool",
    "tools",
    "POST /admin/tools/{name}/classify",
    "Ask what a tool does that does not say it; gives the approval that then waits.",
    role="admin",
    output=Approval,
    status=201,
    errors=(
        NOT_FOUND,
        CLASSIFIED,
    ),
)

OPERATIONS: Final = operations_in(globals())
