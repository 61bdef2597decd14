"""Are the messages of a registration read as MCP-AX 6 and our decisions say, and is everything else refused by name?"""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.ax.protocol.capability import TRANSPORT_CLASSES, AuthScope
from interlock.ax.protocol.messages import (
    SUBTREE_IDS,
    AuthorityProof,
    Claimed,
    Claims,
    Deregister,
    Heartbeat,
    Parent,
    Register,
    Registered,
)
from interlock.ax.protocol.registration.codec import (
    CLAIMS_MAX,
    DEREGISTERED,
    INTERVAL_MS_MAX,
    MESSAGE_BYTES_MAX,
    SUBTREE_IDS_MAX,
    encode_claims,
    encode_heartbeat_answer,
    encode_held,
    encode_register,
    read_claims_untrusted,
    read_deregister_untrusted,
    read_heartbeat_untrusted,
    read_held_untrusted,
    read_parent_untrusted,
    read_register_untrusted,
    read_registered_untrusted,
)
from interlock.wire.jsonrpc.codec import Request, decode_untrusted, encode_value, error_body
from interlock.wire.refusal import INVALID_PARAMS, Refusal

DRAFT_REQUEST = b"""{
"jsonrpc": "2.0",
"method": "mcpax/register",
"id": 1,
"params": {
"subserver_id": "550e8400-e29b-41d4-a716-446655440000",
"segment": "stm32h7",
"authority": "dns:edge01.factory.example.com",
"capabilities": {
"tools": true,
"resources": false,
"notifications": true
},
"heartbeat_interval_ms": 5000,
"transport_class": "uart_cbor",
"version": "2026-05-01"
}
}"""
DRAFT_RESULT = b"""{
"status": "registered",
"assigned_segment": "stm32h7",
"session_id": "a3f7c...",
"heartbeat_deadline_ms": 15000,
"budget": {
"max_calls_per_minute": 60,
"max_mutable_calls_per_session": 10
}
}"""

ID = "550e8400-e29b-41d4-a716-446655440000"
OTHER = "00000000-0000-4000-8000-00000000000a"
LEAST: dict[str, Any] = {"subserver_id": ID, "segment": "leaf"}
NOTHING = object()  # leaves a member out


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def changed(whole: dict[str, Any], **changes: Any) -> Raw:
    return raw({name: value for name, value in (whole | changes).items() if value is not NOTHING})


def register(**changes: Any) -> Register:
    read = read_register_untrusted(changed(LEAST, **changes))
    assert isinstance(read, Register), read
    return read


def refused(read: object, member: str) -> Refusal:
    assert isinstance(read, Refusal), read
    assert read.details is not None
    assert read.details["member"] == member
    assert json.loads(error_body(read))["code"] == read.number
    return read


def not_registered(member: str, **changes: Any) -> Refusal:
    return refused(read_register_untrusted(changed(LEAST, **changes)), member)


# The request


@pytest.mark.req("AX-6.1-1")
def test_the_drafts_example_is_accepted_literally() -> None:
    message = decode_untrusted(DRAFT_REQUEST)
    assert isinstance(message, Request)
    assert read_register_untrusted(message.params) == Register(
        subserver_id=ID,
        segment="stm32h7",
        authority="edge01.factory.example.com",
        tools=True,
        resources=False,
        notifications=True,
        heartbeat_interval_ms=5000,
        transport_class="uart_cbor",
        version="2026-05-01",
    )


@pytest.mark.req("AX-6.1-1")
def test_omitted_members_of_a_registration_have_the_defaults() -> None:
    assert register() == Register(subserver_id=ID, segment="leaf")
    assert register(capabilities={}) == register()
    assert not register().is_aggregator


@pytest.mark.req("AX-6.1-1")
def test_unknown_members_are_ignored_whatever_they_hold() -> None:
    assert register(zz={"a": [1, "\ud83d"]}, budget={"max_calls_per_minute": 10**9}, _meta={"x": 1}) == register()
    assert register(capabilities={"tools": True, "sampling": "yes"}) == register()


