"""References to resources: which kinds there are, what a text names, and how it is printed."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drivers.driver_texts import as_driver, driver, told

from interlock.drivers.protocol.binding.uri_access import (
    ResourceKind,
    ResourceRef,
    kind_name,
    matches_template,
    parse_reference,
    register_kinds,
)
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal

FILES = {
    "mcp_filesystem": ResourceKind(name="mcp_filesystem", driver="filesystem-mcp@1", templates=("file:///{path}",))
}
ANY = {"mcp_any": ResourceKind(name="mcp_any", driver="any-mcp@1", templates=("{+uri}",))}
DIGEST = "ab" * 32


def reference_text(ref: ResourceRef) -> str:
    """Write a reference. The URI is escaped only if its end would be read as a checksum."""
    body = ref.uri
    if re.search(r"#sha256=[0-9a-fA-F]{64}\Z", body):
        body = re.sub(r"[%:@#]", lambda character: f"%{ord(character[0]):02X}", body)
    return f"{ref.kind}:{body}" + (f"#sha256={ref.sha256}" if ref.sha256 is not None else "")


def having(*ids: str, id: str = "filesystem-mcp", template: str = "file:///{path}") -> Driver:
    resources = [{"uri_template": template, "integrate_as": "ref_kind", "ref_kind_id": each} for each in ids]
    value = as_driver(driver(id=id, resources=resources)).value
    assert value is not None
    return value


def refused(text: str, kinds: dict[str, ResourceKind]) -> str:
    found = parse_reference(text, kinds)
    assert isinstance(found, DriverRefusal)
    return found.code


@pytest.mark.req("AIP-resources-2")
def test_the_first_colon_ends_the_kind_and_the_rest_is_the_uri() -> None:
    text = "mcp_filesystem:file:///a/b.txt"
    ref = parse_reference(text, FILES)
    assert ref == ResourceRef(kind="mcp_filesystem", uri="file:///a/b.txt")
    assert reference_text(ref) == text


@pytest.mark.req("AIP-resources-2")
@pytest.mark.parametrize(
    "text",
    [
        "mcp_other:file:///a",
        "local:file:///a",
        "mcp_filesystem:http://x/a",
        "mcp_filesystem:",
        "mcp_filesystem",
        "",
        ":file:///a",
        "MCP_filesystem:file:///a",
        "mcp_filesystem:#sha256=" + DIGEST,
        "mcp_filesystem:file:///" + "a" * 9000,
        "mcp_filesystem file:///a",
    ],
)
def test_texts_that_name_no_resource_are_refused(text: str) -> None:
    assert refused(text, FILES) == "ref_invalid"


def test_a_body_with_encoded_reserved_characters_is_decoded_once() -> None:
    assert parse_reference("mcp_filesystem:file%3A///a%2540b", FILES) == ResourceRef(
        kind="mcp_filesystem", uri="file:///a%40b"
    )
    assert parse_reference("mcp_filesystem:file%3a///a%20b", FILES) == ResourceRef(
        kind="mcp_filesystem", uri="file:///a%20b"
    )


def test_the_escapes_of_a_plain_uri_stay_its_own() -> None:
    assert parse_reference("mcp_filesystem:file:///a%23b%2520", FILES) == ResourceRef(
        kind="mcp_filesystem", uri="file:///a%23b%2520"
    )


def test_a_check_of_the_content_is_no_part_of_the_uri() -> None:
    text = f"mcp_filesystem:file:///a#sha256={DIGEST}"
    ref = parse_reference(text, FILES)
    assert ref == ResourceRef(kind="mcp_filesystem", uri="file:///a", sha256=DIGEST)
    assert reference_text(ref) == text
    assert parse_reference(
        text.upper().replace("MCP_FILESYSTEM:FILE", "mcp_filesystem:file").replace("#SHA", "#sha"), FILES
    ) == ResourceRef(kind="mcp_filesystem", uri="file:///A", sha256=DIGEST)


@pytest.mark.parametrize("tail", ["#sha256=abc", f"#sha256={DIGEST}0", f"#md5={DIGEST}", "#part"])
def test_another_fragment_stays_in_the_uri(tail: str) -> None:
    ref = parse_reference(f"mcp_filesystem:file:///a{tail}", FILES)
    assert ref == ResourceRef(kind="mcp_filesystem", uri=f"file:///a{tail}")


@pytest.mark.req("AIP-resources-2")
@given(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.sampled_from(["", "#sha256=" + DIGEST, "%3A", "%25"]),
    st.sampled_from([None, DIGEST]),
)
def test_printed_references_are_parsed_again(body: str, tail: str, sha256: str | None) -> None:
    ref = ResourceRef(kind="mcp_any", uri=f"x:{body}{tail}", sha256=sha256)
    assert parse_reference(reference_text(ref), ANY) == ref


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    assert isinstance(parse_reference(f"mcp_any:{text}", ANY), ResourceRef | DriverRefusal)


@pytest.mark.req("AIP-resources-2")
def test_the_prefix_is_added_only_where_it_is_missing() -> None:
    assert kind_name("notes") == "mcp_notes"
    assert kind_name("mcp_filesystem") == "mcp_filesystem"
    assert set(register_kinds([having("notes", "mcp_filesystem")]).kinds) == {"mcp_notes", "mcp_filesystem"}


@pytest.mark.req("AIP-resources-3")
def test_a_kind_that_is_taken_stays_with_the_first() -> None:
    found = register_kinds([having("files"), having("mcp_files", "other", id="second-mcp")])
    assert {name: kind.driver for name, kind in found.kinds.items()} == {
        "mcp_files": "filesystem-mcp@1",
        "mcp_other": "second-mcp@1",
    }
    assert told(found.problems) == [("ref_kind_conflict", "/resources/0/ref_kind_id")]
    assert found.problems[0].severity == "warning"


@pytest.mark.req("AIP-resources-3")
@pytest.mark.parametrize(
    "kind",
    ["local", "url", "git", "github", "ipfs", "email", "operator", "user", "persona", "eth_tx", "ots"],
)
def test_a_base_kind_cannot_be_taken(kind: str) -> None:
    found = register_kinds([having(kind)])
    assert found.kinds == {}
    assert told(found.problems) == [("ref_kind_conflict", "/resources/0/ref_kind_id")]


def test_one_driver_may_have_several_templates_of_one_kind() -> None:
    both: Any = {**as_driver_resources("file:///a/{x}", "file:///b/{x}")}
    value = as_driver(both).value
    assert value is not None
    found = register_kinds([value])
    assert found.problems == ()
    assert found.kinds["mcp_files"].templates == ("file:///a/{x}", "file:///b/{x}")


def as_driver_resources(*templates: str) -> dict[str, Any]:
    entry = {"integrate_as": "ref_kind", "ref_kind_id": "files"}
    return driver(resources=[{"uri_template": each, **entry} for each in templates])


@pytest.mark.req("AIP-resources-4")
@pytest.mark.parametrize(
    ("template", "uri", "expected"),
    [
        ("file:///{path}", "file:///a/b/c.txt", True),
        ("demo://{kind}/{id}", "demo://a/b/c", True),
        ("demo://{kind}/text", "demo://a/b/text", False),
        ("demo://{kind}/text", "demo://a/text", True),
        ("demo://static", "demo://static", True),
        ("demo://static", "demo://static/x", False),
    ],
)
def test_a_name_at_the_end_of_a_template_takes_slashes(template: str, uri: str, expected: bool) -> None:
    assert matches_template(template, uri) is expected
