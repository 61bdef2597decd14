"""Envelopes: what is one, what is refused, and that nothing in them is changed (MCPx 4)."""

import ast
import inspect
import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scale import quick_or

from interlock.rooms.protocol import enforcement
from interlock.rooms.protocol.enforcement import OpenRequest, RateWindow, rpc_id
from interlock.rooms.protocol.envelope import (
    ENVELOPE_BYTES_MAX,
    V0,
    V01,
    Envelope,
    EnvelopeRefusal,
    decode_untrusted,
    encode,
    encode_v0,
    read_v0,
)
from interlock.rooms.protocol.participants import (
    Privilege,
    assign_privilege,
    is_participant_id,
    is_reserved,
    is_topic,
    matches_any,
)
from interlock.rooms.protocol.settings import Rates, RoomSettings

FULL, RESTRICTED = Privilege.FULL, Privilege.RESTRICTED
SETTINGS = RoomSettings()


def written(**members: Any) -> bytes:
    whole = {"protocol": V01, "id": "e-1", "kind": "chat", "payload": {"text": "hello"}} | members
    return json.dumps({key: value for key, value in whole.items() if value is not ...}).encode()


def read(**members: Any) -> Envelope:
    result = decode_untrusted(written(**members))
    assert isinstance(result, Envelope), result
    return result


def code(data: bytes) -> str:
    result = decode_untrusted(data)
    assert isinstance(result, EnvelopeRefusal), result
    return result.code


@pytest.mark.req("X-4-1")
@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"[]", "invalid_envelope"),
        (b'"text"', "invalid_envelope"),
        (b"{}{}", "invalid_json"),
        (b"", "invalid_json"),
        (b'{"id":"\xff"}', "invalid_json"),
        (b'{"id":NaN}', "invalid_json"),
        (written(payload={"deep": json.loads("[" * 63 + "]" * 63)}), "invalid_json"),
        (b'{"kind":"chat","kind":"mcp","id":"1","payload":{}}', "invalid_envelope"),
        (b'{ "kind":"chat", "\\u006bind":"mcp", "id":"1", "payload":{} }', "invalid_envelope"),
    ],
)
def test_a_message_is_one_json_object_without_repeated_members(data: bytes, wanted: str) -> None:
    assert code(data) == wanted


@pytest.mark.req("X-4-1")
def test_as_many_arrays_as_take_time_are_refused() -> None:
    assert code(written(payload={"x": [[]] * 100_001})) == "invalid_json"


@pytest.mark.req("X-4-1")
def test_brackets_inside_a_string_are_not_nesting() -> None:
    assert read(payload={"text": "[{" * 1000}).payload == json.dumps({"text": "[{" * 1000}).encode()
    assert isinstance(decode_untrusted(written(payload={"deep": json.loads("[" * 62 + "]" * 62)})), Envelope)


@pytest.mark.req("X-4-3", "X-4-5", "X-4-7", "X-4-9", "X-4-10", "X-4-11")
@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({"id": ...}, "invalid_envelope"),
        ({"id": ""}, "invalid_envelope"),
        ({"id": 7}, "invalid_envelope"),
        ({"id": "x" * 129}, "invalid_envelope"),
        ({"id": "a\nb"}, "invalid_envelope"),
        ({"ts": "2025-08-26"}, "invalid_envelope"),
        ({"ts": 1756216800}, "invalid_envelope"),
        ({"ts": "2025-08-26T14:00:00"}, "invalid_envelope"),
        ({"ts": "2025-13-26T14:00:00Z"}, "invalid_envelope"),
        ({"to": "b"}, "invalid_envelope"),
        ({"to": 7}, "invalid_envelope"),
        ({"to": ["b", 7]}, "invalid_envelope"),
        ({"to": ["b"] * 101}, "invalid_envelope"),
        ({"kind": ...}, "invalid_envelope"),
        ({"kind": 7}, "unknown_kind"),
        ({"correlation_id": 7}, "invalid_envelope"),
        ({"correlation_id": ["a"]}, "invalid_envelope"),
        ({"correlation_id": "x" * 129}, "invalid_envelope"),
        ({"to": ["x" * 129]}, "invalid_envelope"),
        ({"kind": "x" * 65}, "unknown_kind"),
        ({"Kind": "mcp"}, "invalid_envelope"),
        ({"FROM": "boss"}, "invalid_envelope"),
        ({"payload": ...}, "invalid_envelope"),
        ({"payload": []}, "invalid_envelope"),
        ({"payload": "text"}, "invalid_envelope"),
        ({"payload": None}, "invalid_envelope"),
        ({"from": 7}, "invalid_envelope"),
    ],
)
def test_each_member_of_an_envelope_has_its_type(members: dict[str, Any], wanted: str) -> None:
    assert code(written(**members)) == wanted