@pytest.mark.req("AX-6.1-1")
@pytest.mark.parametrize("text", [b"", b"[]", b"null", b'"x"', b"7", b"{", b'{"a":1}x', b"\xff", b'{"a":' * 5000])
def test_params_that_are_no_object_are_refused(text: bytes) -> None:
    for read in (read_register_untrusted, read_heartbeat_untrusted, read_deregister_untrusted):
        assert refused(read(Raw(text)), "params").code == INVALID_PARAMS
    for read_result in (read_registered_untrusted, read_parent_untrusted):
        assert refused(read_result(Raw(text)), "result").code == INVALID_PARAMS


def test_params_beyond_the_limit_are_refused_unread() -> None:
    padding = " " * MESSAGE_BYTES_MAX
    refusal = refused(read_register_untrusted(Raw(json.dumps(LEAST).encode() + padding.encode())), "params")
    assert str(MESSAGE_BYTES_MAX) in refusal.message


WRONG_TYPES: list[tuple[str, Any]] = [
    ("subserver_id", NOTHING),
    ("subserver_id", None),
    ("subserver_id", 7),
    ("subserver_id", ["x"]),
    ("segment", NOTHING),
    ("segment", None),
    ("segment", 7),
    ("segment", {}),
    ("authority", 7),
    ("capabilities", None),
    ("capabilities", ["tools"]),
    ("capabilities", True),
    ("heartbeat_interval_ms", None),
    ("transport_class", 1),
    ("transport_class", None),
    ("version", 20260501),
    ("endpoint", {}),
    ("authority_proof", "jwt"),
    ("auth_scope", ["read"]),
    ("parent_id", 7),
    ("released_session", False),
    ("tree", 1),
    (SUBTREE_IDS, "x"),
    (SUBTREE_IDS, None),
    ("_meta", []),
]


@pytest.mark.req("AX-6.1-1")
@pytest.mark.parametrize(("member", "value"), WRONG_TYPES)
def test_a_missing_or_mistyped_member_is_refused_by_name(member: str, value: Any) -> None:
    refusal = not_registered(member, **{member: value})
    assert refusal.code == INVALID_PARAMS
    assert member in refusal.message


@pytest.mark.req("AX-6.1-2")
@pytest.mark.parametrize(
    "text",
    [
        *("", "x", ID[:-1], ID + "0", ID.replace("-", ""), "{" + ID + "}", "urn:uuid:" + ID, ID + "\n", " " + ID),
        *(ID.replace("5", "g"), ID.replace("5", "５"), ID.replace("-", "_")),
    ],
)
def test_a_subserver_id_that_is_no_uuid_is_refused(text: str) -> None:
    assert not_registered("subserver_id", subserver_id=text).code == INVALID_PARAMS


@pytest.mark.req("AX-5.3-5")
def test_ids_are_compared_without_regard_to_letter_case() -> None:
    assert register(subserver_id=ID.upper()).subserver_id == ID
    assert register(parent_id=OTHER.upper()).parent_id == OTHER
    assert register(**{SUBTREE_IDS: [OTHER.upper(), OTHER]}).subtree_ids == (OTHER,)


@pytest.mark.req("AX-4.1-2")
@pytest.mark.parametrize(
    "segment", ["", "a" * 64, "Jira", "a.b", "a b", "größe", "a\n", "a\x00", "٣", "x" * 100_000], ids=range(10)
)
def test_a_segment_outside_the_pattern_is_namespace_invalid_and_named(segment: str) -> None:
    refusal = not_registered("segment", segment=segment)
    assert (refusal.number, refusal.message) == (32111, "namespace_invalid")
    assert refusal.details is not None
    assert refusal.details["mcpax_error"] == "namespace_invalid"
    assert ascii(segment)[:60] in refusal.details["detail"]
    assert len(error_body(refusal)) < 1000


@pytest.mark.req("AX-4.1-2")
@pytest.mark.parametrize("segment", ["a", "0", "_", "-", "a" * 63])
def test_a_segment_of_the_pattern_is_read(segment: str) -> None:
    assert register(segment=segment).segment == segment


@pytest.mark.req("AX-4.1-2")
def test_half_a_character_is_no_segment() -> None:
    assert refused(read_register_untrusted(Raw(b'{"subserver_id":"%b","segment":"\\ud83d"}' % ID.encode())), "segment")


