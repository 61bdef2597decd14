"""The machine checks of a request, and what an accepted request changes.

The checks are the five criteria of the draft's section 5, and notes for the expert. They refuse what no expert may
accept (criterion 1, and criterion 5 by exact match or prefix), return what is unclear, and otherwise leave the decision
to a person. They never accept. Criterion 2 is about the specification reference, criterion 3 about the precision of the
schemas. The last part of this module builds the entry and the controller's record that follow from an accepted request.
"""

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from interlock.names.protocol import grammar
from interlock.names.protocol.entry import NONE, PUBLIC, EntryStatus, RegistryEntry, Revision, copied, review_due
from interlock.names.protocol.judgement import SCHEMA_BYTES_MAX, SchemaPair, SurfaceVerdict, compare
from interlock.names.protocol.registry import (
    TEXT_CHARS_MAX,
    CheckFinding,
    Controller,
    NameProposal,
    NameRequest,
    NamesRegistry,
    Retrieval,
    Verdict,
)
from interlock.net.protocol.address_scope import Scope, find_scope
from interlock.wire.jsonrpc.codec import CodecError, decode_value
from interlock.wire.jsontext.canonical import pointer_step
from interlock.wire.schemas import digest
from interlock.wire.schemas.budget import Effort, EffortSpent
from interlock.wire.schemas.validators import compile_schema

PLACES_MAX: Final = 20  # imprecise places that are named for one schema
DEPTH_MAX: Final = 64  # of a schema; what is nested deeper counts as imprecise
_SAYS_TYPE: Final = frozenset(["type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"])


def has_schema(raw: Raw) -> bool:
    """Return whether a schema is given. Null means that it is not."""
    return bytes(raw).strip() != b"null"


def imprecise_places(raw: Raw, *, is_argument: bool) -> list[str]:
    """Return what is imprecise in a schema, each with its place (criterion 3). The list is empty if clients can rely on
    the schema.
    """
    what = "argument schema" if is_argument else "return schema"
    if not has_schema(raw):
        return [f"the {what} is missing"]
    if len(raw) > SCHEMA_BYTES_MAX:
        return [f"the {what} has more than {SCHEMA_BYTES_MAX} bytes"]
    try:
        schema = decode_value(raw)
    except CodecError:
        return [f"the {what} is not JSON"]
    compiled = compile_schema(schema)
    if compiled is None:
        return [f"the {what} is no JSON Schema, or too large to be applied"]
    problems = [] if compiled.is_whole else [f"the {what} refers to another document"]
    if is_argument and not (isinstance(schema, Mapping) and schema.get("type") == "object"):
        problems.append("the argument schema's root has not the type object")
    problems += [f"the {what} has no type at {place or 'its root'}" for place in _untyped(schema, "", 0)]
    return problems[:PLACES_MAX]


def _untyped(schema: Any, place: str, depth: int) -> Iterator[str]:
    """Yield the places, as JSON pointers, at which a schema does not restrict the type of the value."""
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX or _SAYS_TYPE.isdisjoint(schema):
        yield place
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, each in properties.items():
            yield from _untyped(each, f"{place}/properties/{pointer_step(str(name))}", depth + 1)
    if "items" in schema:
        yield from _untyped(schema["items"], f"{place}/items", depth + 1)


def schema_digest(raw: Raw) -> str | None:
    """Return the digest of a schema's normalised form (REG-8.1-3). Return None if the schema is missing, unreadable or
    too large.
    """
    if not has_schema(raw) or len(raw) > SCHEMA_BYTES_MAX:
        return None
    try:
        return digest.schema_digest(decode_value(raw))
    except CodecError:
        return None


def _pair(revision: Revision) -> SchemaPair:
    returned = revision.return_schema
    return SchemaPair(revision.argument_schema, returned if has_schema(returned) else None)


REFERENCE_CHARS_MAX: Final = 2000

_RFC: Final = re.compile(r"RFC ?([1-9][0-9]{0,4})", re.IGNORECASE)
_DRAFT: Final = re.compile(r"draft(?:-[a-z0-9]+)+")
_REVISED: Final = re.compile(r"(.+)-([0-9]{2})")
_DOI: Final = re.compile(r"(?:doi:|https://doi\.org/)(10\.[0-9]{4,9}/\S+)", re.IGNORECASE)
_DATATRACKER: Final = re.compile(
    r"https://datatracker\.ietf\.org/doc/(?:html/)?(draft(?:-[a-z0-9]+)+?)(?:[/-]([0-9]{2}))?/?"
)
_CODE_HOSTS: Final = frozenset(["github.com", "gitlab.com", "codeberg.org", "bitbucket.org"])
_COMMIT: Final = re.compile(r"/[0-9a-f]{40}(?:/|$)")
_SHARED_HOSTS: Final = frozenset([*_CODE_HOSTS, "datatracker.ietf.org", "doi.org", "www.rfc-editor.org"])
_PRIVATE_ENDS: Final = (".local", ".internal", ".localhost", ".lan", ".home.arpa")