@pytest.mark.req("X-4-3", "X-4-5", "X-4-7")
def test_free_ids_times_with_zones_and_recipients_pass_unchanged() -> None:
    assert read(id="env-call-1").id == "env-call-1"
    for ts in ("2025-08-26T14:00:00Z", "2025-08-26T14:00:00.123456Z", "2025-08-26T14:00:00+02:00"):
        assert read(ts=ts).ts == ts
    assert read(to=["c", "b", "a"]).to == ("c", "b", "a")
    assert read(to=None).to is None and read(to=...).to is None and read(to=[]).to == ()


@pytest.mark.req("X-4-12")
def test_payload_and_unknown_members_keep_their_bytes() -> None:
    payload = b'{"b":1e3,"a":1.0,"big":123456789012345678901234567890,"\\u0041":"\\ud83d","x":{"z":1,"y":2}}'
    data = (
        b'{"protocol":"mcpx/v0.1","privilege":"full","id":"e-1", "kind":"mcp" ,"payload":%b,"later":[1, 2]}' % payload
    )
    envelope = decode_untrusted(data)
    assert isinstance(envelope, Envelope)
    reply = encode(msgspec.structs.replace(envelope, sender="a", ts="2025-08-26T14:00:00Z"))
    assert b'"payload":' + payload in reply
    assert b',"privilege":"full"' in reply and b',"later":[1, 2]' in reply
    again = decode_untrusted(reply)
    assert isinstance(again, Envelope)
    assert (again.payload, again.extra) == (payload, envelope.extra)


