"""Are the servers of a domain found by DNS, told apart, tried, and never trusted for being found?"""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from tests.servers.name_server import NameServer, Zone, name_server

from interlock.drivers.cli.discover import Discovery, discover_servers
from interlock.names.protocol.dns_discovery import read_records_untrusted, record_name
from interlock.net import fetch
from interlock.net.dns_lookup import DnsFailed, look_up_txt

NAME = "_mcp.example.org"
RECORD = "v=mcp1; url=https://mcp.example.org/mcp; proto=streamable-http; pk=ed25519:abc=; epoch=1"


@pytest.fixture(scope="module")
def server() -> Iterator[NameServer]:
    with name_server() as made:
        yield made


def find(server: NameServer, **options: Any) -> Discovery:
    return asyncio.run(discover_servers(NAME, [server.address], **{"tries": False, **options}))


def read(*records: str) -> list[tuple[str, str | None, str]]:
    return [(one.dialect, one.url, one.problem) for one in read_records_untrusted(each.encode() for each in records)]


@pytest.mark.req("REG-7.1-4")
@pytest.mark.parametrize(
    ("record", "dialect", "url"),
    [
        (RECORD, "draft-morrison-mcp-dns-discovery", "https://mcp.example.org/mcp"),
        ("v=mcp1; src=https://a.example/x; auth=oauth", "draft-serra-mcp-discovery-uri", "https://a.example/x"),
        ("v=mcp1 endpoint=https://a.example/x", "MCPLookup", "https://a.example/x"),
        ("mcp=https://a.example/x;version=2025-11-25", "alter SDK", "https://a.example/x"),
        ("v=mcp1;url=https://a.example/?q=1=2", "draft-morrison-mcp-dns-discovery", "https://a.example/?q=1=2"),
    ],
)
def test_each_dialect_is_read_and_named(record: str, dialect: str, url: str) -> None:
    assert read(record) == [(dialect, url, "")]


@pytest.mark.req("REG-7.1-4")
@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ("v=mcp1; registry=https://a.example/r; public=true", "it leads to a registry, not to a server"),
        ("v=mcp1; pub-key=abc", "it names no address"),
        ("v=mcp1; url=http://a.example/", "its address is not https"),
        ("v=mcp1; url=https://user:pass@a.example/", "its address has a name or a password in it"),
        ("v=mcp1; url=https:///x", "its address has no host"),
        ("v=mcp1; url=https://a.example:port/", "its address is no URL"),
        ("v=mcp1; url=https://a.example/#x", "its address has a fragment"),
        ("v=mcp1; url=https://a.example/" + "x" * 1024, "its address has more than 1024 characters"),
        ("v=mcp1; url=https://a.example/; url=https://b.example/", "it has a field twice, or more than 32"),
        ("v=mcp1; url=https://a.example/\x1b[2J", "it has control characters"),
        ("v=mcp1; x=" + "y" * 2048, "it has more than 2048 bytes"),
    ],
    ids=lambda value: value[:40],
)
def test_a_record_that_names_no_server_says_why(record: str, problem: str) -> None:
    ((_, _, found),) = read(record)
    assert found == problem


@pytest.mark.req("REG-7.1-4")
def test_other_records_at_the_label_are_left_alone() -> None:
    others = ("v=aid2;p=mcp;u=https://a.example", "google-site-verification=x", "", "v=mcp2; url=https://a.example")
    assert read(*others) == []


@pytest.mark.req("REG-7.1-4")
@pytest.mark.parametrize(
    ("domain", "name"),
    [
        ("Example.org", NAME),
        ("example.org.", NAME),
        ("bücher.example", "_mcp.xn--bcher-kva.example"),
        ("localhost", None),
        ("127.0.0.1", None),
        ("a b.example", None),
        ("", None),
        ("x" * 64 + ".example", None),
    ],
)
def test_only_a_domain_has_a_place_to_look_at(domain: str, name: str | None) -> None:
    assert record_name(domain) == name


@pytest.mark.req("REG-7.1-4", "REG-N-6")
def test_unsigned_records_are_found_and_reported_as_unsigned(server: NameServer) -> None:
    server.answers = Zone(NAME, RECORD, "v=mcp1; url=https://second.example/; priority=5")
    found = find(server, private_hosts=None)
    assert (found.dnssec, found.resolver) == ("unsigned", server.address)
    assert [one.url for one in found.servers] == ["https://mcp.example.org/mcp", "https://second.example/"]
    assert [one.state for one in found.servers] == ["untried", "untried"]


@pytest.mark.req("REG-N-6")
def test_signed_records_are_checked_with_the_keys_of_the_zone(server: NameServer) -> None:
    zone = Zone(NAME, RECORD, is_signed=True)
    server.answers = zone
    assert find(server, private_hosts=None).dnssec == "signed"
    zone.records = ("v=mcp1; url=https://evil.example/",)
    good = Zone(NAME, RECORD, is_signed=True)
    good.key, good.dnskey = zone.key, zone.dnskey
    stolen = good.signature()
    zone.signature = lambda: stolen  # type: ignore[method-assign]
    found = find(server, private_hosts=None)
    assert found.dnssec == "bogus"
    assert [(one.state, one.detail) for one in found.servers] == [("unusable", "its signature is wrong")]


