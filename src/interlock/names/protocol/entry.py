"""The entries of the registry, and the rules of their life: which status may follow which, and after how long.

An entry has the seven fields of the draft's section 4.1, the revisions of its specification with their digests, and the
dates on which its status depends (draft 5, 7.3). Dates are texts, YYYY-MM-DD, because that is how they are published
and compared. Periods of months count calendar months: a minimum period is never shortened by a short month, a deadline
is never extended by one.
"""

import datetime
import enum
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Raw

NONE: Final = "none"  # the vendor prefix of a cross-vendor name, in all forms
PUBLIC: Final = "public"  # the authentication scope without a credential
NO_SCHEMA: Final = Raw(b"null")

SchemaSource = Literal["registrant", "extracted", "none"]
Copy = TypeVar("Copy", bound=msgspec.Struct)


def copied(source: msgspec.Struct, into: type[Copy], **others: Any) -> Copy:
    """Return a struct of type `into`. Its fields are copied from the fields of `source` that have the same names, or
    taken from `others`.
    """
    same = {name: getattr(source, name) for name in into.__struct_fields__ if name in source.__struct_fields__}
    return into(**same | others)


class EntryStatus(enum.Enum):
    """The status of an entry, as it is published. `ENTRY_MOVES` lists the permitted changes."""

    ACTIVE = "Active"  # REG-4.1-9
    PROVISIONAL = "Provisional"
    DEPRECATED = "Deprecated"
    WITHDRAWN = "Withdrawn"  # REG-4.1-9


class Revision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A revision of a surface specification (REG-3-3).

    The schemas are JSON Schema as the registrant wrote them, or `null`. Their digests are those of their normalised
    forms (REG-8.1-3), so that two spellings of one schema are equal; the digest of the document is that of its bytes.
    """

    revision: int
    specification_reference: str
    authentication_scope: str
    registered: str
    argument_schema: Raw = NO_SCHEMA
    return_schema: Raw = NO_SCHEMA
    argument_digest: str | None = None
    return_digest: str | None = None
    schema_source: SchemaSource = "none"
    semantics: str = ""  # a text, or which section of the document says it
    retrieved_at: str | None = None
    document_digest: str | None = None
    is_breaking: bool = False  # against the revision before

    @property
    def has_schemas(self) -> bool:
        """Return whether the revision has an argument schema. The return schema may be missing."""
        return self.argument_digest is not None


class SevenFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The seven fields of an entry that all forms publish (section 4.1)."""

    surface_name: str
    specification_reference: str
    authentication_scope: str
    vendor_prefix: str
    change_controller: str
    status: EntryStatus
    first_registered: str