@pytest.mark.req("X-4-13")
def test_an_envelope_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    room = ENVELOPE_BYTES_MAX - len(written(payload={"text": ""}))
    exact = written(payload={"text": "x" * room})
    assert len(exact) == ENVELOPE_BYTES_MAX
    assert isinstance(decode_untrusted(exact), Envelope)
    refused = decode_untrusted(exact + b" ")
    assert isinstance(refused, EnvelopeRefusal)
    assert refused.code == "envelope_too_large"
    assert refused.details == {"limit": ENVELOPE_BYTES_MAX, "size": ENVELOPE_BYTES_MAX + 1}


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_an_envelope_or_a_refusal(value: Any) -> None:
    decode_untrusted(json.dumps(value).encode())
    decode_untrusted(json.dumps({"id": "1", "kind": "chat", "payload": {"text": value}}).encode())
    decode_untrusted(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def test_both_versions_are_understood_and_no_other() -> None:
    for protocol in (V01, V0):
        assert enforcement.protocol_refusal(read(protocol=protocol)) is None
    for protocol in (..., "mcpx/v0.2", "mew/v0.4", 7):
        refused = enforcement.protocol_refusal(read(protocol=protocol))
        assert refused is not None
        assert (refused.code, refused.details) == ("unsupported_protocol", {"supported": ["mcpx/v0.1", "mcp-x/v0"]})
    assert enforcement.protocol_refusal(read(protocol=...), is_needed=False) is None


@pytest.mark.req("X-3.2-4", "X-3.2-5", "X-4-9")
def test_kinds_are_a_closed_list_and_exact() -> None:
    for kind in ("mcp", "mcp/proposal", "chat"):
        assert enforcement.kind_refusal(read(kind=kind), SETTINGS) is None
    for kind in ("system", "presence"):
        refused = enforcement.kind_refusal(read(kind=kind), SETTINGS)
        assert refused is not None and refused.code == "reserved_kind"
    for kind in ("mcp/request", "mcp/request:tools/call", "mcp/response", "MCP", "mcp ", "", "Chat"):
        refused = enforcement.kind_refusal(read(kind=kind), SETTINGS)
        assert refused is not None and refused.code == "unknown_kind"
        assert ("hint" in refused.details) == kind.startswith("mcp/")
    extra = RoomSettings(extra_kinds={"mcp/reject": FULL})
    rejecting = read(kind="mcp/reject")
    assert enforcement.kind_refusal(rejecting, extra) is None
    assert enforcement.privilege_refusal(rejecting, "a", FULL, extra, None) is None
    refused = enforcement.privilege_refusal(rejecting, "a", RESTRICTED, extra, None)
    assert refused is not None and refused.code == "kind_not_allowed"


@pytest.mark.req("X-2.1-1")
def test_enforcement_knows_nothing_of_tools() -> None:
    tree = ast.parse(inspect.getsource(enforcement))
    used = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    ours = {name for name in used if name.startswith("interlock") and not name.startswith("interlock.rooms.protocol.")}
    assert not ours and used - ours >= {"interlock.rooms.protocol.settings"}


@pytest.mark.req("X-2.1-1", "X-3.1-2", "X-3.1-4", "X-3.1-6", "X-3.2-3")
@given(
    kind=st.sampled_from(["mcp", "mcp/proposal", "chat"]),
    privilege=st.sampled_from([FULL, RESTRICTED]),
    payload=st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "result", "error", "x"]), st.text() | st.integers() | st.none()
    ),
)
def test_the_verdict_depends_on_kind_and_privilege_and_not_on_the_payload(
    kind: str, privilege: Privilege, payload: dict[str, Any]
) -> None:
    refused = enforcement.privilege_refusal(read(kind=kind, payload=payload), "a", privilege, SETTINGS, None)
    assert (refused is not None) == (kind == "mcp" and privilege is RESTRICTED)


@pytest.mark.req("X-2.1-1", "X-3.2-3")
def test_ten_thousand_payloads_of_one_kind_and_privilege_have_one_verdict() -> None:
    chance, count = random.Random(210), quick_or(2_000, 10_000)
    methods = ("tools/call", "tools/list", "initialize", "resources/read", "notifications/progress", "no/such", "")

    def value() -> Any:
        instance = (
            None,
            True,
            -1,
            10**25,
            1.5,
            "x",
            [],
            {},
            {"name": "rm", "arguments": {"a": [1, {"b": 2}]}},
            [1, "2"],
        )
        return chance.choice(instance)

    def payload() -> dict[str, Any]:
        members = {
            name: value() for name in ("jsonrpc", "id", "result", "error", "params", "privilege", "kind", "from")
        }
        current_value = {name: each for name, each in members.items() if chance.random() < 0.5}
        return current_value | ({"method": chance.choice(methods)} if chance.random() < 0.7 else {})

    payloads = [payload() for _ in range(count)]
    assert len({json.dumps(payload) for payload in payloads}) > 0.9 * count
    verdicts: dict[tuple[str, Privilege], set[str | None]] = {}
    for current_payload in payloads:
        for kind in ("mcp", "mcp/proposal", "chat"):
            envelope = read(kind=kind, payload=current_payload)
            for privilege in (FULL, RESTRICTED):
                refused = enforcement.privilege_refusal(envelope, "a", privilege, SETTINGS, None)
                verdicts.setdefault((kind, privilege), set()).add(None if refused is None else refused.code)
    wanted: dict[tuple[str, Privilege], set[str | None]] = {key: {None} for key in verdicts}
    assert verdicts == wanted | {("mcp", RESTRICTED): {"privilege_violation"}}