@pytest.mark.req("REG-N-6")
def test_a_dnssec_proof_of_the_resolver_is_reported(server: NameServer) -> None:
    zone = Zone(NAME, RECORD)

    def proved(query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        answer = zone(query, is_tcp)
        answer.flags |= dns.flags.AD
        return answer

    server.answers = proved
    assert find(server, private_hosts=None).dnssec == "authenticated"


@pytest.mark.req("REG-N-6")
def test_a_long_answer_comes_by_tcp_and_an_answer_over_the_limit_is_refused(server: NameServer) -> None:
    long = [f"v=mcp1; url=https://a{number}.example/{'x' * 200}" for number in range(16)]
    server.answers = Zone(NAME, *long)
    server.asked.clear()
    assert len(find(server, private_hosts=None).servers) == 16
    assert [one.rpartition(" ")[2] for one in server.asked] == ["udp", "tcp"]
    for records in ([*long, "one more"], [f"{number} " + "y" * 1900 for number in range(12)]):
        server.answers = Zone(NAME, *records)
        with pytest.raises(DnsFailed) as failed:
            find(server)
        assert failed.value.code == "too_large"


@pytest.mark.req("REG-7.1-4", "REG-N-6")
def test_dns_records_that_do_not_answer_the_question_are_ignored(server: NameServer) -> None:
    evil = Zone("_mcp.evil.example", "v=mcp1; url=https://evil.example/")

    def poisoned(query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        answer = Zone(NAME, RECORD)(query, is_tcp)
        answer.answer.append(evil.txt)
        answer.additional.append(
            dns.rrset.from_text(f"{NAME}.", 60, "IN", "TXT", '"v=mcp1; url=https://evil.example/"')
        )
        return answer

    server.answers = poisoned
    assert [one.url for one in find(server, private_hosts=None).servers] == ["https://mcp.example.org/mcp"]

    def mistaken(query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        query.id = (query.id + 1) % 65_536
        return Zone(NAME, "v=mcp1; url=https://evil.example/")(query, is_tcp)

    for answers in (mistaken, lambda query, is_tcp: b"\x00" * 40, lambda query, is_tcp: None):
        server.answers = answers
        with pytest.raises(DnsFailed) as failed:
            asyncio.run(look_up_txt(NAME, [server.address], timeout_s=0.3))
        assert failed.value.code == "timeout"


@pytest.mark.req("REG-7.1-4")
def test_absence_is_not_failure_and_failure_is_not_absence(server: NameServer) -> None:
    server.answers = Zone(NAME)
    assert find(server).servers == ()

    def nowhere(query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        answer = dns.message.make_response(query)
        answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer

    server.answers = nowhere
    assert find(server).servers == ()

    def failing(query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        answer = dns.message.make_response(query)
        answer.set_rcode(dns.rcode.SERVFAIL)
        return answer

    server.answers = failing
    with pytest.raises(DnsFailed) as failed:
        find(server)
    assert failed.value.code == "refused"
    for resolver in ("nonsense", "127.0.0.1:0", "[::1", "127.0.0.1:99999"):
        with pytest.raises(DnsFailed) as failed:
            asyncio.run(look_up_txt(NAME, [resolver], timeout_s=0.2))
        assert failed.value.code in ("malformed", "unreachable", "timeout")


@pytest.mark.req("REG-N-6")
@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "[::1]", "localhost", "192.168.0.1"])
def test_a_private_address_is_refused_unless_it_is_allowed(server: NameServer, host: str) -> None:
    server.answers = Zone(NAME, f"v=mcp1; url=https://{host}/mcp")
    (one,) = find(server).servers
    assert (one.state, one.is_usable) == ("private", False)
    (one,) = find(server, private_hosts=(host.strip("[]"),)).servers
    assert one.state == "untried"


class Endpoint(BaseHTTPRequestHandler):
    """An MCP server as far as its greeting."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "shop", "version": "3"}}
        answers = {
            "/mcp": (200, {"jsonrpc": "2.0", "id": body["id"], "result": result}),
            "/locked": (401, {}),
            "/page": (200, {"hello": 1}),
        }
        status, said = answers.get(self.path, (404, {}))
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.req("REG-7.1-4")
def test_a_discovered_server_is_contacted(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over plain HTTP, which records themselves cannot ask for."""
    monkeypatch.setattr(fetch, "is_protected", lambda url: True)
    monkeypatch.setattr("interlock.names.protocol.dns_discovery._url_problem", lambda url: "")
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        port = http.server_address[1]
        paths = ("mcp", "locked", "page", "none")
        server.answers = Zone(NAME, *(f"v=mcp1; url=http://127.0.0.1:{port}/{path}" for path in paths))
        found = find(server, private_hosts=None, tries=True)
        http.shutdown()
    told = {(one.url or "").rpartition("/")[2]: (one.state, one.detail) for one in found.servers}
    assert told == {
        "mcp": ("answers", "shop 3"),
        "locked": ("credential", "it asks for a credential: HTTP status 401"),
        "page": ("fails", "what it answers is not MCP"),
        "none": ("fails", "HTTP status 404"),
    }
