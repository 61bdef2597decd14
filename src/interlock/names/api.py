"""The operator API about the registry of tool surface names."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from interlock.operator.operation import (
    INVALID_BODY,
    NOT_FOUND,
    ChoiceParameter,
    ErrorCase,
    FlagParameter,
    IntegerParameter,
    Operation,
    RequestBody,
    TextParameter,
    operations_in,
)

NamesAction = Literal[
    "request",
    "amend",
    "cancel",
    "deprecate",
    "reinstate",
    "withdraw",
    "transfer",
    "confirm-public",
    "declare",
    "end",
    "consent",
    "dispute",
]


class NameSummary(Struct, frozen=True, kw_only=True):
    """The seven fields of an entry, with the additional values that a list of entries shows."""

    surface_name: Annotated[str, Meta(description="The name.")]
    specification_reference: Annotated[str, Meta(description="The document that specifies it.")]
    authentication_scope: Annotated[str, Meta(description="Which credential a server asks for.")]
    vendor_prefix: Annotated[str, Meta(description="The prefix it falls under, or none.")]
    change_controller: Annotated[str, Meta(description="Who may change the entry.")]
    status: Annotated[str, Meta(description="Active, Provisional, Deprecated or Withdrawn.")]
    first_registered: Annotated[str, Meta(description="On which day.")]
    source: Annotated[str, Meta(description="Where it was imported from; empty: registered here.")]
    is_trusted: Annotated[bool, Meta(description="Whether a mismatch with it may be enforced.")]
    is_overdue: Annotated[bool, Meta(description="Whether its review is late.")]
    public_confirmed_on: Annotated[str | None, Meta(description="When it was last confirmed to be public.")]
    is_unconfirmed: Annotated[bool, Meta(description="Public, and not confirmed for 90 days.")]
    servers: Annotated[tuple[str, ...], Meta(description="The servers here that offer it now.")]
    calls: Annotated[int | None, Meta(description="Calls of it that were admitted; null: not counted.")]


class Names(Struct, frozen=True, kw_only=True):
    """The entries of the registry, in the order of their names."""

    names: Annotated[tuple[NameSummary, ...], Meta(description="The entries that fit, up to the limit.")]
    total: Annotated[int, Meta(description="How many the registry has.")]
    matching: Annotated[int, Meta(description="How many fit what was asked for.")]
    overdue: Annotated[int, Meta(description="How many provisional entries wait for a late review.")]
    unconfirmed: Annotated[int, Meta(description="How many public entries were not confirmed for 90 days.")]
    trouble: Annotated[str | None, Meta(description="Why the registry cannot be used.")]


class NameDetails(Struct, frozen=True, kw_only=True):
    """Details of an entry, with its requests and its log."""

    surface_name: Annotated[str, Meta(description="The name.")]
    entry: Annotated[Raw, Meta(description="The entry as the published JSON has it; null: there is none.")]
    requests: Annotated[tuple[Raw, ...], Meta(description="The requests about it, oldest first.")]
    implementations: Annotated[tuple[Raw, ...], Meta(description="Its declared implementations.")]
    log: Annotated[tuple[Raw, ...], Meta(description="Every step about it, oldest first, where that was asked for.")]


class NameFinding(Struct, frozen=True, kw_only=True):
    """A finding of a machine check."""

    criterion: Annotated[int, Meta(description="1 to 5; 0: beside them.")]
    verdict: Annotated[str, Meta(description="fail, revise, needs_expert or note.")]
    code: Annotated[str, Meta(description="A name that a program can act on.")]
    reason: Annotated[str, Meta(description="The reason, for people.")]


class NameCriterion(Struct, frozen=True, kw_only=True):
    """A criterion of the registry, with its outcome."""

    criterion: Annotated[int, Meta(description="1 to 5.")]
    says: Annotated[str, Meta(description="What must hold.")]
    outcome: Annotated[str, Meta(description="pass, needs_expert, revise, fail or not_checked.")]


class NameCheck(Struct, frozen=True, kw_only=True):
    """The results of the machine checks for a request that was not filed."""

    surface_name: Annotated[str, Meta(description="The name.")]
    criteria: Annotated[tuple[NameCriterion, ...], Meta(description="The five criteria.")]
    findings: Annotated[tuple[NameFinding, ...], Meta(description="What was found.")]


class NameOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of an action on the registry."""

    action: Annotated[str, Meta(description="The action.")]
    subject: Annotated[str, Meta(description="The name, prefix or request it is about.")]
    kind: Annotated[str, Meta(description="entry, request, consent or implementation.")]
    state: Annotated[str, Meta(description="The status of the entry, or the state of the request.")]
    reason: Annotated[str, Meta(description="Why a request was returned.")]
    approval: Annotated[str | None, Meta(description="What waits for an expert in the inbox.")]
    document: Annotated[Raw, Meta(description="The entry, request, consent or implementation.")]