@pytest.mark.req("X-3.1-8")
def test_the_restricted_may_chat_unless_the_room_says_no() -> None:
    assert enforcement.privilege_refusal(read(), "a", RESTRICTED, SETTINGS, None) is None
    silent = RoomSettings(restricted_chat=False)
    refused = enforcement.privilege_refusal(read(), "a", RESTRICTED, silent, None)
    assert refused is not None and refused.code == "kind_not_allowed"
    assert enforcement.privilege_refusal(read(), "a", FULL, silent, None) is None


@pytest.mark.req("X-3.1-5")
def test_a_restricted_answer_passes_only_to_what_was_asked_of_it_once() -> None:
    allows = RoomSettings(restricted_replies="allow")
    open_request = OpenRequest(by="b", to=("a",), rpc_id=b"42")

    def passes(
        payload: dict[str, Any], found: OpenRequest | None = open_request, settings: RoomSettings = allows
    ) -> bool:
        answer = read(kind="mcp", payload=payload, correlation_id="q")
        return enforcement.privilege_refusal(answer, "a", RESTRICTED, settings, found) is None

    good = {"jsonrpc": "2.0", "id": 42, "result": {}}
    assert passes(good)
    assert passes({"jsonrpc": "2.0", "id": 42, "error": {}})
    assert not passes(good, settings=SETTINGS)
    assert not passes(good, None)
    assert not passes(good, OpenRequest(by="c", to=("b",), rpc_id=b"42"))
    assert not passes(good, OpenRequest(by="b", to=("a",), rpc_id=b"42", answered_by=("a",)))
    assert not passes(good, OpenRequest(by="a", to=("a",), rpc_id=b"42"))  # no one asks themselves
    assert not passes(good | {"method": "tools/call"})
    assert not passes(good | {"error": {}})
    assert not passes({"jsonrpc": "2.0", "id": 42})
    assert not passes(good | {"id": "42"})
    assert not passes(good | {"id": 43})


@pytest.mark.req("X-4.4.2-3")
def test_a_violation_carries_the_id_of_the_refused_request() -> None:
    for payload, wanted in [
        (b'{"id":45}', b"45"),
        (b'{"id":"45"}', b'"45"'),
        (b'{"id":12345678901234567890123}', b"12345678901234567890123"),
        (b'{"id":-1}', b"-1"),
        (b'{"method":"x"}', b"null"),
        (b'{"id":null}', b"null"),
        (b'{"id":{}}', b"null"),
        (b'{"id":true}', b"null"),
        (b'{"id":"%b"}' % (b"x" * 200), b"null"),
    ]:
        assert rpc_id(payload) == wanted


@pytest.mark.req("X-4.2-2", "X-4.2-3", "X-4.2-4", "X-4.2-5")
@pytest.mark.parametrize(
    ("payload", "passes"),
    [
        ({"method": "tools/call", "params": {"name": "x"}, "reason": "why"}, True),
        ({"method": "resources/read"}, True),
        ({"method": "anything"}, True),
        ({"method": "x", "reason": "r" * 2000}, True),
        ({}, False),
        ({"method": ""}, False),
        ({"method": 7}, False),
        ({"method": "x", "params": []}, False),
        ({"method": "x", "params": None}, False),
        ({"method": "x", "reason": 7}, False),
        ({"method": "x", "reason": "r" * 2001}, False),
        ({"method": "x", "jsonrpc": "2.0"}, False),
        ({"method": "x", "id": 1}, False),
    ],
)
def test_a_proposal_has_a_method_params_and_a_reason_and_is_no_mcp_message(payload: Any, passes: bool) -> None:
    refused = enforcement.payload_refusal(read(kind="mcp/proposal", payload=payload))
    assert (refused is None) == passes
    assert refused is None or refused.code == "invalid_proposal"