@pytest.mark.req("AX-4.2-4")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("dns:edge01.factory.example.com", "edge01.factory.example.com"),
        ("dns:EDGE01.Factory.Example.COM.", "edge01.factory.example.com"),
        ("DNS:a.example", "a.example"),
        ("dns:localhost", "localhost"),
        ("dns:xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("dns:1.example", "1.example"),
        ("dns:" + ".".join(["a" * 61] * 4) + ".bcdef", ".".join(["a" * 61] * 4) + ".bcdef"),
        (None, None),
        (NOTHING, None),
    ],
)
def test_an_authority_is_a_host_name_after_its_scheme(said: Any, kept: str | None) -> None:
    assert register(authority=said).authority == kept


@pytest.mark.req("AX-4.2-4")
@pytest.mark.parametrize(
    "said",
    [
        *(
            "",
            "dns:",
            "dns:.",
            "edge01.factory.example.com",
            "https://edge01.example",
            "dns://a.example",
            "dns: a.example",
        ),
        *("dns:192.0.2.1", "dns:[2001:db8::1]", "dns:2001:db8::1", "dns:0x7f.1", "dns:a.0x7f", "dns:1"),
        *("dns:*.example.com", "dns:*", "dns:a..example", "dns:.a.example", "dns:a.example..", "dns:a_b.example"),
        *("dns:-a.example", "dns:a-.example", "dns:" + "a" * 64 + ".example", "dns:bücher.example", "dns:a.example\n"),
        *("dns:ａ.example", "dns:a。example", "dns:" + ".".join(["a" * 61] * 4) + ".bcdefg", "dns:a.example:443"),
    ],
)
def test_anything_else_is_no_authority(said: str) -> None:
    assert not_registered("authority", authority=said).code == INVALID_PARAMS


@pytest.mark.req("AX-6.1-4")
@pytest.mark.parametrize("flag", ["tools", "resources", "notifications", "prompts", "completions"])
@pytest.mark.parametrize("value", [None, 1, 0, "true", [], {}])
def test_a_capability_that_is_no_boolean_is_refused(flag: str, value: Any) -> None:
    assert not_registered(f"capabilities.{flag}", capabilities={flag: value}).code == INVALID_PARAMS


@pytest.mark.req("AX-6.1-4")
def test_the_capabilities_are_read() -> None:
    read = register(capabilities={"tools": False, "resources": True, "notifications": True, "prompts": False})
    assert (read.tools, read.resources, read.notifications, read.prompts, read.completions) == (
        *(False, True, True),
        *(False, None),
    )


@pytest.mark.req("AX-6.1-5")
@pytest.mark.parametrize("value", [0, 100, 5000, 3_600_000])
def test_an_interval_within_the_bounds_is_read(value: int) -> None:
    assert register(heartbeat_interval_ms=value).heartbeat_interval_ms == value


@pytest.mark.req("AX-6.1-5")
@pytest.mark.parametrize("text", ["-1", "-0", "99", "3600001", "5000.5", "5000.0", "5e3", '"5000"', "true", "9" * 5000])
def test_any_other_interval_is_refused(text: str) -> None:
    params = f'{{"subserver_id":"{ID}","segment":"leaf","heartbeat_interval_ms":{text}}}'
    refusal = refused(read_register_untrusted(Raw(params.encode())), "heartbeat_interval_ms")
    assert refusal.code == INVALID_PARAMS


@pytest.mark.req("AX-6.1-5")
def test_the_least_interval_is_the_operators() -> None:
    slow = changed(LEAST, heartbeat_interval_ms=9_999)
    assert "10000" in refused(read_register_untrusted(slow, minimum_ms=10_000), "heartbeat_interval_ms").message
    assert isinstance(read_register_untrusted(slow, minimum_ms=9_999), Register)
    assert isinstance(read_register_untrusted(changed(LEAST), minimum_ms=10_000), Register)
    assert isinstance(read_register_untrusted(changed(LEAST, heartbeat_interval_ms=0), minimum_ms=10_000), Register)


@pytest.mark.req("AX-6.1-6")
def test_the_six_transport_classes_are_read_and_an_unknown_class_is_answered_with_them() -> None:
    known = ["native", "uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json"]
    assert [register(transport_class=name).transport_class for name in known] == known
    assert register(transport_class="x-lora").transport_class == "x-lora"  # whether it may is the registrar's to say
    for unknown in ("carrier_pigeon", "Native", "", "x-", "x-Lora", "x-" + "l" * 62, 7, None):
        refusal = not_registered("transport_class", transport_class=unknown)
        assert (refusal.code, refusal.details) == (INVALID_PARAMS, {"member": "transport_class", "known": known})