class NameVerification(Struct, frozen=True, kw_only=True):
    """The result of comparing a tool with the registered specification of its name."""

    surface_name: Annotated[str, Meta(description="The name.")]
    verdict: Annotated[
        str, Meta(description="identical, compatible, input_only, undecided, mismatch, unverifiable, ...")
    ]
    is_verified: Annotated[bool, Meta(description="Whether it keeps to it.")]
    differences: Annotated[tuple[str, ...], Meta(description="Where it does not, or may not.")]
    notes: Annotated[tuple[str, ...], Meta(description="deprecated, behind, unknown_revision, ...")]


class PinnedTool(Struct, frozen=True, kw_only=True):
    """A tool that is compared with the schemas that it had when it was pinned."""

    tool: Annotated[str, Meta(description="Its qualified name.")]
    digest: Annotated[str, Meta(description="Of the schemas it is held to.")]


class PinnedTools(Struct, frozen=True, kw_only=True):
    """The tools that were pinned, or whose pins were removed."""

    tools: Annotated[tuple[PinnedTool, ...], Meta(description="In the order of the alphabet.")]


class NamePrefix(Struct, frozen=True, kw_only=True):
    """A vendor prefix, held by a controller. The holder follows from the registry's rules, not from a signature."""

    prefix: Annotated[str, Meta(description="The prefix.")]
    controller: Annotated[str, Meta(description="Who first used it, or was ruled to hold it.")]
    first_entry: Annotated[str, Meta(description="The entry that used it first.")]
    since: Annotated[str, Meta(description="Since when.")]
    ruling: Annotated[str, Meta(description="The dispute that settled it; empty: none.")]


class NamePrefixes(Struct, frozen=True, kw_only=True):
    """The vendor prefixes that entries have used."""

    prefixes: Annotated[tuple[NamePrefix, ...], Meta(description="In the order of the alphabet.")]


class ActOnName(RequestBody, frozen=True, kw_only=True):
    """An action on a name or prefix of the registry."""

    action: Annotated[NamesAction, Meta(description="The action.")]
    subject: Annotated[str, Meta(description="The name, prefix or request it is about.", min_length=1, max_length=200)]
    body: Annotated[Raw | UnsetType, Meta(description="What the action takes, as docs/names.md lists it.")] = UNSET
    override: Annotated[
        str, Meta(description="Why an admin acts in the place of the controller; it is recorded.", max_length=4000)
    ] = ""


class CheckName(RequestBody, frozen=True, kw_only=True):
    """A request that is only checked, not filed."""

    name: Annotated[str, Meta(description="The surface name.", max_length=1000)]
    proposal: Annotated[Raw, Meta(description="What would be asked for, as docs/names.md lists it.")]


class VerifyName(RequestBody, frozen=True, kw_only=True):
    """The definition of a tool, to be compared with the registered specification of its name."""

    name: Annotated[str, Meta(description="The surface name.", min_length=1, max_length=64)]
    definition: Annotated[Raw, Meta(description="The tool as a server lists it: inputSchema, outputSchema.")]