class RegistryEntry(SevenFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An entry of the registry: its seven published fields, its revisions, and the dates on which its status
    depends.
    """

    revisions: tuple[Revision, ...]  # the oldest first; the last is current
    source: str = ""  # where it was imported from; empty: registered here
    review_due: str | None = None  # of a provisional one
    answer_due: str | None = None  # after a review that returned it to its registrant
    deprecated_on: str | None = None
    successor: str | None = None
    withdrawn_on: str | None = None
    scope_tightened_on: str | None = None  # it was public before (REG-8.4-4)
    public_confirmed_on: str | None = None
    self_reviewed: bool = False

    @property
    def specification(self) -> Revision:
        """Return the current revision of the specification."""
        return self.revisions[-1]

    def withdrawable_on(self, today: str) -> str:
        """Return the day from which this name may be withdrawn. If the name is not deprecated yet, the day is computed
        as if it were deprecated today.
        """
        return months_after(self.deprecated_on or today, DEPRECATION_MONTHS, at_least=True)

    def free_on(self, today: str) -> str:
        """Return the day from which another registrant may register this name. If the name is not withdrawn yet, the
        day is computed as if it were withdrawn today.
        """
        return months_after(self.withdrawn_on or today, QUARANTINE_MONTHS, at_least=True)

    @property
    def deprecation(self) -> str | None:
        """Return the warning about a deprecated name, or None if it is not deprecated. The text is the same in all
        places (REG-7.3-2).
        """
        if self.status is not EntryStatus.DEPRECATED:
            return None
        successor = f"; its successor is {self.successor}" if self.successor else ""  # REG-7.3-2
        return f"{self.surface_name} is deprecated since {self.deprecated_on}{successor}"


REVIEW_MONTHS: Final = 12  # REG-5-13; section 5: provisional entries
DEPRECATION_MONTHS: Final = 12  # REG-7.3-3; section 7.3
QUARANTINE_MONTHS: Final = 60  # REG-7.3-5; section 7.3: five years
ANSWER_DAYS: Final = 90  # REG-5-14; after a review that returned the entry
NOTICE_DAYS: Final = (60, 30, 7)  # REG-5-13; before a review is due
PUBLIC_DAYS: Final = 90  # after which a public entry wants to be confirmed


class EntryMove(enum.Enum):
    """The actions that change an entry's status."""

    PROMOTE = "promote"
    DEPRECATE = "deprecate"
    REINSTATE = "reinstate"
    WITHDRAW = "withdraw"
    REMOVE = "remove"
    REGISTER = "register"  # again, after it was withdrawn


# The allowed changes of status; every other is refused. None: the entry is removed, and its name is free.
ENTRY_MOVES: Final[Mapping[tuple[EntryStatus, EntryMove], EntryStatus | None]] = {
    (EntryStatus.PROVISIONAL, EntryMove.PROMOTE): EntryStatus.ACTIVE,
    (EntryStatus.PROVISIONAL, EntryMove.DEPRECATE): EntryStatus.DEPRECATED,
    (EntryStatus.PROVISIONAL, EntryMove.REMOVE): None,
    (EntryStatus.ACTIVE, EntryMove.DEPRECATE): EntryStatus.DEPRECATED,
    (EntryStatus.DEPRECATED, EntryMove.REINSTATE): EntryStatus.ACTIVE,
    (EntryStatus.DEPRECATED, EntryMove.WITHDRAW): EntryStatus.WITHDRAWN,
    (EntryStatus.WITHDRAWN, EntryMove.REGISTER): EntryStatus.ACTIVE,
}


class RequestState(enum.Enum):
    """The states of a request. `REQUEST_MOVES` lists the permitted changes."""

    SUBMITTED = "submitted"
    IN_REVIEW = "in_review"
    ACCEPTED = "accepted"
    REVISION_REQUESTED = "revision_requested"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class RequestMove(enum.Enum):
    """The actions that change a request's state."""

    REVIEW = "review"
    ACCEPT = "accept"
    RETURN = "return"
    REJECT = "reject"
    CANCEL = "cancel"


# A returned request is closed: a resubmission is a new request that names the old one (REG-N-2).
REQUEST_MOVES: Final[Mapping[tuple[RequestState, RequestMove], RequestState]] = {
    (RequestState.SUBMITTED, RequestMove.REVIEW): RequestState.IN_REVIEW,
    (RequestState.SUBMITTED, RequestMove.RETURN): RequestState.REVISION_REQUESTED,
    (RequestState.SUBMITTED, RequestMove.CANCEL): RequestState.CANCELLED,
    (RequestState.IN_REVIEW, RequestMove.ACCEPT): RequestState.ACCEPTED,
    (RequestState.IN_REVIEW, RequestMove.RETURN): RequestState.REVISION_REQUESTED,
    (RequestState.IN_REVIEW, RequestMove.REJECT): RequestState.REJECTED,
    (RequestState.IN_REVIEW, RequestMove.CANCEL): RequestState.CANCELLED,
}


def months_after(day: str, months: int, *, at_least: bool) -> str:
    """Return the day that is this number of calendar months later.

    If the target month has no such day, the result is the first day of the following month if `at_least` is True (for
    minimum periods), and otherwise the last day of the target month (for deadlines).
    """
    begun = datetime.date.fromisoformat(day)
    month = begun.month - 1 + months
    year, month = begun.year + month // 12, month % 12 + 1
    try:
        return begun.replace(year=year, month=month).isoformat()
    except ValueError:
        following = datetime.date(year + month // 12, month % 12 + 1, 1)
        # REG-5-13, REG-7.3-3, REG-7.3-5
        return (following if at_least else following - datetime.timedelta(days=1)).isoformat()


def days_after(day: str, days: int) -> str:
    return (datetime.date.fromisoformat(day) + datetime.timedelta(days=days)).isoformat()


def days_between(earlier: str, later: str) -> int:
    return (datetime.date.fromisoformat(later) - datetime.date.fromisoformat(earlier)).days


def review_due(first_registered: str) -> str:
    """Return the day on which the review of a provisional entry is due."""
    return months_after(first_registered, REVIEW_MONTHS, at_least=False)


def reached_notice(today: str, due: str) -> int | None:
    """Return the last notice that is due before a review: its number of days before the review, or 0 for the review
    itself. Return None if no notice is due yet.
    """
    left = days_between(today, due)
    return min((days for days in (*NOTICE_DAYS, 0) if left <= days), default=None)


def is_day(text: str) -> bool:
    """Return whether a text is a date of the form YYYY-MM-DD."""
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
