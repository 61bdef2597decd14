"""Does `interlock discover` say what a domain names, and does nothing happen without a person?"""

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.cli.program import Inline
from tests.servers.name_server import NameServer, Zone, name_server

NAME = "_mcp.example.org"


@pytest.fixture(scope="module")
def server() -> Iterator[NameServer]:
    with name_server() as made:
        yield made


@pytest.fixture(autouse=True)
def only_resolver(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver_of_this_machine = SimpleNamespace(nameservers=[server.address])
    monkeypatch.setattr("dns.resolver.Resolver", lambda: resolver_of_this_machine)


@pytest.mark.req("REG-7.1-4", "REG-N-6")
def test_discover_lists_what_it_finds_and_says_whether_it_is_signed(inline: Inline, server: NameServer) -> None:
    records = (
        "v=mcp1; url=https://192.0.2.7/mcp",
        "v=mcp1; registry=https://a.example/r",
        "v=mcp1 endpoint=https://10.0.0.1/",
    )
    server.answers = Zone(NAME, *records, is_signed=True)
    told = inline("discover", "example.org", "--no-connect")
    assert told.code == 0
    for word in ("DNSSEC: signed", "https://192.0.2.7/mcp", "MCPLookup", "private", "it leads to a registry"):
        assert word in told.out
    found = json.loads(inline("discover", "example.org", "--no-connect", "--allow-private", "--json").out)
    assert found["dnssec"] == "signed"
    assert [one["state"] for one in found["servers"]] == ["untried", "untried", "unusable"]


@pytest.mark.req("REG-7.1-4")
def test_absence_is_refused_and_failure_is_unreachable(
    inline: Inline, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.net.dns_lookup.LOOKUP_S", 0.2)
    server.answers = Zone(NAME)
    told = inline("discover", "example.org")
    assert (told.code, "names no MCP server" in told.err) == (1, True)
    assert inline("discover", "not a domain").code == 2
    told = inline("discover", "example.org", "--resolver", "127.0.0.1:1")
    assert (told.code, "does not say that there are no records" in told.err) == (4, True)


@pytest.mark.req("REG-7.1-4")
@pytest.mark.parametrize(
    "arguments", [("add", "dns:example.org"), ("discover", "example.org", "--add", "--no-connect")]
)
def test_nothing_is_added_without_a_person_or_by_guessing(
    inline: Inline, server: NameServer, arguments: tuple[str, ...]
) -> None:
    server.answers = Zone(NAME, "v=mcp1; url=https://10.0.0.1/mcp")
    told = inline(*arguments)
    assert (told.code, "private address" in told.err) == (1, True)
    host = "v=mcp1; url=https://93.184.215.14/"
    server.answers = Zone(NAME, host)
    told = inline(*arguments)
    assert (told.code, "there is no terminal to confirm on" in told.err) == (1, True)
    server.answers = Zone(NAME, host, f"{host}second")
    told = inline(*arguments, "--yes")
    assert (told.code, "names 2 servers" in told.err) == (1, True)
