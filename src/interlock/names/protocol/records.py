"""What the registry's log holds: steps, each with the snapshots of what it changed.

The state of a registry is nothing but its steps in order (`registry`), so a step is whole: what was entered, which
request it answers and who now acts for the controller stand in one record, or in none.
"""

from typing import Final, Literal

import msgspec
from msgspec import Raw

from interlock.names.protocol.life import RequestState
from interlock.names.protocol.model import NO_SCHEMA, NONE, Entry, SchemaSource

TEXT_CHARS_MAX: Final = 4000  # of a reason, the semantics, a contact
EVIDENCE_MAX: Final = 20
PRINCIPALS_MAX: Final = 20

RequestKind = Literal["request", "amendment", "review", "dispute"]
EvidenceKind = Literal["datatracker_date", "publication_date", "operational_history"]
Verdict = Literal["fail", "revise", "needs_expert", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a check found. fail: refused at once. revise: returned for clarification. needs_expert: a person judges.
    note: advice."""

    criterion: int  # of section 5; 0: beside them
    verdict: Verdict
    code: str
    reason: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a registrant asks for. It says nothing of First registered: that is the registry's (REG-4.1-10)."""

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
    """What fetching the reference came to."""

    outcome: Literal["retrieved", "failed", "skipped_offline", "attached"]  # attached: a person brought a copy
    detail: str = ""
    at: str | None = None
    digest: str | None = None  # sha256: of the body


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    kind: RequestKind
    subject: str  # a surface name, or of a dispute the prefix
    state: RequestState
    filed_on: str
    filed_by: str
    controller: str
    is_signed: bool = False  # by a key of the controller, or the one that the proposal names
    is_proven: bool = False  # the one who filed it acted for a controller that had a record by then
    proposal: Proposal | None = None
    retrieval: Retrieval | None = None
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    previous: str = ""
    decided_by: str = ""
    decided_on: str = ""
    reason: str = ""


class Controller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change controller of entries, and who acts for it: principals of this node, and keys."""

    name: str
    handle: str = ""  # a label, which proves nothing (REG-3-4)
    contact: str = ""
    principals: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()  # as `ed25519:BASE64` or a JWK

    @property
    def is_proven(self) -> bool:
        return bool(self.principals or self.keys)


class Consent(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a prefix lets another controller register under it, until a day."""

    prefix: str
    controller: str
    until: str


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who first used a prefix, or was ruled to hold it (REG-7.2-1)."""

    prefix: str
    controller: str
    first_entry: str
    since: str
    ruling: str = ""  # the dispute that settled it


class Implementation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared implementation of a surface. It ends with evidence, and is never overridden (REG-N-4)."""

    id: str
    surface_name: str
    who: str
    declared_on: str
    ended_on: str = ""
    evidence: str = ""


class SourceRegistry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A registry whose entries were imported. It counts as advice until it is trusted (REG-N-5)."""

    url: str
    digest: str
    imported_on: str
    is_trusted: bool = False


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that its controller hands to another, which has not yet agreed."""

    surface_name: str
    to: str


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of the log. What is set replaces what the registry had under the same key."""

    at: str  # RFC 3339
    by: str
    what: str
    subject: str = ""  # a surface name, a prefix or a source
    reason: str = ""
    is_override: bool = False  # by an admin, in place of the controller (REG-4.1-8)
    statement: str = ""  # the jti of what the controller signed
    entry: Entry | None = None
    is_removed: bool = False
    request: Request | None = None
    controller: Controller | None = None
    consent: Consent | None = None
    holder: Holder | None = None
    implementation: Implementation | None = None
    source: SourceRegistry | None = None
    transfer: Transfer | None = None
    notice: str = ""  # what the registry reminded of, and by which date: once each


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Step).decode


class BadStep(ValueError):
    """A record that is no step of a registry."""


def encode_step(step: Step) -> bytes:
    return _encode(step)


def decode_step(data: bytes) -> Step:
    """Raises BadStep."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadStep(f"a record of the registry cannot be read: {error}") from None
