"""The registry as it is published, as IANA does: XML as the source form, CSV and text derived, JSON beside them.

Each form is a function of the entries and what stands at their head: the same registry gives the same bytes. Entries
are in the order of the octets of their names.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from functools import cache
from types import GenericAlias
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.names.protocol.life import days_between
from interlock.names.protocol.model import Entry, Revision, Status
from interlock.names.protocol.references import read_reference

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
    """What is published: entries in order, and the head of every form."""

    entries: tuple[Entry, ...]
    updated: str
    today: str
    experts: tuple[str, ...] = ()


class PublishedEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry in JSON: the seven fields, and what the other forms cannot hold."""

    surface_name: str
    specification_reference: str
    authentication_scope: str
    vendor_prefix: str
    change_controller: str
    status: Status
    first_registered: str
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
    title: str
    registration_policy: str
    reference: str
    updated: str
    experts: tuple[str, ...]
    entries: tuple[PublishedEntry, ...]


_COPIED: Final = frozenset(field.name for field in msgspec.structs.fields(Entry)) - {"revisions"}


def is_overdue(entry: Entry, today: str) -> bool:
    """Whether a provisional entry's review is late. Nothing is removed by that (REG-5-13)."""
    due = entry.answer_due or entry.review_due
    return entry.status is Status.PROVISIONAL and due is not None and days_between(due, today) >= 0


def published_entry(entry: Entry, today: str) -> PublishedEntry:
    members = {name: getattr(entry, name) for name in _COPIED}
    return PublishedEntry(
        **members,
        specification=entry.specification,
        earlier_specifications=entry.revisions[:-1],
        overdue=is_overdue(entry, today),
    )


def publish(publication: Publication, form: Form) -> bytes:
    match form:
        case "xml":
            return "".join(_xml(publication)).encode()
        case "csv":
            return _csv(publication.entries)
        case "txt":
            return "".join(_text(publication)).encode()
        case "json":
            return msgspec.json.encode(_json(publication)) + b"\n"


@cache
def published_schema() -> bytes:
    """The JSON Schema of the JSON form."""
    revision = _described(Revision, {Raw: Any})
    entry = _described(PublishedEntry, {Revision: revision, tuple[Revision, ...]: GenericAlias(tuple, (revision, ...))})
    registry = _described(PublishedRegistry, {tuple[PublishedEntry, ...]: GenericAlias(tuple, (entry, ...))})
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(registry)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _described(kind: type[msgspec.Struct], instead: dict[Any, Any]) -> Any:
    """The same fields, with types that a schema can be made of: a raw value has none."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        default = None if isinstance(field.default, Raw) else field.default
        named = (field.name, instead.get(field.type, field.type))
        fields.append(named if field.required else (*named, default))
    return msgspec.defstruct(kind.__name__, fields, kw_only=True)


def row_of(entry: Entry) -> list[str]:
    return [
        entry.surface_name,
        entry.specification_reference,
        entry.authentication_scope,
        entry.vendor_prefix,
        entry.change_controller,
        entry.status.value,
        entry.first_registered,
    ]


def _json(publication: Publication) -> PublishedRegistry:
    return PublishedRegistry(
        title=TITLE,
        registration_policy=POLICY,
        reference=DRAFT,
        updated=publication.updated,
        experts=publication.experts,
        entries=tuple(published_entry(entry, publication.today) for entry in publication.entries),
    )


def _csv(entries: Iterable[Entry]) -> bytes:
    """RFC 4180. A cell that a spreadsheet would calculate begins with an apostrophe."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([title for title, _ in COLUMNS])
    writer.writerows([_harmless(cell) for cell in row_of(entry)] for entry in entries)
    return text.getvalue().encode()


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell  # REG-9-2


def _xml(publication: Publication) -> Iterable[str]:
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
    yield f"{TITLE}\n\nRegistration procedure: {POLICY}\nReference: {DRAFT}\n"
    yield f"Experts: {', '.join(publication.experts) or 'none'}\nLast updated: {publication.updated}\n\n"
    rows = [[title for title, _ in COLUMNS]]
    rows += [_marked(entry, publication.today) for entry in publication.entries]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        yield _line(row, widths)
        if row is rows[0]:
            yield _line(["-" * width for width in widths], widths)


def _marked(entry: Entry, today: str) -> list[str]:
    row = row_of(entry)
    row[5] += ", review overdue" if is_overdue(entry, today) else ""
    return row


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() + "\n"
