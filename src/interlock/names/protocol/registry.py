"""The records of the registry's log, and the state of a registry, which is the sum of its records in order.

A record is a `RegistryStep`. It contains everything that one decision changed, as whole values: the entry, the request
that it answers, and the principals who now act for the controller are in one record, or in none. Applying a record
therefore replaces values by key and cannot fail, and a reader of the log never sees half of a decision.

Holders of prefixes are not recorded with each entry. They follow from the order of entries: the controller of the first
entry under a prefix holds it (REG-7.2-1), unless a ruling made another controller its holder.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec
from msgspec import Raw

from interlock.names.protocol.entry import NO_SCHEMA, NONE, RegistryEntry, RequestState, SchemaSource
from interlock.names.protocol.grammar import covers

TEXT_CHARS_MAX: Final = 4000  # of a reason, the semantics, a contact
EVIDENCE_MAX: Final = 20

INITIAL: Final = "initial"  # what a step does that brings an initial entry; `by` is then the draft

RequestKind = Literal["request", "amendment", "review", "dispute"]
EvidenceKind = Literal["datatracker_date", "publication_date", "operational_history"]
Verdict = Literal["fail", "revise", "needs_expert", "note"]


class CheckFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding of a machine check: criterion, verdict, code and reason.

    The verdict is `fail` (the request is refused at once), `revise` (it is returned to the registrant), `needs_expert`
    (a person decides) or `note` (advice).
    """

    criterion: int  # 1 to 5 of section 5; 0: a check beside the criteria
    verdict: Verdict
    code: str  # for programs
    reason: str  # for people


class NameProposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a request for a name. The registry itself sets the day of registration (REG-4.1-10)."""

    surface_name: str
    change_controller: str
    specification_reference: str = ""
    authentication_scope: str = ""
    vendor_prefix: str = NONE
    status: Literal["Active", "Provisional"] = "Active"
    argument_schema: Raw = NO_SCHEMA
    return_schema: Raw = NO_SCHEMA
    schema_source: SchemaSource = "registrant"
    semantics: str = ""
    cross_vendor: bool = False
    no_authentication_planned: bool = False
    breaking: bool = False
    controller_key: str = ""  # whose signatures count from now on
    controller_handle: str = ""  # a label, which proves nothing (REG-3-4)
    contact: str = ""
    previous: str = ""  # the request that was returned, of which this is the resubmission


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A documented first use of a prefix (REG-7.2-3)."""

    kind: EvidenceKind
    url: str
    date: str
    digest: str = ""


class Retrieval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of fetching the document that a reference names."""

    outcome: Literal["retrieved", "failed", "skipped_offline", "attached"]  # attached: a person brought a copy
    detail: str = ""
    at: str | None = None
    digest: str | None = None  # sha256: of the body


class NameRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a name, an amendment, a review or a dispute."""

    id: str
    kind: RequestKind
    subject: str  # a surface name, or of a dispute the prefix
    state: RequestState
    filed_on: str
    filed_by: str
    controller: str
    is_signed: bool = False  # by a key of the controller, or the one that the proposal names
    is_proven: bool = False  # the one who filed it acted for a controller that had a record by then
    proposal: NameProposal | None = None
    retrieval: Retrieval | None = None
    findings: tuple[CheckFinding, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    previous: str = ""
    decided_by: str = ""
    decided_on: str = ""
    reason: str = ""


class Controller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change controller of entries, with those who may act for it: principals of this node, and keys."""

    name: str
    handle: str = ""  # a label, which proves nothing (REG-3-4)
    contact: str = ""
    principals: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # as `ed25519:BASE64` or a JWK

    @property
    def is_proven(self) -> bool:
        """Return whether somebody can act for this controller: it has a principal or a key."""
        return bool(self.principals or self.keys)


class PrefixConsent(msgspec.Struct, frozen=True, kw_only=True):
    """A consent that a prefix's holder gave: another controller may register names under the prefix until a day."""

    prefix: str
    controller: str
    until: str


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The holder of a prefix: the controller that used it first, or to which a ruling gave it (REG-7.2-1)."""

    prefix: str
    controller: str
    first_entry: str
    since: str
    ruling: str = ""  # the dispute that settled it


class Implementation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared implementation of a surface. Ending it needs evidence, which no override replaces (REG-N-4)."""

    id: str
    surface_name: str
    who: str
    declared_on: str
    ended_on: str = ""
    evidence: str = ""


class SourceRegistry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A registry whose entries were imported. Its entries are only advice until an operator trusts it (REG-N-5)."""

    url: str
    digest: str
    imported_on: str
    is_trusted: bool = False
    is_beside: bool = False  # kept for comparison only


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """An offer to transfer an entry to another controller, which has not accepted it yet."""

    surface_name: str
    to: str


class RegistryStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the registry's log. Each value in it replaces the value of the registry that has the same key."""

    at: str  # RFC 3339
    by: str
    what: str
    subject: str = ""  # a surface name, a prefix or a source
    reason: str = ""
    is_override: bool = False  # by an admin, in place of the controller (REG-4.1-8)
    statement: str = ""  # the jti of what the controller signed
    entry: RegistryEntry | None = None
    beside: RegistryEntry | None = None  # of a registry that is kept for comparison; its `source` says which
    is_removed: bool = False
    request: NameRequest | None = None
    controller: Controller | None = None
    consent: PrefixConsent | None = None
    holder: Holder | None = None
    implementation: Implementation | None = None
    source: SourceRegistry | None = None
    transfer: Transfer | None = None
    notice: str = ""  # the reminder that was given, with its date, so that no process gives it again


encode_step: Final[Callable[[RegistryStep], bytes]] = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RegistryStep).decode


