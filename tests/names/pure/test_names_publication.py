"""What is published of a registry, whether others can read it, and what is refused of theirs."""

import csv
import io
import json
import re
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from interlock.names.protocol.criteria import schema_digest
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, Revision
from interlock.names.protocol.publication import BadDocument, Form, Publication, publish, read_published_untrusted
from interlock.names.state import initial_steps

SCHEMA = Raw(b'{"type":"object","properties":{"q":{"type":"string"}}}')


def entry(name: str = "acme_search", **members: object) -> RegistryEntry:
    revision = Revision(
        revision=1,
        specification_reference="RFC 9999",
        authentication_scope="public",
        registered="2026-11-17",
        argument_schema=SCHEMA,
        argument_digest=schema_digest(SCHEMA),
        schema_source="registrant",
    )
    made = RegistryEntry(
        surface_name=name,
        specification_reference="RFC 9999",
        authentication_scope="public",
        vendor_prefix="acme_",
        change_controller="=cmd|' /C calc'!A0 <b>&\"Acme\", Inc.",
        status=EntryStatus.PROVISIONAL,
        first_registered="2026-11-17",
        revisions=(revision,),
        review_due="2027-11-17",
    )
    return replace(made, **members)


def publication(*entries: RegistryEntry, today: str = "2026-11-17") -> Publication:
    initial = [step.entry for step in initial_steps() if step.entry is not None]
    made = sorted((*initial, *entries), key=lambda one: one.surface_name)
    return Publication(entries=tuple(made), updated="2026-11-17", today=today, experts=("eve & co",))


SEVEN: tuple[str, ...] = ("surface_name", "specification_reference", "authentication_scope", "vendor_prefix")
SEVEN += ("change_controller", "status", "first_registered")


def seven(entries: tuple[RegistryEntry, ...]) -> list[list[object]]:
    return [[getattr(one, name) for name in SEVEN] for one in entries]


@pytest.mark.req("REG-9-1", "REG-9-2", "REG-4.1-1")
def test_a_generic_reader_of_iana_registries_reads_the_xml() -> None:
    whole = publication(entry(), entry("zoo_feed", specification_reference="https://zoo.example/feed/1"))
    root = ElementTree.fromstring(publish(whole, "xml"))
    names = {"iana": "http://www.iana.org/assignments"}
    assert root.get("id") == "mcp-tool-surface-names"
    assert root.findtext("iana:title", namespaces=names) == "Model Context Protocol Tool Surface Names"
    assert root.findtext("iana:created", namespaces=names) == "2026-05-15"
    assert root.findtext("iana:updated", namespaces=names) == "2026-11-17"
    inner = root.find("iana:registry", names)
    assert inner is not None
    draft = inner.find("iana:xref", names)
    assert draft is not None
    assert (draft.get("type"), draft.get("data")) == ("draft", "draft-morrison-mcp-tool-surface-names-registry-00")
    assert inner.findtext("iana:registration_rule", namespaces=names) == "Specification Required"
    assert inner.findtext("iana:expert", namespaces=names) == "eve & co"
    records = inner.findall("iana:record", names)
    assert [one.findtext("iana:value", namespaces=names) for one in records] == [
        one.surface_name for one in whole.entries
    ]
    assert records[0].get("date") == "2026-11-17"
    references = [one.find("iana:xref", names) for one in records]
    assert [(one.get("type"), one.get("data")) for one in references if one is not None] == [
        ("rfc", "rfc9999"),
        *[("draft", "draft-morrison-org-alter-policy-provision-00")] * 4,
        ("uri", "https://zoo.example/feed/1"),
    ]


@pytest.mark.req("REG-9-2")
def test_the_csv_has_seven_columns_and_nothing_that_a_spreadsheet_calculates() -> None:
    text = publish(publication(entry()), "csv").decode()
    assert text.startswith(
        "Surface Name,Specification Reference,Authentication Scope,Vendor Prefix,Change Controller,Status,"
        "First Registered\r\n"
    )
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[1][0] == "acme_search"
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    assert rows[1][4] == f"'{entry().change_controller}"
    assert text.count("\n") == text.count("\r\n") == len(rows)