@pytest.mark.req("AX-6.1-7")
def test_any_version_of_up_to_64_characters_is_read() -> None:
    assert register(version="x" * 64).version == "x" * 64
    assert not_registered("version", version="x" * 65).code == INVALID_PARAMS


@pytest.mark.parametrize("url", ["https://leaf.example/mcp", "http://127.0.0.1:9000/mcp?x=1", "https://[::1]:9/"])
def test_an_endpoint_is_a_url(url: str) -> None:
    assert register(endpoint=url).endpoint == url


@pytest.mark.parametrize(
    "url",
    [
        *("", "leaf.example", "ftp://leaf.example", "file:///etc/passwd", "https://", "https://u:p@leaf.example/mcp"),
        *(
            "https://leaf.example/#x",
            "https://leaf.example:x/",
            "https://leaf.example/\n",
            "https://[::1",
            "https://é/",
        ),
        *("http://x/" + "a" * 2048,),
    ],
)
def test_an_endpoint_of_another_kind_is_refused(url: str) -> None:
    assert not_registered("endpoint", endpoint=url).code == INVALID_PARAMS


@pytest.mark.req("AX-4.2-10")
def test_a_proof_is_read_and_any_other_type_refused() -> None:
    proof = {"type": "jwt", "token": "a.b.c"}
    assert register(authority="dns:a.example", authority_proof=proof).authority_proof == AuthorityProof(
        type="jwt", token="a.b.c"
    )
    for kind in ("JWT", "x509", "", None, 7):
        refusal = not_registered(
            "authority_proof.type", authority="dns:a.example", authority_proof={"type": kind, "token": "a.b.c"}
        )
        assert refusal.code == INVALID_PARAMS
    for token in (NOTHING, None, 7, "x" * 8193):
        bad = {name: value for name, value in {"type": "jwt", "token": token}.items() if value is not NOTHING}
        not_registered("authority_proof.token", authority="dns:a.example", authority_proof=bad)
    longest = {"type": "jwt", "token": "x" * 8192}
    assert register(authority="dns:a.example", authority_proof=longest).authority_proof is not None
    assert "authority" in not_registered("authority_proof", authority_proof=proof).message


def test_a_scope_is_one_of_three() -> None:
    assert [register(auth_scope=name).auth_scope for name in ("read", "write", "admin")] == list(AuthScope)
    refusal = not_registered("auth_scope", auth_scope="root")
    assert refusal.details == {"member": "auth_scope", "known": ["read", "write", "admin"]}


def test_no_parent_differs_from_an_unnamed_parent() -> None:
    assert register().parent_id is msgspec.UNSET
    assert register(parent_id=None).parent_id is None
    assert not_registered("parent_id", parent_id="root").code == INVALID_PARAMS


@pytest.mark.parametrize("member", ["released_session", "tree"])
def test_a_text_of_ours_has_a_length(member: str) -> None:
    assert getattr(register(**{member: "x" * 255}), member) == "x" * 255
    not_registered(member, **{member: ""})
    not_registered(member, **{member: "x" * 257})


# The ids below


def uuids(count: int) -> list[str]:
    return [f"00000000-0000-4000-8000-{number:012x}" for number in range(count)]


@pytest.mark.req("AX-5.3-5")
def test_subtree_ids_are_read_from_params_and_from_meta() -> None:
    assert register(**{SUBTREE_IDS: [ID, OTHER]}).subtree_ids == (ID, OTHER)
    assert register(_meta={SUBTREE_IDS: [ID]}).subtree_ids == (ID,)
    assert register(**{SUBTREE_IDS: [ID], "_meta": {SUBTREE_IDS: [OTHER, ID]}}).subtree_ids == (ID, OTHER)
    assert register(**{SUBTREE_IDS: []}).is_aggregator


