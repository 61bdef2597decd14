"""The machine checks of a request: the five criteria of the draft's section 5, and what an expert ought to know.

Machine checks refuse what no expert may accept (criterion 1, and 5 by exact match or prefix), return what is unclear,
and otherwise leave the judgement to a person; they never accept.
"""

from collections.abc import Iterator
from typing import Final, Literal

from interlock.names.protocol.grammar import (
    AMBIGUOUS_SCOPES,
    SCOPE_CLASSES,
    covers,
    is_handle,
    is_lookalike,
    is_prefix,
    is_scope,
    length_warnings,
    maybe_name_fault,
    scope_class,
)
from interlock.names.protocol.model import NONE, PUBLIC, Entry, Status
from interlock.names.protocol.records import TEXT_CHARS_MAX, Finding, Proposal, Retrieval, Verdict
from interlock.names.protocol.references import REFERENCE_CHARS_MAX, read_reference
from interlock.names.protocol.registry import Registry
from interlock.names.protocol.specification import imprecise_places

CRITERIA: Final = {
    1: "the name conforms to the grammar",
    2: "the specification reference is stable and can be retrieved",
    3: "the schemas are precise enough for interoperable clients",
    4: "the authentication scope is well defined",
    5: "the name collides with no entry and no vendor prefix",
}
_RETRIEVALS: Final = {
    "failed": "reference_not_retrievable",
    "skipped_offline": "skipped_offline",
    "attached": "copy_attached",
}
_RANKS: Final[dict[Verdict, int]] = {"note": 0, "needs_expert": 1, "revise": 2, "fail": 3}
_SECOND_LEVELS: Final = frozenset(["ac", "co", "com", "edu", "gov", "net", "org"])  # below the codes of countries
Outcome = Literal["pass", "needs_expert", "revise", "fail", "not_checked"]


def judge_proposal(
    proposal: Proposal, registry: Registry, today: str, retrieval: Retrieval | None, *, amends: Entry | None = None
) -> tuple[Finding, ...]:
    """`retrieval`: what fetching the reference came to; None: nothing was fetched. `amends`: the entry to change."""
    fault = maybe_name_fault(proposal.surface_name)
    if fault is not None:  # REG-5-3
        reason = f"{fault.reason} (at offset {fault.offset})"
        return (Finding(criterion=1, verdict="fail", code=fault.code, reason=reason),)
    return (
        *(
            Finding(criterion=1, verdict="note", code=code, reason=reason)
            for code, reason in length_warnings(proposal.surface_name)
        ),
        *_texts(proposal),
        *_reference(proposal, retrieval),
        *_schemas(proposal),
        *_scope(proposal, registry, amends),
        *(() if amends is not None else _collisions(proposal, registry, today)),
    )


def outcome_of(criterion: int, findings: tuple[Finding, ...]) -> Outcome:
    ranks = [_RANKS[one.verdict] for one in findings if one.criterion == criterion]
    if criterion > 1 and any(one.criterion == 1 and one.verdict == "fail" for one in findings):
        return "not_checked"  # of what is no name, nothing else is asked
    outcomes: tuple[Outcome, ...] = ("pass", "needs_expert", "revise", "fail")
    return outcomes[max(ranks, default=0)]


def criteria_document(findings: tuple[Finding, ...]) -> list[dict[str, int | str]]:
    """Each criterion with its outcome, for the one who asks."""
    return [
        {"criterion": number, "says": says, "outcome": outcome_of(number, findings)}
        for number, says in CRITERIA.items()
    ]


def _texts(proposal: Proposal) -> Iterator[Finding]:
    controller = proposal.change_controller
    if not controller.strip() or len(controller) > 200 or not controller.isprintable():  # REG-4.1-1
        reason = "the change controller has a name of 1 to 200 printable characters"
        yield Finding(criterion=0, verdict="fail", code="controller_missing", reason=reason)
    if proposal.controller_handle and not is_handle(proposal.controller_handle):  # REG-3-4
        reason = "a handle is ~ and up to 32 lower-case letters, digits and hyphens, and ~org is no one's"
        yield Finding(criterion=0, verdict="fail", code="handle_syntax", reason=reason)
    if len(proposal.semantics) > TEXT_CHARS_MAX or len(proposal.contact) > TEXT_CHARS_MAX:
        reason = f"semantics and contact have at most {TEXT_CHARS_MAX} characters"
        yield Finding(criterion=0, verdict="fail", code="text_too_long", reason=reason)
    if not proposal.semantics.strip():
        reason = "say what the surface does, or which section of the document says it"
        yield Finding(criterion=3, verdict="revise", code="semantics_missing", reason=reason)


