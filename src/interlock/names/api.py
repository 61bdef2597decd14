"""The operator API about the registry of tool surface names."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from interlock.operator import operation
from interlock.operator.operation import INVALID_BODY, NOT_FOUND, Operation, RequestBody

# Actions on an entry that exists. Each takes the surface name.
EntryAction = Literal["deprecate", "reinstate", "withdraw", "transfer", "confirm-public", "declare", "end"]
NamesAction = Literal["request", "amend", "cancel", EntryAction, "consent", "dispute"]


class NameSummary(Struct, frozen=True, kw_only=True):
    """The seven published fields of an entry, with the additional values that a list of entries shows.

    Members:
        surface_name: The name.
        specification_reference: The document that specifies it.
        authentication_scope: Which credential a server asks for.
        vendor_prefix: The prefix it falls under, or none.
        change_controller: Who may change the entry.
        status: Active, Provisional, Deprecated or Withdrawn.
        first_registered: On which day.
        source: Where it was imported from; empty: registered here.
        origin: Where it comes from, in words: the initial contents of a draft, a registry, or registered here.
        is_trusted: Whether a mismatch with it may be enforced.
        is_overdue: Whether its review is late.
        public_confirmed_on: When it was last confirmed to be public.
        is_unconfirmed: Public, and not confirmed for 90 days.
        servers: The servers here that offer it now.
        calls: Calls of it that were admitted; null: not counted.
    """

    surface_name: str
    specification_reference: str
    authentication_scope: str
    vendor_prefix: str
    change_controller: str
    status: str
    first_registered: str
    source: str
    origin: str
    is_trusted: bool
    is_overdue: bool
    public_confirmed_on: str | None
    is_unconfirmed: bool
    servers: tuple[str, ...]
    calls: int | None


class ComparedRegistry(Struct, frozen=True, kw_only=True):
    """A registry that was imported to be compared with this one, and that changes nothing here.

    Members:
        source: Where it was imported from.
        imported_on: On which day.
        entries: How many it has.
        differing: How many of them are missing or different here.
    """

    source: str
    imported_on: str
    entries: int
    differing: int


class NameComparison(Struct, frozen=True, kw_only=True):
    """The differences between this registry and one that is only compared, about a name.

    Members:
        source: Where it was imported from.
        imported_on: On which day.
        status: The status that the name has there; null: no entry there.
        differences: Each difference in words; none: the same.
    """

    source: str
    imported_on: str
    status: str | None
    differences: tuple[str, ...]


class Names(Struct, frozen=True, kw_only=True):
    """The entries of the registry, in the order of their names.

    Members:
        names: The entries that fit, up to the limit.
        total: How many the registry has.
        matching: How many fit what was asked for.
        overdue: How many provisional entries wait for a late review.
        unconfirmed: How many public entries were not confirmed for 90 days.
        compared: The registries that are only compared with this one.
        trouble: Why the registry cannot be used.
    """

    names: tuple[NameSummary, ...]
    total: int
    matching: int
    overdue: int
    unconfirmed: int
    compared: tuple[ComparedRegistry, ...]
    trouble: str | None


class NameDetails(Struct, frozen=True, kw_only=True):
    """Details of an entry, with its requests and its log.

    Members:
        surface_name: The name.
        entry: The entry as the published JSON has it; null: there is none.
        origin: Where it comes from, in words; null: there is no entry.
        comparisons: What the registries that are only compared say of the name.
        requests: The requests about it, oldest first.
        implementations: Its declared implementations.
        log: Every step about it, oldest first, where that was asked for.
    """

    surface_name: str
    entry: Raw
    origin: str | None
    comparisons: tuple[NameComparison, ...]
    requests: tuple[Raw, ...]
    implementations: tuple[Raw, ...]
    log: tuple[Raw, ...]


class NameFinding(Struct, frozen=True, kw_only=True):
    """A finding of a machine check.

    Members:
        criterion: 1 to 5; 0: beside them.
        verdict: fail, revise, needs_expert or note.
        code: A name that a program can act on.
        reason: The reason, for people.
    """

    criterion: int
    verdict: str
    code: str
    reason: str


class NameCriterion(Struct, frozen=True, kw_only=True):
    """A criterion of the registry, with its outcome.

    Members:
        criterion: 1 to 5.
        says: What must hold.
        outcome: pass, needs_expert, revise, fail or not_checked.
    """

    criterion: int
    says: str
    outcome: str


class NameCheck(Struct, frozen=True, kw_only=True):
    """The results of the machine checks for a request that was not filed.

    Members:
        surface_name: The name.
        criteria: The five criteria.
        findings: What was found.
    """

    surface_name: str
    criteria: tuple[NameCriterion, ...]
    findings: tuple[NameFinding, ...]


class NameOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of an action on the registry.

    Members:
        action: The action.
        subject: The name, prefix or request it is about.
        kind: entry, request, consent or implementation.
        state: The status of the entry, or the state of the request.
        reason: Why a request was returned.
        approval: What waits for an expert in the inbox.
        document: The entry, request, consent or implementation.
    """

    action: str
    subject: str
    kind: str
    state: str
    reason: str
    approval: str | None
    document: Raw


