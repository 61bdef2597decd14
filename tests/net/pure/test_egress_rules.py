"""Which hosts an egress list permits, and what a proxy request asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.net.protocol.egress import ENTRY, Malformed, Permit, ProxyRequest, permits, read_head_untrusted


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(
    ("host", "entries", "permit"),
    [
        ("api.foo.com", ["api.foo.com"], Permit.NAMED),
        ("API.Foo.com.", ["api.FOO.com"], Permit.NAMED),
        ("api.bar.com", ["api.foo.com"], None),
        ("xapi.foo.com", ["api.foo.com"], None),
        ("api.foo.com.evil.org", ["api.foo.com"], None),
        ("a.foo.com", ["*.foo.com"], Permit.WILD),
        ("a.b.foo.com", ["*.foo.com"], Permit.WILD),
        ("foo.com", ["*.foo.com"], None),
        ("evilfoo.com", ["*.foo.com"], None),
        ("a.foo.com", ["*.foo.com", "a.foo.com"], Permit.NAMED),
        ("anything.example", ["*"], Permit.WILD),
        ("8.8.8.8", ["*"], Permit.WILD),
        ("8.8.8.8", ["api.foo.com"], None),
        ("10.1.2.3", ["*.2.3"], None),
        ("127.1", ["*.1"], None),
        ("10.1.2.3", ["10.1.2.3"], Permit.NAMED),
        ("::1", ["*.1"], None),
        ("anything.example", [], None),
    ],
)
def test_a_host_is_permitted_by_name_or_wildcard(host: str, entries: list[str], permit: Permit | None) -> None:
    assert permits(host, 443, entries) is permit


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(
    ("port", "entries", "permit"),
    [
        (443, ["api.foo.com:443"], Permit.NAMED),
        (80, ["api.foo.com:443"], None),
        (4430, ["api.foo.com:443"], None),
        (80, ["api.foo.com:443", "api.foo.com"], Permit.NAMED),
        (80, ["api.foo.com:443", "*.foo.com:80"], Permit.WILD),
        (443, ["*.foo.com:443"], Permit.WILD),
        (22, ["*.foo.com:443"], None),
        (443, ["*:443"], Permit.WILD),
        (22, ["*:443"], None),
    ],
)
def test_an_entry_with_a_port_is_for_that_port_alone(port: int, entries: list[str], permit: Permit | None) -> None:
    assert permits("api.foo.com", port, entries) is permit


def test_an_ipv6_address_among_the_entries_is_no_name_with_a_port() -> None:
    assert permits("::1", 443, ["::1"]) is Permit.NAMED
    assert permits("2001", 1, ["2001::1"]) is None


@pytest.mark.parametrize(
    "entry",
    [
        *("api.foo.com", "*.foo.com", "*", "localhost", "10.0.0.1", "my_db.internal"),
        *("api.foo.com:443", "*.foo.com:1", "*:65535", "localhost:8080"),
    ],
)
def test_an_entry_is_a_name_or_a_wildcard_with_a_port_or_without(entry: str) -> None:
    assert ENTRY.fullmatch(entry)


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(
    "entry",
    [
        *("foo.com/path", "10.0.0.0/8", "https://foo.com", "", "a b", "foo.*", "**", "*foo.com", "é.com"),
        *("foo.com:", "foo.com:0", "foo.com:65536", "foo.com:https", "foo.com:443:443", ":443", "foo.com:443/"),
    ],
)
def test_a_path_a_network_or_no_port_is_no_entry(entry: str) -> None:
    assert not ENTRY.fullmatch(entry)


def test_a_tunnel_is_asked_for_with_connect() -> None:
    head = b"CONNECT API.foo.com:443 HTTP/1.1\r\nHost: x\r\n\r\n"
    assert read_head_untrusted(head) == ProxyRequest(host="api.foo.com", port=443)
    assert read_head_untrusted(b"CONNECT [::1]:80 HTTP/1.0\r\n\r\n") == ProxyRequest(host="::1", port=80)


def test_a_plain_request_is_sent_on_in_the_form_its_host_expects() -> None:
    head = (
        b"POST http://api.foo.com:8080/a/b?c=d HTTP/1.1\r\nHost: other.com\r\nProxy-Authorization: Basic eA==\r\n"
        b"Connection: keep-alive\r\nContent-Length: 3\r\nX-Own: kept\r\n\r\n"
    )
    asked = read_head_untrusted(head)
    assert asked == ProxyRequest(
        host="api.foo.com",
        port=8080,
        head=b"POST /a/b?c=d HTTP/1.1\r\nHost: api.foo.com:8080\r\nContent-Length: 3\r\nX-Own: kept\r\n"
        b"Connection: close\r\n\r\n",
    )


def test_a_url_without_a_path_asks_for_the_root_on_port_80() -> None:
    asked = read_head_untrusted(b"GET http://foo.com?x#y HTTP/1.1\r\n\r\n")
    assert isinstance(asked, ProxyRequest)
    assert (asked.port, asked.head) == (80, b"GET /?x HTTP/1.1\r\nHost: foo.com\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET https://foo.com/ HTTP/1.1\r\n\r\n",
        b"GET ftp://foo.com/ HTTP/1.1\r\n\r\n",
        b"CONNECT foo.com HTTP/1.1\r\n\r\n",
        b"CONNECT foo.com:0 HTTP/1.1\r\n\r\n",
        b"CONNECT foo.com:99999 HTTP/1.1\r\n\r\n",
        b"CONNECT user@foo.com:80 HTTP/1.1\r\n\r\n",
        b"CONNECT foo.com:80:90 HTTP/1.1\r\n\r\n",
        b"CONNECT [foo.com]:80 HTTP/1.1\r\n\r\n",
        b"CONNECT .:80 HTTP/1.1\r\n\r\n",
        b"CONNECT a..b:80 HTTP/1.1\r\n\r\n",
        b"GET http://user:pass@foo.com/ HTTP/1.1\r\n\r\n",
        b"GET http://foo.com/ HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET http://foo.com/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n",
        b"GET http://foo.com/ HTTP/1.1\r\n folded: x\r\n\r\n",
        b"GET http://foo.com/ HTTP/2.0\r\n\r\n",
        b"G\xffT http://foo.com/ HTTP/1.1\r\n\r\n",
        b"GET http://f\xc3\xb6o.com/ HTTP/1.1\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\n\r\n",
    ],
)
def test_an_invalid_proxy_request_is_malformed(head: bytes) -> None:
    assert isinstance(read_head_untrusted(head), Malformed)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_malformed(data: bytes) -> None:
    read = read_head_untrusted(data + b"\r\n\r\n")
    assert isinstance(read, ProxyRequest | Malformed)
    if isinstance(read, ProxyRequest) and read.head is not None:
        assert read.head.count(b"\r\n\r\n") == 1
