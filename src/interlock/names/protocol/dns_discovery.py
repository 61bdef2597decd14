"""MCP servers of a domain as its DNS records name them: the TXT records at `_mcp.<domain>` (REG-7.1-4).

Several proposals share the label and the version tag. Each is read and named; a client can only connect to records with
an https address of a server. A record proves neither who runs the server nor who may change a registered name.

Later revisions of draft-morrison-mcp-dns-discovery changed the tags of these records and added records about identities
at `_org-alter` and `_alter`. Tags that revision -01 does not have are kept and named, and no record is refused for
them. Identity records are shown; they name no server, and nothing is concluded from them. `continuity_fault` is the
rule of revision -06 about keys.
"""

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.names.protocol.grammar import is_handle
from interlock.net.protocol.dns import find_dns_name

LABEL: Final = "_mcp"
DRAFT: Final = "draft-morrison-mcp-dns-discovery"
VERSION: Final = "mcp1"
RECORD_BYTES_MAX: Final = 2048
FIELDS_MAX: Final = 32
URL_CHARS_MAX: Final = 1024

# Which field has the address, and what the record is then called. The first is the draft's own.
_DIALECTS: Final = {
    "url": DRAFT,
    "src": "draft-serra-mcp-discovery-uri",
    "endpoint": "MCPLookup",
    "registry": "registry pointer",
    "mcp": "alter SDK",
}


# The tags of a record in revision -01. Revision -05 has separate fields for protocol family and transport.
_TAGS: Final = frozenset(("v", "url", "proto", "pk", "epoch", "cap", "attest", "scope", "priority", "ttl", "ext"))

# The labels of identity records, and how the version of a record at each begins.
IDENTITY_LABELS: Final = {"_org-alter": "oa", "_alter": "alter"}
_EPOCH_DIGITS_MAX: Final = 18


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A DNS record that names an MCP server. `problem` says why no client can connect to the server; it is empty if
    clients can.
    """

    dialect: str
    url: str | None = None
    fields: Mapping[str, str] = {}
    problem: str = ""

    @property
    def other_tags(self) -> tuple[str, ...]:
        """Return the tags of the draft's own dialect that its revision -01 does not have."""
        return tuple(tag for tag in self.fields if tag not in _TAGS) if self.dialect == DRAFT else ()


class IdentityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A DNS record about an organisation or a person. `notes` say what a reader has to know about it. `problem` says
    why the record was not read; it is empty if the record was read.
    """

    dialect: str
    fields: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    problem: str = ""


class PinnedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a domain, and the epoch of the key, as its record had them when a server of the domain was added."""

    key: str
    epoch: int | None = None


def record_name(domain: str) -> str | None:
    """Return the DNS name at which a domain's records are stored. Return None if the text is not a domain name with at
    least two labels.
    """
    name = domain.strip().rstrip(".").lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            return None
    dns_name = find_dns_name(name)
    return f"{LABEL}.{dns_name}" if dns_name is not None and "." in dns_name else None


def read_records_untrusted(records: Iterable[bytes]) -> tuple[ServerRecord, ...]:
    """Read the TXT records of a domain that name MCP servers. Each item has the joined strings of one record. Records
    of other services are skipped.
    """

    def priority(record: ServerRecord) -> tuple[bool, int]:
        text = record.fields.get("priority", "")
        return bool(record.problem), int(text) if text.isdecimal() and len(text) < 6 else 0

    return tuple(sorted(filter(None, map(_read, records)), key=priority))


def _read(record: bytes) -> ServerRecord | None:
    """Read one DNS record. Return None if it is not about MCP."""
    fields = _read_fields(record)
    if isinstance(fields, str):
        return ServerRecord(dialect="unknown", problem=fields)
    has_version = fields.get("v") == VERSION
    member = next((each for each in _DIALECTS if each in fields and (has_version or each == "mcp")), None)
    if member is None:
        if not has_version:
            return None
        return ServerRecord(dialect="unknown", fields=fields, problem="it names no address")
    url = fields[member]
    problem = "it leads to a registry, not to a server" if member == "registry" else _url_problem(url)
    return ServerRecord(dialect=_DIALECTS[member], url=url, fields=fields, problem=problem)


