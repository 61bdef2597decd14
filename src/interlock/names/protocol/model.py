"""An entry of the registry, the revisions of its specification, and how an entry is looked up.

An entry has the seven fields of the draft's section 4.1 and, beside them, what they alone cannot say: the schemas of
each revision of its specification with their digests, and the dates that its status turns on.
"""

import enum
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Raw

NONE: Final = "none"  # the vendor prefix of a cross-vendor name, in all forms
PUBLIC: Final = "public"  # the authentication scope without a credential
NO_SCHEMA: Final = Raw(b"null")

SchemaSource = Literal["registrant", "extracted", "none"]


class Status(enum.Enum):
    ACTIVE = "Active"  # REG-4.1-9
    PROVISIONAL = "Provisional"
    DEPRECATED = "Deprecated"
    WITHDRAWN = "Withdrawn"  # REG-4.1-9


class Revision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One revision of a surface specification (REG-3-3).

    The schemas are JSON Schema as the registrant wrote them, `null` where there is none. The digests are those of their
    normalised forms (REG-8.1-3), that of the document is of its bytes.
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
        return self.argument_digest is not None


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    surface_name: str
    specification_reference: str
    authentication_scope: str
    vendor_prefix: str
    change_controller: str
    status: Status
    first_registered: str
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
        return self.revisions[-1]

    @property
    def deprecation(self) -> str | None:
        """What is said against using the name, in the same words wherever it is met (REG-7.3-2)."""
        if self.status is not Status.DEPRECATED:
            return None
        successor = f"; its successor is {self.successor}" if self.successor else ""  # REG-7.3-2
        return f"{self.surface_name} is deprecated since {self.deprecated_on}{successor}"


class Lookup(Protocol):
    """What a registry answers about a name. Names are compared octet by octet (REG-3-2)."""

    def entry(self, name: str) -> Entry | None:
        """The one current entry of a name, whatever its status."""

    def is_trusted(self, entry: Entry) -> bool:
        """Whether a mismatch may be enforced: registered here, or imported from a source that the operator trusts."""