class NameVerification(Struct, frozen=True, kw_only=True):
    """The result of comparing a tool with the registered specification of its name.

    Members:
        surface_name: The name.
        verdict: identical, compatible, input_only, undecided, mismatch, unverifiable, ...
        is_verified: Whether it keeps to it.
        differences: Where it does not, or may not.
        notes: deprecated, behind, unknown_revision, ...
    """

    surface_name: str
    verdict: str
    is_verified: bool
    differences: tuple[str, ...]
    notes: tuple[str, ...]


class PinnedTool(Struct, frozen=True, kw_only=True):
    """A tool that is compared with the schemas that it had when it was pinned.

    Members:
        tool: Its qualified name.
        digest: Of the schemas it is held to.
    """

    tool: str
    digest: str


class PinnedTools(Struct, frozen=True, kw_only=True):
    """The tools that were pinned, or whose pins were removed.

    Members:
        tools: In the order of the alphabet.
    """

    tools: tuple[PinnedTool, ...]


class NamePrefix(Struct, frozen=True, kw_only=True):
    """A vendor prefix and its holder, the controller that first used the prefix or to which a ruling gave it. The
    holder is not proved by a signature.

    Members:
        prefix: The prefix.
        controller: Who first used it, or was ruled to hold it.
        first_entry: The entry that used it first.
        since: Since when.
        ruling: The dispute that settled it; empty: none.
    """

    prefix: str
    controller: str
    first_entry: str
    since: str
    ruling: str


class NamePrefixes(Struct, frozen=True, kw_only=True):
    """The vendor prefixes that entries have used.

    Members:
        prefixes: In the order of the alphabet.
    """

    prefixes: tuple[NamePrefix, ...]


class ActOnName(RequestBody, frozen=True, kw_only=True):
    """An action on a name or prefix of the registry.

    Members:
        action: The action.
        subject: The name, prefix or request it is about.
        body: What the action takes, as docs/names.md lists it.
        override: Why an admin acts in the place of the controller; it is recorded.
    """

    action: NamesAction
    subject: Annotated[str, Meta(min_length=1, max_length=200)]
    body: Raw | UnsetType = UNSET
    override: Annotated[str, Meta(max_length=4000)] = ""


class CheckName(RequestBody, frozen=True, kw_only=True):
    """A request that is only checked, not filed.

    Members:
        name: The surface name.
        proposal: What would be asked for, as docs/names.md lists it.
    """

    name: Annotated[str, Meta(max_length=1000)]
    proposal: Raw


