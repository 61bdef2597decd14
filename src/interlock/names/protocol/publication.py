"""The published forms of the registry, written and read: XML as IANA's source form, CSV and text derived from it, JSON.

Each form is a function of the entries and of the header: the same registry gives the same bytes. Entries are in the
order of the octets of their names. When a published registry is read, its bytes may come from anywhere. XML is read
without a document type, hence without entities, and every entry is checked like an entry of this registry: its name by
the grammar, its prefix, its status, its dates. JSON is read completely, XML and CSV by their seven fields.
"""

import csv
import enum
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from types import GenericAlias
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.names.protocol.criteria import read_reference, schema_digest
from interlock.names.protocol.entry import NONE, EntryStatus, RegistryEntry, Revision, SevenFields, copied, is_day
from interlock.names.protocol.grammar import covers, find_name_fault, is_name, is_prefix, is_scope
from interlock.names.protocol.judgement import SCHEMA_BYTES_MAX

TITLE: Final = "Model Context Protocol Tool Surface Names"
POLICY: Final = "Specification Required"
DRAFT: Final = "draft-morrison-mcp-tool-surface-names-registry-00"
CREATED: Final = "2026-05-15"
GROUP: Final = "mcp-tool-surface-names"
XMLNS: Final = "http://www.iana.org/assignments"

COLUMNS: Final = (
    ("Surface Name", "surface_name"),
    ("Specification Reference", "specification_reference"),
    ("Authentication Scope", "authentication_scope"),
    ("Vendor Prefix", "vendor_prefix"),
    ("Change Controller", "change_controller"),
    ("Status", "status"),
    ("First Registered", "first_registered"),
)
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "'")  # what a spreadsheet would take for a formula

Form = Literal["xml", "csv", "txt", "json"]
MEDIA_TYPES: Final[dict[Form, str]] = {
    "xml": "application/xml",
    "csv": "text/csv; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "json": "application/json",
}


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A publication of the registry: the entries in their order, and the header of all forms."""

    entries: tuple[RegistryEntry, ...]
    updated: str
    today: str
    experts: tuple[str, ...] = ()


class PublishedEntry(SevenFields, frozen=True, kw_only=True, omit_defaults=True):
    """An entry in the published JSON: the seven fields and further values, which the other forms do not contain."""

    specification: Revision
    earlier_specifications: tuple[Revision, ...] = ()
    source: str = ""
    review_due: str | None = None
    answer_due: str | None = None
    overdue: bool = False
    deprecated_on: str | None = None
    successor: str | None = None
    withdrawn_on: str | None = None
    scope_tightened_on: str | None = None
    public_confirmed_on: str | None = None
    self_reviewed: bool = False


class PublishedRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """The registry in JSON."""

    title: str
    registration_policy: str
    reference: str
    updated: str
    experts: tuple[str, ...]
    entries: tuple[PublishedEntry, ...]


def is_overdue(entry: RegistryEntry, today: str) -> bool:
    """Return whether the review of a provisional entry is overdue. An overdue entry stays in the registry
    (REG-5-13).
    """
    due = entry.answer_due or entry.review_due
    return entry.status is EntryStatus.PROVISIONAL and due is not None and today >= due


def published_entry(entry: RegistryEntry, today: str) -> PublishedEntry:
    *earlier, current = entry.revisions
    overdue = is_overdue(entry, today)
    return copied(entry, PublishedEntry, specification=current, earlier_specifications=tuple(earlier), overdue=overdue)


def publish(publication: Publication, form: Form) -> bytes:
    """Encode the registry in one of its published forms."""
    match form:
        case "xml":
            return "".join(_xml(publication)).encode()
        case "csv":  # RFC 4180
            lines = io.StringIO(newline="")
            writer = csv.writer(lines, lineterminator="\r\n")
            writer.writerow([title for title, _ in COLUMNS])
            for entry in publication.entries:
                # An apostrophe is put before cells that a spreadsheet would execute as a formula.
                # REG-9-2
                writer.writerow([f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell for cell in row_of(entry)])
            return lines.getvalue().encode()
        case "txt":
            return "".join(_text(publication)).encode()
        case "json":
            registry = PublishedRegistry(
                title=TITLE,
                registration_policy=POLICY,
                reference=DRAFT,
                updated=publication.updated,
                experts=publication.experts,
                entries=tuple(published_entry(entry, publication.today) for entry in publication.entries),
            )
            return msgspec.json.encode(registry) + b"\n"


@cache
def published_schema() -> bytes:
    """Return the JSON Schema of the registry as it is published in JSON."""
    revision = _described(Revision, {Raw: Any})
    # The published schema has this type under a name of its own.
    status = enum.Enum("Status", {each.name: each.value for each in EntryStatus})  # type: ignore[misc]
    revisions = GenericAlias(tuple, (revision, ...))
    instead = {Revision: revision, tuple[Revision, ...]: revisions, EntryStatus: status}
    entry = _described(PublishedEntry, instead)
    registry = _described(PublishedRegistry, {tuple[PublishedEntry, ...]: GenericAlias(tuple, (entry, ...))})
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(registry)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _described(kind: type[msgspec.Struct], instead: dict[Any, Any]) -> Any:
    """Return a copy of a struct type for which msgspec can make a JSON Schema. Field types without a schema, such as
    raw JSON, are replaced as `instead` says.
    """
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        default = None if isinstance(field.default, Raw) else field.default
        named = (field.name, instead.get(field.type, field.type))
        fields.append(named if field.required else (*named, default))
    return msgspec.defstruct(kind.__name__, fields, kw_only=True)


def row_of(entry: RegistryEntry) -> list[str]:
    """Return the seven fields of an entry, in the order of the columns."""
    return [entry.status.value if field == "status" else getattr(entry, field) for _, field in COLUMNS]


def _xml(publication: Publication) -> Iterable[str]:
    """Yield the registry as XML, in the form of IANA's own registries."""
    yield "<?xml version='1.0' encoding='UTF-8'?>\n"
    yield f'<registry xmlns="{XMLNS}" id="{GROUP}">\n'
    yield f"  <title>{TITLE}</title>\n  <created>{CREATED}</created>\n  <updated>{publication.updated}</updated>\n"
    yield f'  <registry id="{GROUP}-1">\n    <title>{TITLE}</title>\n    <xref type="draft" data="{DRAFT}"/>\n'
    yield f"    <registration_rule>{POLICY}</registration_rule>\n"
    yield f"    <expert>{_escaped(', '.join(publication.experts))}</expert>\n"
    for entry in publication.entries:
        reference = read_reference(entry.specification_reference)
        kind = reference.kind if reference.kind in ("rfc", "draft") else "uri"
        yield (
            f'    <record date="{entry.first_registered}" updated="{entry.specification.registered}">\n'
            f"      <value>{entry.surface_name}</value>\n"
            f'      <xref type="{kind}" data="{_escaped(reference.data)}">'
            f"{_escaped(entry.specification_reference)}</xref>\n"
            f"      <scope>{_escaped(entry.authentication_scope)}</scope>\n"
            f"      <prefix>{_escaped(entry.vendor_prefix)}</prefix>\n"
            f"      <controller>{_escaped(entry.change_controller)}</controller>\n"
            f"      <status>{entry.status.value}</status>\n"
            "    </record>\n"
        )
    yield "  </registry>\n  <people/>\n</registry>\n"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _text(publication: Publication) -> Iterable[str]:
    """Yield the registry as a table in plain text."""
    yield f"{TITLE}\n\nRegistration procedure: {POLICY}\nReference: {DRAFT}\n"
    yield f"Experts: {', '.join(publication.experts) or 'none'}\nLast updated: {publication.updated}\n\n"
    rows = [[title for title, _ in COLUMNS]]
    for entry in publication.entries:
        row = row_of(entry)
        row[5] += ", review overdue" if is_overdue(entry, publication.today) else ""
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield _line(row, widths)
        if row is rows[0]:
            yield _line(["-" * width for width in widths], widths)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() + "\n"


DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
ENTRIES_MAX: Final = 200_000
DEPTH_MAX: Final = 16
CELL_CHARS_MAX: Final = 4000
_DAYS: Final = (
    "review_due",
    "answer_due",
    "deprecated_on",
    "withdrawn_on",
    "scope_tightened_on",
    "public_confirmed_on",
)
_FIELDS: Final = ("value", "xref", "scope", "prefix", "controller", "status")


class BadDocument(ValueError):
    """Error for a document that is not a published registry. The message says where it is invalid."""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a published registry in JSON that is read."""

    entries: list[PublishedEntry]


def read_published_untrusted(data: bytes) -> tuple[RegistryEntry, ...]:
    """Read a published registry. Return its entries in the order of their names. Raise BadDocument if the document is
    invalid.
    """
    if len(data) > DOCUMENT_BYTES_MAX:
        raise BadDocument(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    start = data[:200].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        entries = _read_json(data)
    elif start.startswith(b"<"):
        entries = [_entry(row) for row in _XmlRows(data).rows]
    else:
        entries = [_entry(row) for row in _csv_rows(data)]
    if len(entries) > ENTRIES_MAX:
        raise BadDocument(f"the document has more than {ENTRIES_MAX} entries")
    by_name: dict[str, RegistryEntry] = {}
    for entry in entries:
        if entry.surface_name in by_name:
            raise BadDocument(f"{entry.surface_name} is there twice")
        by_name[entry.surface_name] = entry
    return tuple(by_name[name] for name in sorted(by_name))


def _read_json(data: bytes) -> list[RegistryEntry]:
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDocument(f"the JSON is no published registry: {error}") from None
    entries = []
    for published in document.entries:
        revisions = []
        for revision in (*published.earlier_specifications, published.specification):
            argument, returned = revision.argument_schema, revision.return_schema
            if max(len(argument), len(returned)) > SCHEMA_BYTES_MAX:
                raise BadDocument(f"a schema has more than {SCHEMA_BYTES_MAX} bytes")
            # Digests are computed here, because those in the document are not trusted.
            digests = {"argument_digest": schema_digest(argument), "return_digest": schema_digest(returned)}
            revisions.append(msgspec.structs.replace(revision, **digests))
        entries.append(_checked(copied(published, RegistryEntry, revisions=tuple(revisions))))
    return entries


def _entry(row: list[str]) -> RegistryEntry:
    """Return the entry for a row of the seven published fields. Raise BadDocument if a field is invalid."""
    fields: dict[str, Any] = dict(zip((field for _, field in COLUMNS), row, strict=True))
    try:
        seven = SevenFields(**fields | {"status": EntryStatus(fields["status"])})
    except ValueError:
        raise BadDocument(f"{_shown(row[0])}: {_shown(fields['status'])} is no status") from None
    revision = copied(seven, Revision, revision=1, registered=seven.first_registered)
    return _checked(copied(seven, RegistryEntry, revisions=(revision,)))


def _checked(entry: RegistryEntry) -> RegistryEntry:
    """Return an imported entry if it satisfies the rules for entries of this registry. Raise BadDocument otherwise."""
    name, prefix = entry.surface_name, entry.vendor_prefix
    fault = find_name_fault(name)
    if fault is not None:
        raise BadDocument(f"{_shown(name)} is no surface name: {fault.reason}")
    texts = (entry.specification_reference, entry.change_controller)
    if not all(0 < len(text) <= CELL_CHARS_MAX and text.isprintable() for text in texts):
        raise BadDocument(f"{name}: the reference and the change controller are printable and not empty")
    if not is_scope(entry.authentication_scope):
        raise BadDocument(f"{name}: {_shown(entry.authentication_scope)} is no authentication scope")
    if prefix != NONE and not (is_prefix(prefix) and covers(prefix, name)):
        raise BadDocument(f"{name}: {_shown(prefix)} is no prefix of it")
    days = [entry.first_registered, *(revision.registered for revision in entry.revisions)]
    days += [day for field in _DAYS if (day := getattr(entry, field)) is not None]
    for day in days:
        if not is_day(day):
            raise BadDocument(f"{name}: {_shown(day)} is no day")
    if entry.successor is not None and not is_name(entry.successor):
        raise BadDocument(f"{name}: {_shown(entry.successor)} is no surface name")
    return entry


def _shown(text: str) -> str:
    """Return a text of an imported document for use in a message: shortened, quoted and without control characters."""
    return msgspec.json.encode(text[:80]).decode()


def _csv_rows(data: bytes) -> Iterator[list[str]]:
    """Yield the rows of a registry in CSV, without the apostrophes that protect spreadsheets. Raise BadDocument if the
    CSV is invalid.
    """
    try:
        text = data.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = next(reader, [])
        if header != [title for title, _ in COLUMNS]:
            raise BadDocument(f"the first line of the CSV is not {','.join(title for title, _ in COLUMNS)}")
        for row in reader:
            if len(row) != len(COLUMNS):
                raise BadDocument(f"line {reader.line_num} has {len(row)} cells, not {len(COLUMNS)}")
            yield [cell.removeprefix("'") for cell in row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadDocument(f"the CSV cannot be read: {error}") from None


class _XmlRows:
    """A reader of the records in an XML registry.

    Document types are refused, so that no entities except those of XML itself can occur. Other entities could expand to
    gigabytes or read a file of this machine.
    """

    def __init__(self, data: bytes) -> None:
        from xml.parsers import expat  # here: only an import needs it

        self.rows: list[list[str]] = []
        self._path: list[str] = []
        self._record: dict[str, str] | None = None
        self._text: list[str] | None = None
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.EntityDeclHandler = self._refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(data, True)
        except BadDocument:
            raise
        # The last two are those of an encoding that `expat` does not know.
        except (expat.ExpatError, LookupError, ValueError) as error:
            raise BadDocument(f"the XML cannot be read: {error}") from None

    def _refuse_doctype(self, *_: Any) -> None:
        raise BadDocument("the XML declares a document type, which a registry has not")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        space, _, local = name.rpartition(" ")
        if space != XMLNS:
            raise BadDocument(f"{_shown(local)} is not of the namespace {XMLNS}")
        self._path.append(local)
        if len(self._path) > DEPTH_MAX:
            raise BadDocument("the XML is nested too deeply")
        if local == "record":
            self._record = {"date": attributes.get("date", "")}
        elif self._record is not None:
            self._text = []

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
            if sum(map(len, self._text)) > CELL_CHARS_MAX:
                raise BadDocument("a field of the XML is too long")

    def _end(self, name: str) -> None:
        local = self._path.pop()
        if local == "record" and self._record is not None:
            record, self._record = self._record, None
            missing = [field for field in _FIELDS if not record.get(field)]
            if missing:
                raise BadDocument(f"the record {_shown(record.get('value', ''))} has no {missing[0]}")
            self.rows.append([*(record[field] for field in _FIELDS), record["date"]])
            if len(self.rows) > ENTRIES_MAX:
                raise BadDocument(f"the document has more than {ENTRIES_MAX} entries")
        elif self._record is not None and self._text is not None and local in _FIELDS:
            self._record[local] = "".join(self._text)
            self._text = None