@pytest.mark.req("AX-5.3-5")
def test_subtree_ids_beyond_the_limit_or_no_uuids_are_refused() -> None:
    most = uuids(SUBTREE_IDS_MAX)
    assert register(**{SUBTREE_IDS: most}).subtree_ids == tuple(most)
    assert SUBTREE_IDS_MAX == 10_000
    for bad in (uuids(SUBTREE_IDS_MAX + 1), [ID] * (SUBTREE_IDS_MAX + 1), [ID, "x"], [7], [[ID]], [None], {ID: ID}):
        assert not_registered(SUBTREE_IDS, **{SUBTREE_IDS: bad}).code == INVALID_PARAMS
        assert not_registered(SUBTREE_IDS, _meta={SUBTREE_IDS: bad}).code == INVALID_PARAMS
        beat = raw({"session_id": "s", SUBTREE_IDS: bad})
        assert refused(read_heartbeat_untrusted(beat), SUBTREE_IDS).code == INVALID_PARAMS
    half = SUBTREE_IDS_MAX // 2
    many = uuids(SUBTREE_IDS_MAX + 1)
    not_registered(SUBTREE_IDS, **{SUBTREE_IDS: many[:half], "_meta": {SUBTREE_IDS: many[half:]}})


# The other messages


def test_a_heartbeat_names_its_session_and_perhaps_the_ids_below() -> None:
    assert read_heartbeat_untrusted(raw({"session_id": "s", "load": 0.7})) == Heartbeat(session_id="s")
    said = raw({"session_id": "s", SUBTREE_IDS: [OTHER.upper()]})
    assert read_heartbeat_untrusted(said) == Heartbeat(session_id="s", subtree_ids=(OTHER,))


@pytest.mark.parametrize("session_id", [NOTHING, None, 7, "", "x" * 257, ["s"]])
def test_a_message_without_a_session_id_is_refused(session_id: Any) -> None:
    assert refused(read_heartbeat_untrusted(changed({}, session_id=session_id)), "session_id").code == INVALID_PARAMS
    assert refused(read_deregister_untrusted(changed({}, session_id=session_id)), "session_id").code == INVALID_PARAMS


def test_the_drafts_answer_is_read_although_it_lacks_what_is_ours() -> None:
    assert read_registered_untrusted(Raw(DRAFT_RESULT)) == Registered(
        assigned_segment="stm32h7",
        session_id="a3f7c...",
        heartbeat_deadline_ms=15000,
        budget={"max_calls_per_minute": 60, "max_mutable_calls_per_session": 10},
    )


@pytest.mark.req("AX-6.2-1")
def test_the_written_answer_has_the_drafts_members_and_ours() -> None:
    registered = Registered(
        assigned_segment="stm32h7",
        session_id="s",
        heartbeat_deadline_ms=15000,
        budget={},
        aggregator_id=ID,
        tree="default",
        auth_scope=AuthScope.READ,
    )
    assert json.loads(encode_value(registered)) == {
        "status": "registered",
        "assigned_segment": "stm32h7",
        "session_id": "s",
        "heartbeat_deadline_ms": 15000,
        "budget": {},
        "aggregator_id": ID,
        "tree": "default",
        "auth_scope": "read",
    }


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("status", NOTHING),
        ("status", "refused"),
        ("assigned_segment", NOTHING),
        ("assigned_segment", "a.b"),
        ("session_id", NOTHING),
        ("session_id", "x" * 1_000_000),
        ("heartbeat_deadline_ms", NOTHING),
        ("heartbeat_deadline_ms", -1),
        ("heartbeat_deadline_ms", 1.5),
        ("heartbeat_deadline_ms", 3 * INTERVAL_MS_MAX + 1),
        ("budget", NOTHING),
        ("budget", []),
        ("aggregator_id", "root"),
        ("aggregator_id", None),
        ("tree", ""),
        ("tree", "a\nb"),
        ("auth_scope", "root"),
    ],
)
def test_a_hostile_parents_answer_is_refused_by_name(member: str, value: Any) -> None:
    refused(read_registered_untrusted(changed(json.loads(DRAFT_RESULT), **{member: value})), member)


@pytest.mark.parametrize("value", [-1, 1.5, "60", None, 2**53, 10**30])
def test_a_budget_that_is_no_number_is_refused_and_limits_nobody_knows_are_left_out(value: Any) -> None:
    answer = json.loads(DRAFT_RESULT)
    bad = changed(answer, budget={"max_cost_units_per_session": value})
    refused(read_registered_untrusted(bad), "budget.max_cost_units_per_session")
    read = read_registered_untrusted(changed(answer, budget={"max_calls_per_minute": 0, "max_of_theirs": value}))
    assert isinstance(read, Registered)
    assert read.budget == {"max_calls_per_minute": 0}