class BadStep(ValueError):
    """Error for a record of the log that cannot be read as a step of the registry."""


def decode_step(data: bytes) -> RegistryStep:
    """Decode a record of the log. Raise BadStep if the record is invalid."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadStep(f"a record of the registry cannot be read: {error}") from None


OPEN: Final = frozenset((RequestState.SUBMITTED, RequestState.IN_REVIEW))


class NamesRegistry:
    """The state of the registry: the result of all steps in its log. It changes only through `apply`."""

    def __init__(self, steps: Iterable[RegistryStep] = ()) -> None:
        self.entries: dict[str, RegistryEntry] = {}
        self.requests: dict[str, NameRequest] = {}
        self.controllers: dict[str, Controller] = {}
        self.holders: dict[str, Holder] = {}
        self.sources: dict[str, SourceRegistry] = {}
        self.transfers: dict[str, Transfer] = {}
        self.implementations: dict[str, Implementation] = {}
        self.used_statements: set[str] = set()
        self.notices: dict[tuple[str, str], str] = {}  # the last of each kind about a name
        self.initial: dict[str, str] = {}  # the draft whose initial contents brought the entry of a name
        self.beside: dict[str, dict[str, RegistryEntry]] = {}  # by source: entries that are only compared
        self.updated = ""  # the day of the last change of an entry
        self._consents: dict[tuple[str, str], PrefixConsent] = {}
        for step in steps:
            self.apply(step)

    def apply(self, step: RegistryStep) -> None:
        """Apply the changes of a step. This cannot fail, because only checked steps are in the log."""
        if (entry := step.entry) is not None:
            self.transfers.pop(entry.surface_name, None)
            self.updated = max(self.updated, step.at[:10])
            self._apply_origin(step, entry)
            if step.is_removed:
                self.entries.pop(entry.surface_name, None)
            else:
                self.entries[entry.surface_name] = entry
            if entry.vendor_prefix != NONE:  # a removed entry counts as first use as well
                prefix, controller, since = entry.vendor_prefix, entry.change_controller, entry.first_registered
                first_use = Holder(prefix=prefix, controller=controller, first_entry=entry.surface_name, since=since)
                self.holders.setdefault(prefix, first_use)  # REG-7.2-1
        if step.request is not None:
            self.requests[step.request.id] = step.request
        if step.controller is not None:
            self.controllers[step.controller.name] = step.controller
        if step.consent is not None:
            self._consents[step.consent.prefix, step.consent.controller] = step.consent
        if step.holder is not None:
            self.holders[step.holder.prefix] = step.holder
        if step.implementation is not None:
            self.implementations[step.implementation.id] = step.implementation
        if step.source is not None:
            self.sources[step.source.url] = step.source
            if step.source.is_beside:
                self.beside.setdefault(step.source.url, {})
            else:
                self.beside.pop(step.source.url, None)
        if step.beside is not None:
            others = self.beside.setdefault(step.beside.source, {})
            if step.is_removed:
                others.pop(step.beside.surface_name, None)
            else:
                others[step.beside.surface_name] = step.beside
        if step.transfer is not None:
            self.transfers[step.transfer.surface_name] = step.transfer
        if step.notice:
            self.notices[step.subject, step.what] = step.notice
        if step.statement:
            self.used_statements.add(step.statement)

    def _apply_origin(self, step: RegistryStep, entry: RegistryEntry) -> None:
        """Note that an entry is one of the initial contents, or that the name was removed or registered again."""
        name, before = entry.surface_name, self.entries.get(entry.surface_name)
        if step.what == INITIAL:
            self.initial[name] = step.by
        elif step.is_removed or before is None or before.first_registered != entry.first_registered:
            self.initial.pop(name, None)

    def controller(self, name: str) -> Controller:
        """Return the record of the controller with this name. If there is none, return an empty record, in whose name
        no program may act.
        """
        return self.controllers.get(name) or Controller(name=name)

    def open_requests(self) -> Iterator[NameRequest]:
        """Yield the requests on which a decision is still possible."""
        return (request for request in self.requests.values() if request.state in OPEN)

    def remaining_implementations(self, name: str) -> tuple[Implementation, ...]:
        """Return the declared implementations of a name that have not ended."""
        return tuple(each for each in self.implementations.values() if each.surface_name == name and not each.ended_on)

    def in_order(self) -> list[RegistryEntry]:
        """Return all entries in the order of the octets of their names."""
        return [self.entries[name] for name in sorted(self.entries)]

    def prefix_conflict(self, name: str, prefix: str, controller: str, today: str) -> str | None:
        """Return a text that says which prefix conflicts with a name (REG-5-8), or None if no prefix does.

        A prefix conflicts if it contains the name, if it continues the name, or if one of the two prefixes begins with
        the other. Only prefixes of controllers that gave no consent conflict.
        """
        for holder in self.holders.values():
            consent = self._consents.get((holder.prefix, controller))
            has_consent = consent is not None and today <= consent.until
            if holder.controller == controller or has_consent:  # REG-7.2-2
                continue
            held = f"{holder.prefix} is {holder.controller}'s since {holder.since}, by {holder.first_entry}"
            if covers(holder.prefix, name):  # REG-5-8
                return f"{held}; {name} falls under it"
            if holder.prefix.startswith(f"{name}_"):  # REG-5-8
                return f"{held}; {name} would stand before it"
            if prefix != NONE and (holder.prefix.startswith(prefix) or prefix.startswith(holder.prefix)):  # REG-5-8
                return f"{held}; one of the two prefixes leads the other"
        return None