class DocumentReference(msgspec.Struct, frozen=True, kw_only=True):
    """A specification reference. `unstable` says why the document may change; `url` is the address from which it can be
    fetched.
    """

    kind: Literal["rfc", "draft", "doi", "uri", "unknown"]
    data: str  # as a cross-reference of a published registry has it
    url: str | None = None
    unstable: str | None = None
    owner: str | None = None  # the host, where it belongs to one organisation


def read_reference(text: str) -> DocumentReference:
    """Read a reference to an RFC, a draft, a DOI or a web page. Any other text gets the kind `unknown`."""
    if (rfc := _RFC.fullmatch(text)) is not None:
        return DocumentReference(kind="rfc", data=f"rfc{rfc[1]}", url=f"https://www.rfc-editor.org/rfc/rfc{rfc[1]}.txt")
    if (datatracker := _DATATRACKER.fullmatch(text)) is not None:
        return _draft(datatracker[1], datatracker[2])
    if _DRAFT.fullmatch(text) is not None:
        revised = _REVISED.fullmatch(text)
        return _draft(revised[1], revised[2]) if revised is not None else _draft(text, None)
    if (doi := _DOI.fullmatch(text)) is not None:
        return DocumentReference(kind="doi", data=f"https://doi.org/{doi[1]}", url=f"https://doi.org/{doi[1]}")
    # Read a web address, and say why the document there may change.
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").lower()
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not host or len(text) > REFERENCE_CHARS_MAX or not text.isprintable():
        unstable = "it is no document identifier: an RFC, a draft, a DOI, https"
        return DocumentReference(kind="unknown", data=text, unstable=unstable)
    if parts.scheme == "http":  # REG-4.1-4
        return DocumentReference(kind="uri", data=text, unstable="it is http, which anyone on the way can change")
    if parts.username is not None:
        return DocumentReference(kind="uri", data=text, unstable="it holds a credential")
    scope = find_scope(host)
    is_local_name = "." not in host or host.endswith(_PRIVATE_ENDS)
    if is_local_name if scope is None else scope is not Scope.PUBLIC:  # REG-4.1-4
        return DocumentReference(kind="uri", data=text, unstable="its host is not public")
    owner = None if host in _SHARED_HOSTS else host
    if host in _CODE_HOSTS and _COMMIT.search(parts.path) is None:  # REG-4.1-4
        unstable = "it names a branch of a code host, not a commit"
        return DocumentReference(kind="uri", data=text, url=text, unstable=unstable)
    return DocumentReference(kind="uri", data=text, url=text, owner=owner)


def _draft(name: str, revision: str | None) -> DocumentReference:
    if revision is None:  # REG-4.1-4
        url = f"https://datatracker.ietf.org/doc/{name}/"
        return DocumentReference(kind="draft", data=name, url=url, unstable="it names no revision of the draft")
    full = f"{name}-{revision}"
    return DocumentReference(kind="draft", data=full, url=f"https://www.ietf.org/archive/id/{full}.txt")


CRITERIA: Final = {
    1: "the name conforms to the grammar",
    2: "the specification reference is stable and can be retrieved",
    3: "the schemas are precise enough for interoperable clients",
    4: "the authentication scope is well defined",
    5: "the name collides with no entry and no vendor prefix",
}
_RETRIEVALS: Final = {"failed": "reference_not_retrievable", "attached": "copy_attached"}
_RANKS: Final[dict[Verdict, int]] = {"note": 0, "needs_expert": 1, "revise": 2, "fail": 3}
_SECOND_LEVELS: Final = frozenset(["ac", "co", "com", "edu", "gov", "net", "org"])  # below the codes of countries
Outcome = Literal["pass", "needs_expert", "revise", "fail", "not_checked"]