@pytest.mark.req("REG-9-1", "REG-9-2")
def test_the_text_is_a_table_that_marks_what_is_overdue() -> None:
    text = publish(publication(entry(), today="2027-11-17"), "txt").decode()
    assert text.startswith(
        "Model Context Protocol Tool Surface Names\n\nRegistration procedure: Specification Required\n"
    )
    assert "Reference: draft-morrison-mcp-tool-surface-names-registry-00\n" in text
    assert "Last updated: 2026-11-17" in text
    table = text.split("\n\n")[-1].splitlines()
    starts = [0, *(found.end() for found in re.finditer("  ", table[1]))]
    for line, title in zip(starts, ("Surface Name", "Specification Reference", "Authentication Scope"), strict=False):
        assert table[0].startswith(title, line)
    assert all(row[start - 2 : start] == "  " for row in table for start in starts[1:])  # of a fixed width
    assert "Provisional, review overdue" in text
    assert "overdue" not in publish(publication(entry(), today="2027-11-16"), "txt").decode()


@pytest.mark.req("REG-9-1", "REG-9-3", "REG-6-2", "REG-6-3", "REG-4.1-7", "REG-7.3-2")
def test_the_forms_list_the_same_names_in_the_order_of_their_octets() -> None:
    shared = entry("search", vendor_prefix="none", status=EntryStatus.DEPRECATED, review_due=None, successor="find")
    whole = publication(shared, entry(), entry("acme2_x", vendor_prefix="acme2_"))
    names = sorted((one.surface_name for one in whole.entries), key=str.encode)
    told = msgspec.json.decode(publish(whole, "json"))
    assert {key: told[key] for key in ("title", "registration_policy", "reference", "updated")} == {
        "title": "Model Context Protocol Tool Surface Names",
        "registration_policy": "Specification Required",
        "reference": "draft-morrison-mcp-tool-surface-names-registry-00",
        "updated": "2026-11-17",
    }
    xmlns = "{http://www.iana.org/assignments}"
    records = list(ElementTree.fromstring(publish(whole, "xml")).iter(f"{xmlns}record"))
    rows = list(csv.DictReader(io.StringIO(publish(whole, "csv").decode(), newline="")))
    text = publish(whole, "txt").decode()
    assert text.encode() == publish(whole, "txt")
    lines = [re.split("  +", line) for line in text.split("\n\n")[-1].splitlines()[2:]]
    shown = ("surface_name", "vendor_prefix", "status", "first_registered")
    forms = (
        [tuple(one[key] for key in shown) for one in told["entries"]],
        [
            (*(one.findtext(f"{xmlns}{tag}") for tag in ("value", "prefix", "status")), one.get("date"))
            for one in records
        ],
        [tuple(one[key.replace("_", " ").title()] for key in shown) for one in rows],
        [(one[0], one[3], *one[-2:]) for one in lines],
    )
    for form in forms:
        assert [name for name, *_ in form] == names
        assert ("search", "none", "Deprecated", "2026-11-17") in form
        assert ("org_alter_ingest", "org_alter_", "Active", "2026-05-15") in form
    found = {one["surface_name"]: one for one in told["entries"]}
    assert (found["acme_search"]["review_due"], found["search"]["successor"]) == ("2027-11-17", "find")
    assert found["acme_search"]["specification"]["revision"] == 1


@pytest.mark.req("REG-4.1-1", "REG-9-3")
@pytest.mark.parametrize("form", ["json", "xml", "csv", "txt"])
def test_every_form_has_the_seven_fields_of_every_entry(form: Form) -> None:
    told = {
        "surface_name": "zoo_feed",
        "specification_reference": "https://zoo.example/feed/1",
        "authentication_scope": "trust-tier:keepers",
        "vendor_prefix": "zoo_",
        "change_controller": "Zoo of Ghent",
        "status": EntryStatus.DEPRECATED,
        "first_registered": "2026-07-01",
    }
    assert tuple(told) == SEVEN
    one = entry(**told, review_due=None)
    data = publish(publication(one), form)
    assert data == publish(publication(one), form)
    place = data.split(b"zoo_feed", 1)[1]
    end = {"json": b"surface_name", "xml": b"</record>", "csv": b"\r\n", "txt": b"\n"}[form]
    record = (data.rpartition(b"zoo_feed")[0].splitlines() or [b""])[-1] + place.split(end, 1)[0]
    for value in told.values():
        shown = value.value if isinstance(value, EntryStatus) else value
        assert value == "zoo_feed" or shown.encode() in (data if form == "xml" else record), (form, shown)