class VerifyName(RequestBody, frozen=True, kw_only=True):
    """The definition of a tool, to be compared with the registered specification of its name.

    Members:
        name: The surface name.
        definition: The tool as a server lists it: inputSchema, outputSchema.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    definition: Raw


class PinName(RequestBody, frozen=True, kw_only=True):
    """A request to pin the tools of a name to their current definitions, or to remove their pins.

    Members:
        name: A surface name, or a tool's qualified name.
        remove: Take the pins away instead.
    """

    name: Annotated[str, Meta(min_length=1, max_length=500)]
    remove: bool = False


class TrustSource(RequestBody, frozen=True, kw_only=True):
    """A request to enforce the entries of an imported registry, or to stop enforcing them.

    Members:
        source: Where it was imported from.
        trusted: Whether it is trusted.
    """

    source: Annotated[str, Meta(min_length=1, max_length=500)]
    trusted: bool


# Errors

NAMES_REFUSED: Final = operation.ErrorCase(
    "name_taken", 409, "or another reason of the registry: name_syntax, prefix_conflict, not_change_controller, ..."
)


# Query parameters

PUBLIC: Final = operation.FlagParameter(
    "public", "yes: only public surfaces.", argument="only_public", choices=("yes",)
)
STATUS: Final = operation.ChoiceParameter(
    "status", "Only entries of this status.", choices=("Active", "Provisional", "Deprecated", "Withdrawn")
)
SEARCH: Final = operation.TextParameter("search", "Only entries with this in their name, controller or reference.")
LIMIT: Final = operation.IntegerParameter("limit", "At most so many.", default=1_000_000, minimum=1, maximum=1_000_000)
LOG: Final = operation.FlagParameter("log", "yes: with every step.", argument="with_log", choices=("yes",))
FORM: Final = operation.ChoiceParameter("form", "The form.", choices=("xml", "csv", "txt", "json"), default="xml")


# Operations

LIST_NAMES: Final = Operation(
    "GET /admin/names", "The registry of tool surface names.", output=Names, query=(PUBLIC, STATUS, SEARCH, LIMIT)
)
LIST_PREFIXES: Final = Operation(
    "GET /admin/names/prefixes", "The vendor prefixes, and who holds each by first use.", output=NamePrefixes
)
PUBLISH: Final[Operation[None]] = Operation(
    "GET /admin/names/publication",
    "The registry as it is published.",
    query=(FORM,),
    files=("application/xml", "text/csv; charset=utf-8", "text/plain; charset=utf-8", "application/json"),
)
SHOW_NAME: Final = Operation(
    "GET /admin/names/entries/{name}", "One entry in full, with its requests.", output=NameDetails, query=(LOG,)
)
CHECK_NAME: Final = Operation(
    "POST /admin/names/check",
    "Run the machine checks of a request, and file nothing.",
    input=CheckName,
    output=NameCheck,
    errors=(INVALID_BODY,),
)
VERIFY_NAME: Final = Operation(
    "POST /admin/names/verify",
    "Compare a tool's definition with the registered specification of its name.",
    input=VerifyName,
    output=NameVerification,
    errors=(INVALID_BODY,),
)
ACT: Final = Operation(
    "POST /admin/names/actions",
    "Ask for a name, or act on one: as its controller, or in its place and on record.",
    input=ActOnName,
    output=NameOutcome,
    errors=(NOT_FOUND, NAMES_REFUSED),
)
TRUST: Final = Operation(
    "POST /admin/names/trust",
    "Say whether what an imported registry says is enforced.",
    input=TrustSource,
    output=Names,
    errors=(NOT_FOUND, NAMES_REFUSED),
)
REPIN: Final = Operation(
    "POST /admin/names/pins",
    "Hold the tools of a name to what they are now, or no longer.",
    input=PinName,
    output=PinnedTools,
    errors=(NOT_FOUND,),
)

OPERATIONS: Final = operation.operations_in(globals(), "names")