# The reasons of findings by their codes. Values are inserted.
_REASONS: Final = {
    "controller_missing": "the change controller has a name of 1 to 200 printable characters",
    "controller_unproven": "no one has shown to act for {controller}; accepting lets the requester do so",
    "handle_syntax": "a handle is ~ and up to 32 lower-case letters, digits and hyphens, and ~org is no one's",
    "text_too_long": f"semantics and contact have at most {TEXT_CHARS_MAX} characters",
    "reference_missing": "a specification is required",
    "controller_reference_mismatch": "{owner} is not evidently {controller}'s",
    "semantics_missing": "say what the surface does, or which section of the document says it",
    "scope_ambiguous": "{problem} which credential the server asks for",
    "scope_syntax": "a scope is a class in lower case, perhaps with a colon and a tier: trust-tier:engineering",
    "scope_class_new": "{kind} is a new class of credential; accepting says that the specification defines it",
    "scope_tightened": "callers without a credential are shut out: a breaking change, to be stated as breaking",
    "public_not_permanent": "state no_authentication_planned: a public surface stays public",
    "prefix_mismatch": "{prefix} is no prefix of {name} that ends with an underscore",
    "prefix_advice": "{controller} has the prefix {prefix}; register all its surfaces under one",
    "prefix_missing": "a name without a prefix is for several vendors: state cross_vendor, or take a prefix",
    "lookalike": "it reads like {name} of {controller}",
}


def _finding(criterion: int, verdict: Verdict, code: str, reason: str = "", **values: str) -> CheckFinding:
    """Return a finding of a check. `reason` is a key of `_REASONS`, by default the code."""
    return CheckFinding(criterion, verdict, code, _REASONS[reason or code].format(**values))


def judge_proposal(
    proposal: NameProposal,
    registry: NamesRegistry,
    today: str,
    retrieval: Retrieval | None,
    *,
    amends: RegistryEntry | None = None,
) -> tuple[CheckFinding, ...]:
    """Run all machine checks on a proposal.

    `retrieval` is the result of fetching the reference, or None if it was not fetched. `amends` is the entry that the
    proposal changes, or None if the name is new.
    """
    fault = grammar.find_name_fault(proposal.surface_name)
    if fault is not None:  # REG-5-3
        return (CheckFinding(1, "fail", fault.code, f"{fault.reason} (at offset {fault.offset})"),)
    return (
        *(CheckFinding(1, "note", code, reason) for code, reason in grammar.length_warnings(proposal.surface_name)),
        *_texts(proposal),
        *_reference(proposal, retrieval),
        *_schemas(proposal),
        *_scope(proposal, registry, amends),
        *(() if amends is not None else _collisions(proposal, registry, today)),
    )


def outcome_of(criterion: int, findings: tuple[CheckFinding, ...]) -> Outcome:
    """Return the worst verdict among the findings on a criterion. If criterion 1 fails, the others are
    `not_checked`.
    """
    ranks = [_RANKS[finding.verdict] for finding in findings if finding.criterion == criterion]
    if criterion > 1 and any(finding.criterion == 1 and finding.verdict == "fail" for finding in findings):
        return "not_checked"  # a text that is no name is checked no further
    outcomes: tuple[Outcome, ...] = ("pass", "needs_expert", "revise", "fail")
    return outcomes[max(ranks, default=0)]


def criteria_document(findings: tuple[CheckFinding, ...]) -> list[dict[str, int | str]]:
    """Return the outcome of every criterion, in the form that the requester receives."""
    outcomes = {number: outcome_of(number, findings) for number in CRITERIA}
    return [{"criterion": number, "says": says, "outcome": outcomes[number]} for number, says in CRITERIA.items()]


def _texts(proposal: NameProposal) -> Iterator[CheckFinding]:
    """Check that the texts of a proposal are present and valid."""
    controller = proposal.change_controller
    if not controller.strip() or len(controller) > 200 or not controller.isprintable():  # REG-4.1-1
        yield _finding(0, "fail", "controller_missing")
    if proposal.controller_handle and not grammar.is_handle(proposal.controller_handle):  # REG-3-4
        yield _finding(0, "fail", "handle_syntax")
    if len(proposal.semantics) > TEXT_CHARS_MAX or len(proposal.contact) > TEXT_CHARS_MAX:
        yield _finding(0, "fail", "text_too_long")
    if not proposal.semantics.strip():
        yield _finding(3, "revise", "semantics_missing")