class PinName(RequestBody, frozen=True, kw_only=True):
    """The tools that are pinned to their current definitions, or whose pins are removed."""

    name: Annotated[str, Meta(description="A surface name, or a tool's qualified name.", min_length=1, max_length=500)]
    remove: Annotated[bool, Meta(description="Take the pins away instead.")] = False


class TrustSource(RequestBody, frozen=True, kw_only=True):
    """The setting whether the entries of an imported registry are enforced."""

    source: Annotated[str, Meta(description="Where it was imported from.", min_length=1, max_length=500)]
    trusted: Annotated[bool, Meta(description="Whether it is trusted.")]


# Errors

NAMES_REFUSED: Final = ErrorCase(
    "name_taken", 409, "or another reason of the registry: name_syntax, prefix_conflict, not_change_controller, ..."
)


# Query parameters

PUBLIC: Final = FlagParameter(
    name="public", argument="only_public", description="yes: only public surfaces.", choices=("yes",)
)
STATUS: Final = ChoiceParameter(
    name="status",
    description="Only entries of this status.",
    choices=("Active", "Provisional", "Deprecated", "Withdrawn"),
)
SEARCH: Final = TextParameter(
    name="search", description="Only entries with this in their name, controller or reference."
)
LIMIT: Final = IntegerParameter(
    name="limit", description="At most so many.", default=1_000_000, minimum=1, maximum=1_000_000
)
LOG: Final = FlagParameter(name="log", argument="with_log", description="yes: with every step.", choices=("yes",))
FORM: Final = ChoiceParameter(
    name="form", description="The form.", choices=("xml", "csv", "txt", "json"), default="xml"
)


# Operations

LIST_NAMES: Final = Operation(
    "list_names",
    "names",
    "GET /admin/names",
    "The registry of tool surface names.",
    output=Names,
    query=(PUBLIC, STATUS, SEARCH, LIMIT),
)
LIST_PREFIXES: Final = Operation(
    "list_prefixes",
    "names",
    "GET /admin/names/prefixes",
    "The vendor prefixes, and who holds each by first use.",
    output=NamePrefixes,
)
PUBLISH: Final[Operation[None]] = Operation(
    "publish",
    "names",
    "GET /admin/names/publication",
    "The registry as it is published.",
    query=(FORM,),
    files=("application/xml", "text/csv; charset=utf-8", "text/plain; charset=utf-8", "application/json"),
)
SHOW_NAME: Final = Operation(
    "show_name",
    "names",
    "GET /admin/names/entries/{name}",
    "One entry in full, with its requests.",
    output=NameDetails,
    query=(LOG,),
    errors=(NOT_FOUND,),
)
CHECK_NAME: Final = Operation(
    "check_name",
    "names",
    "POST /admin/names/check",
    "Run the machine checks of a request, and file nothing.",
    role="admin",
    input=CheckName,
    output=NameCheck,
    errors=(INVALID_BODY,),
)
VERIFY_NAME: Final = Operation(
    "verify_name",
    "names",
    "POST /admin/names/verify",
    "Compare a tool's definition with the registered specification of its name.",
    role="admin",
    input=VerifyName,
    output=NameVerification,
    errors=(INVALID_BODY,),
)
ACT: Final = Operation(
    "act",
    "names",
    "POST /admin/names/actions",
    "Ask for a name, or act on one: as its controller, or in its place and on record.",
    role="admin",
    input=ActOnName,
    output=NameOutcome,
    errors=(NOT_FOUND, NAMES_REFUSED),
)
TRUST: Final = Operation(
    "trust",
    "names",
    "POST /admin/names/trust",
    "Say whether what an imported registry says is enforced.",
    role="admin",
    input=TrustSource,
    output=Names,
    errors=(NOT_FOUND, NAMES_REFUSED),
)
REPIN: Final = Operation(
    "repin",
    "names",
    "POST /admin/names/pins",
    "Hold the tools of a name to what they are now, or no longer.",
    role="admin",
    input=PinName,
    output=PinnedTools,
    errors=(NOT_FOUND,),
)

OPERATIONS: Final = operations_in(globals())