@pytest.mark.req("AX-6.3-4")
def test_the_answers_of_heartbeat_and_deregister() -> None:
    assert json.loads(encode_heartbeat_answer(15000)) == {"status": "ok", "heartbeat_deadline_ms": 15000}
    assert json.loads(DEREGISTERED) == {"status": "deregistered"}


@pytest.mark.req("AX-6.3-4")
@pytest.mark.parametrize("read", [read_heartbeat_untrusted, read_deregister_untrusted])
def test_a_session_need_not_be_named_on_its_own_link(read: Any) -> None:
    for text in (b"", b"{}", b'{"_meta":{}}'):
        assert read(Raw(text), "mine").session_id == "mine"
    assert read(raw({"session_id": "another"}), "mine").session_id == "another"
    refused(read(Raw(b"{}")), "session_id")
    for odd in (None, 7, "", "x" * 300):
        refused(read(raw({"session_id": odd}), "mine"), "session_id")
    for text in (b"[]", b"null", b"{"):
        refused(read(Raw(text), "mine"), "params")


@pytest.mark.req("AX-13.4-4")
def test_the_answer_to_the_parent_query_goes_both_ways() -> None:
    for parent_id in (None, OTHER):
        parent = Parent(subserver_id=ID, parent_id=parent_id)
        assert json.loads(encode_value(parent)) == {"subserver_id": ID, "parent_id": parent_id}
        assert read_parent_untrusted(Raw(encode_value(parent))) == parent
    for member, value in (("parent_id", NOTHING), ("parent_id", 7), ("parent_id", "root"), ("subserver_id", None)):
        bad = changed({"subserver_id": ID, "parent_id": None}, **{member: value})
        assert refused(read_parent_untrusted(bad), member).code == INVALID_PARAMS


# Properties

ids = st.uuids().map(str)
trees = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
sessions = st.text(min_size=1, max_size=40)
authorities = st.sampled_from(["a.example", "xn--bcher-kva.example", "localhost", "a" * 63 + ".b-c.d"])
subtrees = st.none() | st.lists(ids, max_size=4, unique=True).map(tuple)


@st.composite
def registers(draw: st.DrawFn) -> Register:
    authority = draw(st.none() | authorities)
    proof = st.none() | st.text(max_size=20).map(lambda token: AuthorityProof(type="jwt", token=token))
    return Register(
        subserver_id=draw(ids),
        segment=draw(st.from_regex(r"[a-z0-9_-]{1,63}", fullmatch=True)),
        authority=authority,
        tools=draw(st.booleans()),
        resources=draw(st.booleans()),
        notifications=draw(st.booleans()),
        prompts=draw(st.none() | st.booleans()),
        completions=draw(st.none() | st.booleans()),
        heartbeat_interval_ms=draw(st.just(0) | st.integers(100, INTERVAL_MS_MAX)),
        transport_class=draw(st.sampled_from([*(one.id for one in TRANSPORT_CLASSES), "x-lora"])),
        version=draw(st.none() | st.text(max_size=64)),
        endpoint=draw(st.none() | st.just("https://leaf.example/mcp")),
        authority_proof=draw(proof) if authority else None,
        auth_scope=draw(st.none() | st.sampled_from(AuthScope)),
        parent_id=draw(st.just(msgspec.UNSET) | st.none() | ids),
        released_session=draw(st.none() | sessions),
        tree=draw(st.none() | trees),
        subtree_ids=draw(subtrees),
    )


@given(registers())
def test_a_written_registration_is_read_as_it_was(register: Register) -> None:
    assert read_register_untrusted(Raw(encode_register(register))) == register


@given(sessions, subtrees)
def test_a_written_heartbeat_and_deregister_are_read_as_they_were(session_id: str, subtree: tuple[str, ...]) -> None:
    beat = Heartbeat(session_id=session_id, subtree_ids=subtree)
    assert read_heartbeat_untrusted(Raw(encode_value(beat))) == beat
    bye = Deregister(session_id=session_id)
    assert read_deregister_untrusted(Raw(encode_value(bye))) == bye


budgets = st.dictionaries(st.sampled_from(["max_calls_per_minute", "max_cost_units_per_session"]), st.integers(0, 99))