def _reference(proposal: NameProposal, retrieval: Retrieval | None) -> Iterator[CheckFinding]:
    """Check criterion 2: the reference is stable, and its document can be retrieved."""
    text = proposal.specification_reference
    # REG-5-1
    if not text.strip() or len(text) > REFERENCE_CHARS_MAX or not text.isprintable():  # REG-N-1: provisional ones too
        yield _finding(2, "revise", "reference_missing")
        return
    reference = read_reference(text)
    open_: Verdict = "note" if proposal.status == EntryStatus.PROVISIONAL.value else "needs_expert"  # REG-5-12
    if reference.unstable is not None:  # REG-5-4
        yield CheckFinding(2, open_, "reference_unstable", f"{text}: {reference.unstable}")
    if retrieval is not None and retrieval.outcome != "retrieved":  # REG-5-4
        code = _RETRIEVALS.get(retrieval.outcome, retrieval.outcome)
        yield CheckFinding(2, open_, code, retrieval.detail or "it was not fetched")
    if reference.owner is not None:
        *_, before, label, _ = ("", *reference.owner.split("."))
        owner = (before or label if label in _SECOND_LEVELS else label).replace("-", "")
        if owner not in "".join(filter(str.isalnum, proposal.change_controller.lower())):  # REG-4.1-5
            parties = {"owner": reference.owner, "controller": proposal.change_controller}
            yield _finding(2, "note", "controller_reference_mismatch", **parties)


def _schemas(proposal: NameProposal) -> Iterator[CheckFinding]:
    # REG-N-1: a provisional request is returned, for only its reference may be open.
    verdict: Verdict = "revise" if proposal.status == EntryStatus.PROVISIONAL.value else "needs_expert"
    for raw, is_argument in ((proposal.argument_schema, True), (proposal.return_schema, False)):
        for reason in imprecise_places(raw, is_argument=is_argument):  # REG-5-5
            yield CheckFinding(3, verdict, "schema_imprecise", reason)


def _scope(proposal: NameProposal, registry: NamesRegistry, amends: RegistryEntry | None) -> Iterator[CheckFinding]:
    """Check criterion 4: the authentication scope is well defined, and a public surface stays public."""
    scope = proposal.authentication_scope
    if scope in grammar.AMBIGUOUS_SCOPES:  # REG-5-6
        problem = f"{scope} does not say" if scope else "say"
        yield _finding(4, "revise", "scope_ambiguous", problem=problem)
    elif not grammar.is_scope(scope):
        yield _finding(4, "revise", "scope_syntax")
    elif grammar.scope_class(scope) not in grammar.SCOPE_CLASSES.union(
        grammar.scope_class(entry.authentication_scope) for entry in registry.entries.values()
    ):  # REG-4.1-6
        yield _finding(4, "needs_expert", "scope_class_new", kind=grammar.scope_class(scope))
    if scope == PUBLIC and not proposal.no_authentication_planned:  # REG-8.4-3
        yield _finding(4, "revise", "public_not_permanent")
    if amends is not None and amends.authentication_scope == PUBLIC != scope:  # REG-8.4-4
        yield _finding(4, "needs_expert" if proposal.breaking else "revise", "scope_tightened")


def _collisions(proposal: NameProposal, registry: NamesRegistry, today: str) -> Iterator[CheckFinding]:
    """Check criterion 5: the name collides with no entry and no vendor prefix, and is not easily confused with another
    name.
    """
    name, prefix, controller = proposal.surface_name, proposal.vendor_prefix, proposal.change_controller
    standing = registry.entries.get(name)
    if standing is not None and (standing.status is not EntryStatus.WITHDRAWN or standing.source):  # REG-5-7
        reason = f"{name} is registered to {standing.change_controller}, {standing.status.value}"
        yield CheckFinding(5, "fail", "name_taken", reason)
    elif standing is not None and standing.change_controller != controller:
        free_on = standing.free_on(today)
        if today < free_on:  # REG-7.3-5
            reason = f"{name} was withdrawn on {standing.withdrawn_on} and is free on {free_on}"
            yield CheckFinding(5, "fail", "name_in_quarantine", reason)
    if standing is not None and standing.deprecation is not None:  # REG-7.3-2
        yield CheckFinding(5, "note", "deprecated", standing.deprecation)
    if prefix != NONE and not (grammar.is_prefix(prefix) and grammar.covers(prefix, name)):  # REG-4.1-7
        yield _finding(5, "fail", "prefix_mismatch", prefix=prefix, name=name)
    elif (conflict := registry.prefix_conflict(name, prefix, controller, today)) is not None:  # REG-5-8, REG-7.2-2
        yield CheckFinding(5, "fail", "prefix_conflict", conflict)
    own = sorted(holder.prefix for holder in registry.holders.values() if holder.controller == controller)
    if own and prefix not in own:  # REG-4.2-5
        yield _finding(5, "note", "prefix_advice", controller=controller, prefix=own[0])
    elif prefix == NONE and not proposal.cross_vendor:  # REG-4.2-6
        yield _finding(5, "needs_expert", "prefix_advice", "prefix_missing")
    for entry in registry.entries.values():
        if entry.change_controller != controller and grammar.is_lookalike(name, entry.surface_name):
            other = {"name": entry.surface_name, "controller": entry.change_controller}
            yield _finding(5, "needs_expert", "lookalike", **other)
    if not registry.controller(controller).is_proven and controller in registry.controllers:
        yield _finding(0, "needs_expert", "controller_unproven", controller=controller)