def _reference(proposal: Proposal, retrieval: Retrieval | None) -> Iterator[Finding]:
    text = proposal.specification_reference
    # REG-5-1
    if not text.strip() or len(text) > REFERENCE_CHARS_MAX or not text.isprintable():  # REG-N-1: provisional ones too
        yield Finding(criterion=2, verdict="revise", code="reference_missing", reason="a specification is required")
        return
    reference = read_reference(text)
    open_: Verdict = "note" if proposal.status == Status.PROVISIONAL.value else "needs_expert"  # REG-5-12
    if reference.unstable is not None:  # REG-5-4
        yield Finding(criterion=2, verdict=open_, code="reference_unstable", reason=f"{text}: {reference.unstable}")
    if retrieval is not None and retrieval.outcome != "retrieved":  # REG-5-4
        code = _RETRIEVALS[retrieval.outcome]
        yield Finding(criterion=2, verdict=open_, code=code, reason=retrieval.detail or "it was not fetched")
    if reference.owner is not None:
        owner = _organisation(reference.owner)
        if owner not in "".join(filter(str.isalnum, proposal.change_controller.lower())):  # REG-4.1-5
            reason = f"{reference.owner} is not evidently {proposal.change_controller}'s"
            yield Finding(criterion=2, verdict="note", code="controller_reference_mismatch", reason=reason)


def _organisation(host: str) -> str:
    """The label of a host that its organisation registered: acme of specs.acme.com and of specs.acme.co.uk."""
    *_, before, label, _ = ("", *host.split("."))
    return (before or label if label in _SECOND_LEVELS else label).replace("-", "")


def _schemas(proposal: Proposal) -> Iterator[Finding]:
    # REG-N-1: a provisional request is returned, for only its reference may be open.
    verdict: Verdict = "revise" if proposal.status == Status.PROVISIONAL.value else "needs_expert"
    for raw, is_argument in ((proposal.argument_schema, True), (proposal.return_schema, False)):
        for reason in imprecise_places(raw, is_argument=is_argument):  # REG-5-5
            yield Finding(criterion=3, verdict=verdict, code="schema_imprecise", reason=reason)


def _scope(proposal: Proposal, registry: Registry, amends: Entry | None) -> Iterator[Finding]:
    scope = proposal.authentication_scope
    if scope in AMBIGUOUS_SCOPES:  # REG-5-6
        said = f"{scope} does not say" if scope else "say"
        reason = f"{said} which credential the server asks for"
        yield Finding(criterion=4, verdict="revise", code="scope_ambiguous", reason=reason)
    elif not is_scope(scope):
        reason = "a scope is a class in lower case, perhaps with a colon and a tier: trust-tier:engineering"
        yield Finding(criterion=4, verdict="revise", code="scope_syntax", reason=reason)
    elif scope_class(scope) not in SCOPE_CLASSES.union(
        scope_class(one.authentication_scope) for one in registry.entries.values()
    ):  # REG-4.1-6
        reason = f"{scope_class(scope)} is a new class of credential; accepting says that the specification defines it"
        yield Finding(criterion=4, verdict="needs_expert", code="scope_class_new", reason=reason)
    if scope == PUBLIC and not proposal.no_authentication_planned:  # REG-8.4-3
        reason = "state no_authentication_planned: a public surface stays public"
        yield Finding(criterion=4, verdict="revise", code="public_not_permanent", reason=reason)
    if amends is not None and amends.authentication_scope == PUBLIC != scope:  # REG-8.4-4
        verdict: Verdict = "needs_expert" if proposal.breaking else "revise"
        reason = "callers without a credential are shut out: a breaking change, to be stated as breaking"
        yield Finding(criterion=4, verdict=verdict, code="scope_tightened", reason=reason)


def _collisions(proposal: Proposal, registry: Registry, today: str) -> Iterator[Finding]:
    name, prefix, controller = proposal.surface_name, proposal.vendor_prefix, proposal.change_controller
    collision = registry.maybe_collision(name, controller, today)
    if collision is not None:  # REG-5-7
        yield Finding(criterion=5, verdict="fail", code=collision[0], reason=collision[1])
    standing = registry.entry(name)
    if standing is not None and standing.deprecation is not None:  # REG-7.3-2
        yield Finding(criterion=5, verdict="note", code="deprecated", reason=standing.deprecation)
    if prefix != NONE and not (is_prefix(prefix) and covers(prefix, name)):  # REG-4.1-7
        reason = f"{prefix} is no prefix of {name} that ends with an underscore"
        yield Finding(criterion=5, verdict="fail", code="prefix_mismatch", reason=reason)
    elif (conflict := registry.prefix_conflict(name, prefix, controller, today)) is not None:  # REG-5-8, REG-7.2-2
        yield Finding(criterion=5, verdict="fail", code="prefix_conflict", reason=conflict)
    own = sorted(holder.prefix for holder in registry.holders.values() if holder.controller == controller)
    if own and prefix not in own:  # REG-4.2-5
        reason = f"{controller} has the prefix {own[0]}; register all its surfaces under one"
        yield Finding(criterion=5, verdict="note", code="prefix_advice", reason=reason)
    elif prefix == NONE and not proposal.cross_vendor:  # REG-4.2-6
        reason = "a name without a prefix is for several vendors: state cross_vendor, or take a prefix"
        yield Finding(criterion=5, verdict="needs_expert", code="prefix_advice", reason=reason)
    for entry in registry.entries.values():
        if entry.change_controller != controller and is_lookalike(name, entry.surface_name):
            reason = f"it reads like {entry.surface_name} of {entry.change_controller}"
            yield Finding(criterion=5, verdict="needs_expert", code="lookalike", reason=reason)
    if not registry.controller(controller).is_proven and controller in registry.controllers:
        reason = f"no one has shown to act for {controller}; accepting lets the requester do so"
        yield Finding(criterion=0, verdict="needs_expert", code="controller_unproven", reason=reason)