@pytest.mark.req("X-4.3-1", "X-4.3-2")
@pytest.mark.parametrize(
    ("payload", "passes"),
    [
        ({"text": ""}, True),
        ({"text": "é" * 32768}, True),
        ({"text": "😀" * 16384}, True),
        ({"text": "\ud800"}, False),  # half of a pair is no text
        ({"text": "x", "format": "plain"}, True),
        ({"text": "x", "format": "markdown"}, True),
        ({}, False),
        ({"text": 7}, False),
        ({"text": "é" * 32768 + "x"}, False),
        ({"text": "x", "format": "html"}, False),
        ({"text": "x", "more": "y" * 600_000}, False),
        ({"text": "x", "format": None}, False),
    ],
)
def test_a_chat_message_has_a_text_and_perhaps_a_format(payload: Any, passes: bool) -> None:
    refused = enforcement.payload_refusal(read(payload=payload))
    assert (refused is None) == passes
    assert refused is None or refused.code == "invalid_chat"


@pytest.mark.req("X-3.2-5", "X-2.2-3")
def test_ids_and_topics_have_narrow_alphabets() -> None:
    for id in ("a", "client:alice", "robot_1.b-2", "x" * 64):
        assert is_participant_id(id)
    for id in ("", "x" * 65, "a b", "a\n", "é", "a/b", "a@b"):
        assert not is_participant_id(id)
    assert is_reserved("system:x") and is_reserved("system:gateway") and is_reserved("interlock")
    assert not is_reserved("systems")
    for topic in ("garden", "room:t", "A.b_c:d@e~f-g", "x" * 128):
        assert is_topic(topic)
    for topic in ("", "-a", "x" * 129, "a b", "a/b", "a\n"):
        assert not is_topic(topic)


@pytest.mark.req("X-5.1-3", "X-5.1-4", "X-6.1-1", "X-6.2-1", "X-N-3")
@pytest.mark.parametrize(
    ("mode", "granted", "of_token", "known", "wanted", "origin"),
    [
        ("mixed", None, None, False, RESTRICTED, "mode"),
        ("mixed", None, None, True, FULL, "identity"),
        ("mixed", None, FULL, False, FULL, "token"),
        ("mixed", None, RESTRICTED, True, RESTRICTED, "token"),
        ("mixed", RESTRICTED, FULL, True, RESTRICTED, "grant"),
        ("mixed", FULL, RESTRICTED, False, FULL, "grant"),
        ("restricted", None, FULL, True, RESTRICTED, "mode"),
        ("restricted", FULL, None, False, FULL, "grant"),
        ("open", None, None, False, FULL, "mode"),
        ("open", RESTRICTED, None, False, RESTRICTED, "grant"),
        ("observe", None, None, False, FULL, "mode"),
    ],
)
def test_privilege_is_settled_by_grant_then_token_then_identity_then_mode(
    mode: Any, granted: Privilege | None, of_token: Privilege | None, known: bool, wanted: Privilege, origin: str
) -> None:
    settled = assign_privilege(mode, granted=granted, of_token=of_token, is_known_full=known)
    assert (settled.privilege, settled.origin) == (wanted, origin)


@pytest.mark.req("X-8-1")
@pytest.mark.parametrize("of_token", [None, FULL, RESTRICTED])
@pytest.mark.parametrize("known", [False, True])
def test_a_participant_that_a_mixed_room_would_restrict_is_observed(of_token: Privilege | None, known: bool) -> None:
    mixed = assign_privilege("mixed", granted=None, of_token=of_token, is_known_full=known)
    watched = assign_privilege("observe", granted=None, of_token=of_token, is_known_full=known)
    assert (watched.privilege, watched.is_observed) == (FULL, mixed.privilege is RESTRICTED)
    assert watched.origin == "mode"
    assert not mixed.is_observed


