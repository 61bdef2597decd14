"""Does a server of the other era hear exactly what the client itself declared, and may it ask no more than that?"""

import json
from typing import Any

import pytest
from msgspec import Raw
from tests.mcp.mcp_schema import LEGACY, MODERN, complaints

from interlock.mcp.meta import (
    capabilities_to_modern,
    common_capabilities,
    declares,
    find_missing_capability,
    may_be_asked,
    question_capability,
)
from interlock.wire.jsonrpc.codec import decode_object

FULL = {
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "experimental": {"dev.interlock/ax": {"z": 1, "a": []}},
    "tasks": {"list": {}, "requests": {"elicitation": {"create": {}}}},
}


def to_modern(offered: dict[str, Any]) -> Any:
    text = json.dumps(offered).encode()
    assert complaints(LEGACY, "ClientCapabilities", text) == []
    said = bytes(capabilities_to_modern(decode_object(text) or {}))
    assert complaints(MODERN, "ClientCapabilities", said) == []
    return json.loads(said)


# Legacy capabilities in the words of 2026-07-28


def test_nothing_declared_is_nothing_shown() -> None:
    assert to_modern({}) == {}


def test_only_capabilities_of_2026_07_28_are_sent() -> None:
    assert to_modern(FULL) == {
        "sampling": FULL["sampling"],
        "elicitation": FULL["elicitation"],
        "roots": {},
        "experimental": FULL["experimental"],
    }


def test_settings_keep_their_bytes() -> None:
    sampling = b'{ "context":{"n":1.0},"x":1208925819614629174706175 }'
    assert bytes(capabilities_to_modern({"sampling": Raw(sampling)})) == b'{"sampling":%b}' % sampling


@pytest.mark.parametrize(
    ("offered", "said"),
    [({}, {"form": {}}), ({"form": {}}, {"form": {}}), ({"url": {}}, {"url": {}}), ({"x": {}}, {"x": {}})],
)
def test_elicitation_without_modes_is_the_form(offered: dict[str, Any], said: dict[str, Any]) -> None:
    assert to_modern({"elicitation": offered}) == {"elicitation": said}


@pytest.mark.parametrize("nothing", [b"null", b"false", b"true", b"1", b'"{}"', b"[]"])
@pytest.mark.parametrize("name", ["sampling", "elicitation", "roots", "experimental"])
def test_a_capability_that_is_no_object_is_none(name: str, nothing: bytes) -> None:
    """Some clients write null for what they do not have."""
    assert bytes(capabilities_to_modern({name: Raw(nothing)})) == b"{}"


# What a client may be asked

FORM, URL = b'{"message":"m","requestedSchema":{}}', b'{"mode":"url","message":"m","url":"https://example.com"}'
NAMED_FORM = b'{"mode":"form","message":"m"}'
OTHER = b'{"mode":"hologram"}'


@pytest.mark.parametrize(
    ("declared", "allowed"),
    [
        (b'{"elicitation":{}}', {FORM, NAMED_FORM}),
        (b'{"elicitation":{"form":{}}}', {FORM, NAMED_FORM}),
        (b'{"elicitation":{"url":{}}}', {URL}),
        (b'{"elicitation":{"url":{},"form":{}}}', {FORM, NAMED_FORM, URL}),
        (b'{"elicitation":null}', set()),
        (b'{"sampling":{},"roots":{}}', set()),
        (b"{}", set()),
        (b"[]", set()),
    ],
)
def test_an_elicitation_needs_its_mode(declared: bytes, allowed: set[bytes]) -> None:
    for params in (FORM, NAMED_FORM, URL, OTHER):
        assert may_be_asked(Raw(declared), "elicitation/create", Raw(params)) is (params in allowed)


