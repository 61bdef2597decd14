"""A published registry, read back: JSON whole, XML and CSV by their seven fields. The bytes may come from anywhere.

XML is read without a document type, hence without entities of any kind. Every entry is judged like one of ours: its
name by the grammar, its prefix, its status, its dates.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from interlock.names.protocol.grammar import covers, is_prefix, is_scope, maybe_name_fault
from interlock.names.protocol.judgement import SCHEMA_BYTES_MAX
from interlock.names.protocol.life import is_day
from interlock.names.protocol.model import NONE, Entry, Revision, Status
from interlock.names.protocol.publication import COLUMNS, XMLNS, PublishedEntry
from interlock.names.protocol.specification import schema_digest

DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024
ENTRIES_MAX: Final = 200_000
DEPTH_MAX: Final = 16
CELL_CHARS_MAX: Final = 4000
_FIELDS: Final = ("value", "xref", "scope", "prefix", "controller", "status")


class BadDocument(ValueError):
    """The document is no published registry; the message says where it fails."""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[PublishedEntry]


def read_published_untrusted(data: bytes) -> tuple[Entry, ...]:
    """Entries in the order of their names. Raises BadDocument."""
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
    by_name: dict[str, Entry] = {}
    for entry in entries:
        if entry.surface_name in by_name:
            raise BadDocument(f"{entry.surface_name} is there twice")
        by_name[entry.surface_name] = entry
    return tuple(by_name[name] for name in sorted(by_name))


def _read_json(data: bytes) -> list[Entry]:
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDocument(f"the JSON is no published registry: {error}") from None
    return [_checked(_from_published(one)) for one in document.entries]


def _from_published(one: PublishedEntry) -> Entry:
    members = {name: getattr(one, name) for name in _SHARED}
    revisions = (*one.earlier_specifications, one.specification)
    return Entry(**members, revisions=tuple(_with_own_digests(each) for each in revisions))


_SHARED: Final = frozenset(field.name for field in msgspec.structs.fields(Entry)) - {"revisions"}


def _with_own_digests(revision: Revision) -> Revision:
    """The digests are computed here: those of the document are its author's word."""
    for raw in (revision.argument_schema, revision.return_schema):
        if len(raw) > SCHEMA_BYTES_MAX:
            raise BadDocument(f"a schema has more than {SCHEMA_BYTES_MAX} bytes")
    return msgspec.structs.replace(
        revision,
        argument_digest=schema_digest(revision.argument_schema),
        return_digest=schema_digest(revision.return_schema),
    )


def _entry(row: list[str]) -> Entry:
    name, reference, scope, prefix, controller, status, day = row
    try:
        said = Status(status)
    except ValueError:
        raise BadDocument(f"{_shown(name)}: {_shown(status)} is no status") from None
    revision = Revision(revision=1, specification_reference=reference, authentication_scope=scope, registered=day)
    return _checked(
        Entry(
            surface_name=name,
            specification_reference=reference,
            authentication_scope=scope,
            vendor_prefix=prefix,
            change_controller=controller,
            status=said,
            first_registered=day,
            revisions=(revision,),
        )
    )


def _checked(entry: Entry) -> Entry:
    name, prefix = entry.surface_name, entry.vendor_prefix
    fault = maybe_name_fault(name)
    if fault is not None:
        raise BadDocument(f"{_shown(name)} is no surface name: {fault.reason}")
    texts = (entry.specification_reference, entry.change_controller)
    if not all(0 < len(text) <= CELL_CHARS_MAX and text.isprintable() for text in texts):
        raise BadDocument(f"{name}: the reference and the change controller are printable and not empty")
    if not is_scope(entry.authentication_scope):
        raise BadDocument(f"{name}: {_shown(entry.authentication_scope)} is no authentication scope")
    if prefix != NONE and not (is_prefix(prefix) and covers(prefix, name)):
        raise BadDocument(f"{name}: {_shown(prefix)} is no prefix of it")
    if not is_day(entry.first_registered):
        raise BadDocument(f"{name}: {_shown(entry.first_registered)} is no day")
    return entry


def _shown(text: str) -> str:
    return msgspec.json.encode(text[:80]).decode()


def _csv_rows(data: bytes) -> Iterator[list[str]]:
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
    """The records of an XML registry; a document type is refused, and with it every entity that is not XML's own."""

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
        except expat.ExpatError as error:
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