def read_identities_untrusted(label: str, records: Iterable[bytes]) -> tuple[IdentityRecord, ...]:
    """Read the TXT records at one of the IDENTITY_LABELS. Records of other services are skipped."""
    read = (_read_identity(label, record) for record in records)
    return tuple(record for record in read if record is not None)


def _read_identity(label: str, record: bytes) -> IdentityRecord | None:
    fields = _read_fields(record)
    if isinstance(fields, str):
        return IdentityRecord(dialect="unknown", problem=fields)
    version = fields.get("v", "")
    if not version.startswith(IDENTITY_LABELS[label]):
        return None
    if label == "_org-alter":
        return IdentityRecord(dialect=f"{DRAFT}: organisation", fields=fields)
    notes = [] if version == "alter1" else [f"the version {version[:20]} is newer than alter1"]
    if "h" not in fields:
        form = "organisation" if "org" in fields else "unknown form"
        return IdentityRecord(dialect=f"{DRAFT}: {form}", fields=fields, notes=tuple(notes))
    if not is_handle(fields["h"]):
        notes.append("its h is no ~handle")
    notes += ["its signature is not checked", "revision -05 of the draft does not recommend records of persons"]
    return IdentityRecord(dialect=f"{DRAFT}: person", fields=fields, notes=tuple(notes))


def pinned_key(record_fields: Mapping[str, str]) -> PinnedKey | None:
    """Return the key of a record with its epoch. Return None if the record has no key."""
    key = record_fields.get("pk", "")
    return PinnedKey(key=key, epoch=_epoch(record_fields)) if key else None


def continuity_fault(pinned: PinnedKey, record_fields: Mapping[str, str]) -> str:
    """Return how a record breaks the continuity of its domain's key (revision -06 of the draft), or an empty text."""
    current = pinned_key(record_fields)
    if current is None:
        return "it has no key, and a key of the domain was pinned"
    if current.key != pinned.key:
        return "its key is not the one that was pinned for the domain"
    if pinned.epoch is not None and (current.epoch is None or current.epoch < pinned.epoch):
        now = "is missing" if current.epoch is None else f"went down to {current.epoch}"
        return f"its epoch was {pinned.epoch} and {now}"
    return ""


def _epoch(fields: Mapping[str, str]) -> int | None:
    text = fields.get("epoch", "")
    return int(text) if text.isdecimal() and len(text) <= _EPOCH_DIGITS_MAX else None


def _read_fields(record: bytes) -> dict[str, str] | str:
    """Return the fields of a record, or the reason why they cannot be read."""
    if len(record) > RECORD_BYTES_MAX:
        return f"it has more than {RECORD_BYTES_MAX} bytes"
    try:
        text = record.decode("utf-8")
    except UnicodeDecodeError:
        return "it is no UTF-8 text"
    if not text.isprintable():
        return "it has control characters"
    fields = _fields(text)
    return f"it has a field twice, or more than {FIELDS_MAX}" if fields is None else fields


def _fields(text: str) -> dict[str, str] | None:
    """Split a record into its fields. They are separated by semicolons, or in one dialect by spaces. Each field is
    split at its first `=`. Return None if a field is there twice, or if there are more than FIELDS_MAX.
    """
    parts = text.split(";") if ";" in text else text.split()
    fields: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if not equals:
            continue
        name = name.strip().lower()
        if name in fields or len(fields) >= FIELDS_MAX:
            return None
        fields[name] = value.strip()
    return fields


def _url_problem(url: str) -> str:
    """Return why a client should not connect to a URL, or an empty text if it may."""
    if len(url) > URL_CHARS_MAX:
        return f"its address has more than {URL_CHARS_MAX} characters"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises ValueError for a port that is no number)
    except ValueError:
        return "its address is no URL"
    if parts.scheme != "https":
        return "its address is not https"
    if "@" in parts.netloc:
        return "its address has a name or a password in it"
    if not parts.hostname:
        return "its address has no host"
    if parts.fragment:
        return "its address has a fragment"
    return ""