def test_principals_are_named_by_glob() -> None:
    assert matches_any("client:alice", ("client:a*",)) and not matches_any("client:bob", ("client:a*",))


def test_a_rate_is_counted_over_a_minute_and_says_how_long_to_wait() -> None:
    window, rates = RateWindow(), Rates(proposals=2, envelopes=3)
    assert window.refused(("proposals", "envelopes"), rates, 0.0, "1") is None
    assert window.refused(("proposals", "envelopes"), rates, 10.0, "2") is None
    refused = window.refused(("proposals", "envelopes"), rates, 20.0, "3")
    assert refused is not None and refused.code == "rate_limited"
    assert refused.details == {"limit": 2, "retry_after_ms": 40_000}
    assert window.used(20.0) == {"proposals": 2, "chat": 0, "envelopes": 2}
    assert window.refused(("envelopes",), rates, 20.0, "4") is None
    assert window.refused(("envelopes",), rates, 20.0, "5") is not None
    assert window.refused(("proposals", "envelopes"), rates, 60.0, "6") is None
    assert window.refused(("envelopes",), Rates(envelopes=0), 60.0, "7") is not None
    window, rates = RateWindow(), Rates(sent_bytes=2000)
    assert window.refused(("chat", "envelopes"), rates, 0.0, "1", 3000) is None  # alone, a larger one passes
    refused = window.refused(("chat", "envelopes"), rates, 1.0, "2", 10)
    assert refused is not None and refused.details == {"limit": 2000, "retry_after_ms": 59_000}
    assert window.refused(("envelopes",), rates, 60.0, "3", 1500) is None
    assert window.refused(("envelopes",), rates, 60.0, "4", 501) is not None
    assert window.refused(("envelopes",), rates, 60.0, "5", 500) is None


@pytest.mark.req("X-6.3-5")
def test_only_the_chat_notification_of_v0_becomes_chat() -> None:
    message = {"jsonrpc": "2.0", "method": "notifications/chat/message", "params": {"text": "hi", "thread_id": "t"}}
    chat = read_v0(read(protocol=V0, kind="mcp", payload=message))
    assert chat.kind == "chat" and json.loads(chat.payload) == message["params"]
    assert read_v0(read(protocol=V0, kind="mcp", payload=message, to=["b"])).kind == "mcp"
    assert read_v0(read(protocol=V0, kind="mcp", payload=message | {"id": 1})).kind == "mcp"
    assert read_v0(read(protocol=V0, kind="mcp", payload=message | {"method": "tools/call"})).kind == "mcp"
    assert read_v0(read(protocol=V0, kind="mcp", payload=message | {"params": []})).kind == "mcp"


@pytest.mark.req("X-6.3-3", "X-6.3-5")
def test_a_v0_client_receives_only_kinds_of_v0() -> None:
    stamped = {"sender": "a", "ts": "2025-08-26T14:00:00Z", "correlation_id": "q"}
    chat = msgspec.structs.replace(read(payload={"text": "hi"}), **stamped)
    body = json.loads(encode_v0(chat))
    assert (body["protocol"], body["kind"], body["id"], body["from"]) == (V0, "mcp", "e-1", "a")
    assert body["payload"] == {"jsonrpc": "2.0", "method": "notifications/chat/message", "params": {"text": "hi"}}
    proposal = msgspec.structs.replace(read(kind="mcp/proposal", payload={"method": "x"}), **stamped)
    body = json.loads(encode_v0(proposal))
    assert body["kind"] == "system" and body["payload"]["event"] == "proposal" and body["payload"]["proposer"] == "a"
    call = msgspec.structs.replace(read(kind="mcp", payload={"id": 1, "method": "x"}), **stamped)
    body = json.loads(encode_v0(call))
    assert (body["kind"], body["payload"], body["correlation_id"]) == ("mcp", {"id": 1, "method": "x"}, "q")