@pytest.mark.parametrize(("method", "needed"), [("sampling/createMessage", "sampling"), ("roots/list", "roots")])
@pytest.mark.parametrize("params", [b"", b"{}", b'{"mode":"url"}', b"null"])
def test_sampling_and_roots_need_their_capability(method: str, needed: str, params: bytes) -> None:
    assert may_be_asked(Raw(b'{"%b":{}}' % needed.encode()), method, Raw(params))
    assert not may_be_asked(Raw(b'{"elicitation":{},"%b":null}' % needed.encode()), method, Raw(params))


@pytest.mark.parametrize("method", ["tools/call", "ping", "sampling", "elicitation", "", "tasks/get"])
def test_methods_that_are_no_questions_are_never_asked(method: str) -> None:
    everything = Raw(json.dumps({**FULL, method: {}}).encode())
    assert not may_be_asked(everything, method, Raw(b"{}"))


def test_a_mode_is_only_asked_of_elicitation() -> None:
    assert declares(Raw(b'{"sampling":{}}'), "sampling", "url")
    assert declares(Raw(b'{"elicitation":{"url":{}}}'), "elicitation")
    assert not declares(Raw(b'{"elicitation":{"url":{}}}'), "elicitation", "form")


@pytest.mark.parametrize(
    ("method", "params", "needed"),
    [
        ("sampling/createMessage", b"{}", {"sampling": {}}),
        ("roots/list", b"", {"roots": {}}),
        ("elicitation/create", FORM, {"elicitation": {}}),
        ("elicitation/create", URL, {"elicitation": {"url": {}}}),
        ("sampling/createMessage", URL, {"sampling": {}}),
        ("tools/list", b"{}", None),
    ],
)
def test_the_capability_that_a_question_needs_is_named_and_sufficient(
    method: str, params: bytes, needed: dict[str, Any] | None
) -> None:
    assert question_capability(method, Raw(params)) == needed
    assert may_be_asked(Raw(json.dumps(needed).encode()), method, Raw(params)) is (needed is not None)


# What clients of either era offer of what a link may declare


@pytest.mark.parametrize(
    ("offered", "common"),
    [
        ({}, {}),
        (FULL, {name: FULL[name] for name in ("sampling", "elicitation", "roots")}),
        ({"roots": {}, "elicitation": {}}, {"elicitation": {"form": {}}, "roots": {}}),
        (
            {"elicitation": {"x": {}}, "sampling": {"tools": {"deep": {}}, "y": 1}},
            {"sampling": {"tools": {}}, "elicitation": {}},
        ),
        ({"sampling": None, "elicitation": [], "roots": {"listChanged": False}}, {"roots": {}}),
    ],
)
def test_only_what_is_known_is_offered_and_always_in_the_same_order(offered: Any, common: Any) -> None:
    known = {
        "sampling": {"context": {}, "tools": {}},
        "elicitation": {"form": {}, "url": {}},
        "roots": {"listChanged": True},
    }
    found = common_capabilities(known, decode_object(json.dumps(offered).encode()) or {})
    assert found == common
    assert list(found) == [name for name in known if name in common]


# What a tool of the older era says that its client lacks


@pytest.mark.parametrize(
    ("said", "lacked"),
    [
        ("Client does not support sampling (required for sampling/createMessage)", {"sampling": {}}),
        ("Client does not support form elicitation.", {"elicitation": {}}),
        ("Client does not support URL elicitation (required for x)", {"elicitation": {"url": {}}}),
        ("Client does not support listing roots (required for roots/list)", {"roots": {}}),
        ("Client does not support sampling tools capability.", {"sampling": {}}),
        ("Client does not support samplings", None),
        ("The text says: Client does not support sampling", None),
        ("", None),
    ],
)
def test_the_sdks_words_for_a_lacking_capability_name_it_where_the_client_lacks_it(said: str, lacked: Any) -> None:
    assert find_missing_capability(said, Raw(b"{}")) == lacked
    able = {"sampling": {}, "roots": {}, "elicitation": {"form": {}, "url": {}}}
    assert find_missing_capability(said, Raw(json.dumps(able).encode())) is None