def registered_entry(
    proposal: NameProposal, retrieval: Retrieval | None, today: str, *, self_reviewed: bool
) -> RegistryEntry:
    """Return the registry entry that an accepted request for a name leads to."""
    status = EntryStatus(proposal.status)
    return copied(
        proposal,
        RegistryEntry,
        status=status,
        first_registered=today,  # REG-4.1-10, REG-5-11
        revisions=(_revision(1, proposal, retrieval, today),),
        review_due=review_due(today) if status is EntryStatus.PROVISIONAL else None,  # REG-5-13
        public_confirmed_on=today if proposal.authentication_scope == PUBLIC else None,
        self_reviewed=self_reviewed,
    )


def takes_effect(entry: RegistryEntry, request: NameRequest) -> bool:
    """Return whether an amendment takes effect without an expert. It must be compatible, keep the scope, and have no
    finding that an expert must judge.
    """
    proposal = request.proposal
    if proposal is None or proposal.breaking or any(finding.verdict == "needs_expert" for finding in request.findings):
        return False
    before, after = entry.specification, _revision(0, proposal, request.retrieval, "")
    if after.authentication_scope != entry.authentication_scope:  # REG-8.2-1
        return False
    if not (before.has_schemas and after.has_schemas):
        return before.has_schemas == after.has_schemas
    try:
        compared = compare(_pair(before), _pair(after), Effort())
    except (CodecError, EffortSpent):
        return False
    return compared.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE)


def amended_entry(
    entry: RegistryEntry, proposal: NameProposal, retrieval: Retrieval | None, today: str, *, is_breaking: bool
) -> RegistryEntry:
    """Return an entry with a new revision. If `retrieval` is None, the reference and its document did not change."""
    before = entry.specification
    after = replace(_revision(before.revision + 1, proposal, retrieval, today), is_breaking=is_breaking)
    if retrieval is None:
        after = replace(after, retrieved_at=before.retrieved_at, document_digest=before.document_digest)
    is_tightened = entry.authentication_scope == PUBLIC != proposal.authentication_scope
    return replace(
        entry,
        specification_reference=proposal.specification_reference,
        authentication_scope=proposal.authentication_scope,
        revisions=(*entry.revisions, after),  # REG-4.1-3
        scope_tightened_on=today if is_tightened else entry.scope_tightened_on,  # REG-8.4-4
        public_confirmed_on=today if proposal.authentication_scope == PUBLIC else None,
    )


def proposal_of(entry: RegistryEntry) -> NameProposal:
    """Return the proposal that would register an entry as it is now. A review checks it like a new request."""
    return copied(
        entry.specification,
        NameProposal,
        surface_name=entry.surface_name,
        change_controller=entry.change_controller,
        specification_reference=entry.specification_reference,
        authentication_scope=entry.authentication_scope,
        vendor_prefix=entry.vendor_prefix,
        no_authentication_planned=entry.authentication_scope == PUBLIC,
    )


def controller_after(registry: NamesRegistry, request: NameRequest, unnamed: Set[str]) -> Controller | None:
    """Return the record of a request's controller as it is after the request is accepted. Return None if the record
    does not change.

    The principal of the first request acts for the controller from then on. `unnamed` contains principals that do not
    identify anybody and are not recorded.
    """
    proposal = request.proposal
    controller = registry.controller(request.controller)
    if proposal is None or controller.is_proven:
        return None if request.controller in registry.controllers else controller
    is_nameless = request.is_signed or request.filed_by in unnamed
    return replace(
        controller,
        handle=proposal.controller_handle,  # REG-3-4
        contact=proposal.contact,
        principals=() if is_nameless else (request.filed_by,),
        keys=(proposal.controller_key,) if proposal.controller_key else (),
    )


def _revision(number: int, proposal: NameProposal, retrieval: Retrieval | None, today: str) -> Revision:
    """Return the revision of the specification that a proposal describes."""
    has_schemas = has_schema(proposal.argument_schema) or has_schema(proposal.return_schema)
    return copied(
        proposal,
        Revision,
        revision=number,
        registered=today,
        argument_digest=schema_digest(proposal.argument_schema),
        return_digest=schema_digest(proposal.return_schema),
        schema_source=proposal.schema_source if has_schemas else "none",
        retrieved_at=retrieval.at if retrieval is not None else None,
        document_digest=retrieval.digest if retrieval is not None else None,
    )