@pytest.mark.req("REG-9-3", "REG-9-4")
@pytest.mark.parametrize("form", ["json", "xml", "csv"])
def test_a_publication_is_read_back_and_the_same_each_time(form: Form) -> None:
    whole = publication(entry(), entry("acme_list", self_reviewed=True, status=EntryStatus.ACTIVE, review_due=None))
    data = publish(whole, form)
    assert data == publish(whole, form)
    read = read_published_untrusted(data)
    assert seven(read) == seven(whole.entries)
    if form == "json":
        assert publish(replace(whole, entries=read), form) == data
        first = msgspec.json.decode(data)["entries"][0]
        assert {*SEVEN, "specification", "self_reviewed"} <= set(first)


@pytest.mark.req("REG-9-4", "REG-4.1-2", "REG-4.1-9")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "first line of the CSV"),
        (b"\xff\xfe", "cannot be read"),
        (b"{", "no published registry"),
        (b'{"entries":[{}]}', "no published registry"),
        (b"[" * 100_000, "first line"),
        (b"<a>", "not of the namespace"),
        (b'<registry xmlns="http://www.iana.org/assignments">', "cannot be read"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "document type"),
        (b'<registry xmlns="http://www.iana.org/assignments">' + b"<registry>" * 50, "nested too deeply"),
        (
            b'<registry xmlns="http://www.iana.org/assignments"><record date="2026-01-01"><value>a</value></record>'
            b"</registry>",
            "has no xref",
        ),
        (b'<?xml version="1.0" encoding="none-such"?><registry/>', "cannot be read"),
        (b'<?xml version="1.0" encoding="utf-7"?><registry/>', "cannot be read"),
    ],
)
def test_hostile_documents_are_refused_by_name(data: bytes, said: str) -> None:
    with pytest.raises(BadDocument, match=said):
        read_published_untrusted(data)


@pytest.mark.req("REG-9-4")
@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        (0, "Acme_Search", "no surface name"),
        (2, "members only", "no authentication scope"),
        (3, "org_", "no prefix of it"),
        (4, "", "not empty"),
        (5, "active", "no status"),
        (6, "17.11.2026", "no day"),
    ],
)
def test_each_imported_entry_is_judged_like_a_local_entry(column: int, cell: str, said: str) -> None:
    rows = list(csv.reader(io.StringIO(publish(publication(entry()), "csv").decode(), newline="")))
    rows[1][column] = cell
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    with pytest.raises(BadDocument, match=said):
        read_published_untrusted(text.getvalue().encode())


@pytest.mark.req("REG-9-4")
@pytest.mark.parametrize("hostile", ['2026-01-01"><value>acme_pay</value><x a="', "20260101", ""])
@pytest.mark.parametrize(
    "member",
    [
        "review_due",
        "answer_due",
        "deprecated_on",
        "withdrawn_on",
        "scope_tightened_on",
        "public_confirmed_on",
        "successor",
        "registered",
    ],
)
def test_what_only_json_holds_is_judged_as_well(member: str, hostile: str) -> None:
    document = json.loads(publish(publication(entry()), "json"))
    published = document["entries"][0]
    (published["specification"] if member == "registered" else published)[member] = hostile
    with pytest.raises(BadDocument, match=r"is no day|is no surface name"):
        read_published_untrusted(json.dumps(document).encode())


@pytest.mark.req("REG-9-4")
def test_digests_of_a_foreign_document_are_not_believed() -> None:
    whole = publication(entry())
    lying = publish(whole, "json").replace(schema_digest(SCHEMA).encode(), b"sha256:" + b"0" * 64)  # type: ignore[union-attr]
    assert read_published_untrusted(lying)[0].specification.argument_digest == schema_digest(SCHEMA)


def test_a_name_that_occurs_twice_is_refused() -> None:
    data = publish(publication(entry()), "csv")
    with pytest.raises(BadDocument, match="twice"):
        read_published_untrusted(data + data.split(b"\r\n", 1)[1])