@given(sessions, st.integers(0, 3 * INTERVAL_MS_MAX), budgets, st.none() | ids, st.none() | trees)
def test_a_written_answer_is_read_as_it_was(
    session_id: str, deadline_ms: int, budget: dict[str, Any], aggregator_id: str | None, tree: str | None
) -> None:
    answer = Registered(
        assigned_segment="leaf",
        session_id=session_id,
        heartbeat_deadline_ms=deadline_ms,
        budget=budget,
        aggregator_id=aggregator_id,
        tree=tree,
        auth_scope=AuthScope.WRITE,
    )
    assert read_registered_untrusted(Raw(encode_value(answer))) == answer


MEMBERS = [*Register.__struct_fields__, "capabilities", "_meta", "session_id", "status", "budget", SUBTREE_IDS]
MEMBERS += ["claims", "released", "held", "subserver_id", "aggregator_id", "session_hash"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(ID) | st.just("\ud83d"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def reads(data: bytes) -> None:
    assert isinstance(read_register_untrusted(Raw(data)), Register | Refusal)
    assert isinstance(read_heartbeat_untrusted(Raw(data)), Heartbeat | Refusal)
    assert isinstance(read_deregister_untrusted(Raw(data)), Deregister | Refusal)
    assert isinstance(read_registered_untrusted(Raw(data)), Registered | Refusal)
    assert isinstance(read_heartbeat_untrusted(Raw(data), "mine"), Heartbeat | Refusal)
    assert isinstance(read_parent_untrusted(Raw(data)), Parent | Refusal)
    assert isinstance(read_claims_untrusted(Raw(data)), Claims | Refusal)
    assert isinstance(read_held_untrusted(Raw(data)), dict | Refusal)


@given(st.dictionaries(st.sampled_from(MEMBERS), values), st.booleans())
def test_only_values_or_faults_come_out_of_any_members(members: dict[str, Any], indented: bool) -> None:
    reads(json.dumps(LEAST | members, indent=1 if indented else None).encode())
    reads(json.dumps(members).encode())


@given(st.binary(max_size=60))
def test_only_values_or_faults_come_out_of_any_bytes(data: bytes) -> None:
    reads(data)


@given(st.randoms(use_true_random=False))
def test_only_values_or_faults_come_out_of_a_damaged_message(chance: random.Random) -> None:
    for whole in (DRAFT_REQUEST[DRAFT_REQUEST.index(b'{\n"sub') : -2], DRAFT_RESULT):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        reads(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))


# Claims


CLAIM = {"subserver_id": ID.upper(), "aggregator_id": OTHER, "session_hash": "0" * 64}


def test_claims_are_read_as_they_were_written() -> None:
    read = read_claims_untrusted(raw({"claims": [CLAIM], "released": [OTHER.upper()], "released_session": "s"}))
    assert isinstance(read, Claims)
    assert read.claims == (Claimed(subserver_id=ID, aggregator_id=OTHER, session_hash="0" * 64),)
    assert (read.released, read.released_session) == ((OTHER,), "s")
    assert read_claims_untrusted(Raw(encode_claims(read))) == read
    assert read_claims_untrusted(raw({})) == Claims()


@pytest.mark.parametrize(
    ("member", "params"),
    [
        ("params", []),
        ("claims", {"claims": {}}),
        ("claims", {"claims": [7]}),
        ("claims", {"claims": [CLAIM] * (CLAIMS_MAX + 1)}),
        ("subserver_id", {"claims": [{**CLAIM, "subserver_id": "x"}]}),
        ("aggregator_id", {"claims": [{**CLAIM, "aggregator_id": None}]}),
        ("session_hash", {"claims": [{**CLAIM, "session_hash": "0" * 63}]}),
        ("session_hash", {"claims": [{**CLAIM, "session_hash": ["0" * 64]}]}),
        ("released", {"released": ["x"]}),
        ("released", {"released": ID}),
        ("released_session", {"released_session": ""}),
    ],
)
def test_a_claim_that_is_none_is_refused_by_the_name_of_its_member(member: str, params: Any) -> None:
    assert refused(read_claims_untrusted(raw(params)), member).code == INVALID_PARAMS


def test_a_list_of_held_subservers_is_read_and_a_malformed_list_refused() -> None:
    assert read_held_untrusted(Raw(encode_held({ID: OTHER}))) == {ID: OTHER}
    assert read_held_untrusted(raw({"status": "ok"})) == {}
    for bad in ([], {"held": []}, {"held": {ID: "x"}}, {"held": {ID: None}}):
        assert isinstance(read_held_untrusted(raw(bad)), Refusal)
