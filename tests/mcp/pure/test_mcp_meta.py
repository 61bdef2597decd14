"""What of a request's `_meta` crosses a hop (AX-1.1-7, AX-10.1-1)?"""

import pytest
from msgspec import Raw
from tests.mcp.mcp_schema import MODERN, complaints

from interlock.mcp import meta
from interlock.mcp.meta import RAW_EMPTY, UNCHANGED_KEYS, Fate, crossing_keys, fate, stamp_modern
from interlock.wire.jsonrpc.codec import decode_object, encode_value

NAMES = "protocolVersion clientCapabilities clientInfo logLevel subscriptionId"
ERA = [f"io.modelcontextprotocol/{name}" for name in NAMES.split()]
CREDENTIALS = """
    token accessToken com.acme/refresh_token ID-TOKEN progressToken csrf.token
    authorization Authorization proxy-authorization com.acme/authorization
    cookie Set-Cookie com.acme/cookies secret client_secret com.acme/my-secret-thing
    session Mcp-Session-Id sessionId com.acme/session password com.acme/userPassword
    api-key api_key apiKey X-API-Key com.acme/api.key AWS-Secret-Access-Key access_key private-key
    credential com.acme/credentials bearer jwt passphrase passwd HTTPCookie X-JWT2 ACCESSTOKEN sessionid tokens
"""
# A task has another id on the other side: whoever knows both says which.
OURS = ["x-mcpax-route", "X-MCPAX-Cursor", "x-mcpax-", "Baggage", "io.modelcontextprotocol/related-task"]
VENDORS = """
    com.acme/trace com.acme/auth acme x-mcpax dev.interlock/x com.acme/baggage
    com.acme/author key com.acme/keyboard Traceparent progress é
    com.acme/tokenizer maxTokensizer com.acme/secretary com.acme/unauthorization keyApi com.acme/obsession
"""


@pytest.mark.req("AX-7.2-6", "AX-10.1-1", "AX-1.1-7")
@pytest.mark.parametrize("key", [*CREDENTIALS.split(), *OURS])
def test_credentials_and_keys_of_the_tree_are_not_passed_on(key: str) -> None:
    assert crossing_keys({key: Raw(b'"hunter2"')}, vendor=True) == {}


@pytest.mark.parametrize("key", ERA)
def test_an_era_key_is_not_carried_over_but_written_afresh(key: str) -> None:
    assert fate(key) is Fate.ERA
    assert crossing_keys({key: RAW_EMPTY}, vendor=True) == {}


@pytest.mark.req("AX-7.2-6", "AX-10.1-1", "AX-1.1-7")
@pytest.mark.parametrize("key", [*VENDORS.split(), ""])
def test_a_vendor_key_passes_unless_the_operator_closed_that_too(key: str) -> None:
    value = Raw(b'{ "b":1.0,"a":null }')
    assert crossing_keys({key: value}, vendor=True) == {key: value}
    assert crossing_keys({key: value}, vendor=False) == {}


@pytest.mark.parametrize("key", ["traceparent", "tracestate"])
def test_a_trace_crosses_always(key: str) -> None:
    assert crossing_keys({key: RAW_EMPTY}, vendor=False) == {key: RAW_EMPTY}


@pytest.mark.req("AX-1.1-7")
@pytest.mark.parametrize(
    ("baggage", "passes"),
    [
        ("release=7", True),
        ("userTier=gold, region = eu%2Dwest;ttl=3,k=", True),
        ("tokenizer=a,author=b", True),
        ("release=7,sessionId=1", False),
        ("api-key=1", False),
        ("a=1;sessionId=7", False),
        ("a=1; ttl=3 ;token", False),
        ("a=1;x-mcpax-route=home", False),
        ("a=1;x,x-mcpax-route=home", False),
        ("X-MCPAX-Cursor=1", False),
        ("baggage=1", False),
        ("no member", False),
        ("a=1,,b=2", False),
        ("a=é", False),
        ("", False),
        ("a=" + "1" * 8192, False),
    ],
)
def test_baggage_crosses_unless_a_member_names_a_credential_or_a_claim(baggage: str, passes: bool) -> None:
    value = Raw(encode_value(baggage))
    for vendor in (True, False):
        assert crossing_keys({"baggage": value}, vendor=vendor) == ({"baggage": value} if passes else {})


@pytest.mark.parametrize("value", [b"{}", b"7", b"null", b'["a=1"]', b'"a=1\\ud800"'])
def test_baggage_that_is_not_text_does_not_cross(value: bytes) -> None:
    assert crossing_keys({"baggage": Raw(value)}, vendor=True) == {}


def test_members_that_are_passed_on_keep_their_bytes_and_order() -> None:
    members = decode_object(rb'{"z":1.0,"token":"t","a":{ "k" : 1e400 },"tracestate":"x","":["\u00e9"]}')
    assert members is not None
    assert (
        encode_value(crossing_keys(members, vendor=True))
        == rb'{"z":1.0,"a":{ "k" : 1e400 },"tracestate":"x","":["\u00e9"]}'
    )


def test_a_key_is_judged_the_same_at_any_length() -> None:
    assert fate("x" * 100_000) is Fate.VENDOR
    assert fate("x" * 100_000 + "-api-key") is Fate.DROP


def test_keys_of_any_length_and_number_are_not_kept() -> None:
    before = meta._remembered.cache_info().currsize
    crossing_keys({"k" * 1_000 + str(n): RAW_EMPTY for n in range(100)}, vendor=True)
    assert meta._remembered.cache_info().currsize == before
    assert meta._remembered.cache_info().maxsize == 4096


@pytest.mark.parametrize("key", sorted(UNCHANGED_KEYS))
def test_keys_that_pass_unread_are_neither_credentials_nor_vendor_keys(key: str) -> None:
    assert fate(key) in (Fate.ERA, Fate.PASS)


def test_a_modern_server_gets_the_clients_capabilities_not_ours() -> None:
    said = Raw(b'{"sampling":{ },"x":1.0}')
    stamped = stamp_modern(
        {"com.acme/a": Raw(b"1")},
        capabilities=said,
        client=Raw(b'{"name":"c","version":"1"}'),
        log_level=Raw(b'"info"'),
    )
    text = encode_value(stamped)
    assert list(stamped) == ["com.acme/a", *ERA[:4]]
    assert bytes(stamped[ERA[1]]) == bytes(said)
    assert complaints(MODERN, "RequestMetaObject", text) == []


def test_absent_members_of_a_client_are_not_invented() -> None:
    stamped = stamp_modern({}, capabilities=RAW_EMPTY, client=None, log_level=None)
    assert list(stamped) == ERA[:2]
    assert complaints(MODERN, "RequestMetaObject", encode_value(stamped)) == []
