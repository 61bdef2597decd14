"""Does `interlock discover` say what a domain names, and does nothing happen without a person?"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import dns.message
import dns.rdatatype
import pytest
from tests.cli.program import Inline
from tests.servers.name_server import Answerer, NameServer, Zone, name_server

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


def zones(*each: Zone) -> Answerer:
    """Answer each query from the zone that has its name, and a query for keys from the zone that is signed."""

    def answer(query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        is_key = query.question[0].rdtype == dns.rdatatype.DNSKEY
        fitting = (zone for zone in each if (zone.is_signed if is_key else zone.name == query.question[0].name))
        return next(fitting, each[0])(query, is_tcp)

    return answer


@pytest.mark.req("REG-7.1-5")
def test_tags_of_later_revisions_are_named_and_the_record_still_counts(inline: Inline, server: NameServer) -> None:
    record = "v=mcp1; url=https://192.0.2.7/mcp; family=mcp; binding=streamable-http; bare; x-new=a=b"
    crowded = "v=mcp1; url=https://192.0.2.8/mcp; " + "; ".join(f"t{number}=1" for number in range(31))
    server.answers = Zone(NAME, record, crowded)
    finished = inline("discover", "example.org", "--no-connect", "--allow-private", "--json")
    servers = {each["url"]: each for each in json.loads(finished.out)["servers"]}
    later = servers["https://192.0.2.7/mcp"]
    assert (later["state"], later["dialect"]) == ("untried", "draft-morrison-mcp-dns-discovery")
    assert later["other_tags"] == ["family", "binding", "x-new"]
    assert later["fields"]["x-new"] == "a=b"
    assert servers[None]["detail"] == "it has a field twice, or more than 32"
    drawn = inline("discover", "example.org", "--no-connect", "--allow-private", COLUMNS="240").out
    assert "tags of another revision: family, binding, x-new" in drawn


@pytest.mark.req("REG-7.1-6")
def test_identity_records_are_shown_and_name_no_server(inline: Inline, server: NameServer) -> None:
    organisation = "v=oa1; entity=Example Ltd; regions=eu; later=1"
    handle = "v=alter1; h=~ada; sig=abc"
    others = (
        "v=alter1; org=~example",
        "v=alter7; h=Ada",
        "v=alter1; h=~a; h=~b",
        "google=x",
        f"v=alter1; x={'y' * 2048}",
    )
    server.answers = zones(
        Zone(NAME, "v=mcp1; url=https://192.0.2.7/mcp"),
        Zone("_org-alter.example.org", organisation, is_signed=True),
        Zone("_alter.example.org", handle, *others),
    )
    finished = inline("discover", "example.org", "--no-connect", "--allow-private", "--json")
    discovery = json.loads(finished.out)
    assert [each["url"] for each in discovery["servers"]] == ["https://192.0.2.7/mcp"]
    draft = "draft-morrison-mcp-dns-discovery"
    first, *rest = discovery["identities"]
    assert (first["name"], first["dialect"]) == ("_org-alter.example.org", f"{draft}: organisation")
    assert first["fields"] == {"v": "oa1", "entity": "Example Ltd", "regions": "eu", "later": "1"}
    assert first["dnssec"] == "signed"
    assert {each["name"] for each in rest} == {"_alter.example.org"}
    by_fields = {(each["fields"].get("v"), each["fields"].get("h")): each for each in rest if not each["problem"]}
    person = by_fields["alter1", "~ada"]
    not_recommended = "revision -05 of the draft does not recommend records of persons"
    assert (person["dialect"], person["notes"]) == (
        f"{draft}: person",
        ["its signature is not checked", not_recommended],
    )
    assert by_fields["alter1", None]["dialect"] == f"{draft}: organisation"
    assert by_fields["alter7", "Ada"]["notes"][:2] == ["the version alter7 is newer than alter1", "its h is no ~handle"]
    assert sorted(each["problem"] for each in rest if each["problem"]) == [
        "it has a field twice, or more than 32",
        "it has more than 2048 bytes",
    ]
    drawn = inline("discover", "example.org", "--no-connect", "--allow-private").out
    assert "_alter.example.org: draft-morrison-mcp-dns-discovery: person, DNSSEC: unsigned\n" in drawn
    assert "  h=~ada\n" in drawn and f"  {not_recommended}\n" in drawn


@pytest.mark.req("REG-7.1-6")
def test_identity_records_do_not_stand_for_a_server_and_their_failure_is_reported(
    inline: Inline, server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    organisation = Zone("_org-alter.example.org", "v=oa1; entity=Example Ltd")
    server.answers = zones(Zone(NAME), organisation)
    finished = inline("discover", "example.org")
    assert (finished.code, "names no MCP server" in finished.err) == (1, True)
    assert "_org-alter.example.org" in finished.out
    monkeypatch.setattr("interlock.net.dns_lookup.LOOKUP_S", 0.2)
    mcp = Zone(NAME, "v=mcp1; url=https://192.0.2.7/mcp")

    def silent(query: dns.message.Message, is_tcp: bool) -> dns.message.Message | None:
        return mcp(query, is_tcp) if query.question[0].name == mcp.name else None

    server.answers = silent
    finished = inline("discover", "example.org", "--no-connect", "--allow-private", "--json")
    discovery = json.loads(finished.out)
    assert (finished.code, len(discovery["servers"])) == (0, 1)
    assert [each["name"] for each in discovery["identities"]] == ["_org-alter.example.org", "_alter.example.org"]
    assert all("does not say that there are no records" in each["problem"] for each in discovery["identities"])
    forged = Zone("_alter.example.org", "v=alter1; org=~evil", is_signed=True)
    other = Zone("_alter.example.org", "v=alter1; org=~example", is_signed=True)
    stolen = other.signature()
    forged.signature = lambda: stolen  # type: ignore[method-assign]
    server.answers = zones(mcp, forged)
    (bogus,) = json.loads(inline("discover", "example.org", "--no-connect", "--allow-private", "--json").out)[
        "identities"
    ]
    assert (bogus["dnssec"], bogus["fields"], bogus["problem"]) == ("bogus", {}, "its signature is wrong")


@pytest.mark.req("REG-7.1-7")
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ("pk=ed25519:abc; epoch=3", ""),
        ("pk=ed25519:abc; epoch=4", ""),
        ("pk=ed25519:abc; epoch=2", "its epoch was 3 and went down to 2"),
        ("pk=ed25519:abc", "its epoch was 3 and is missing"),
        ("pk=ed25519:abc; epoch=high", "its epoch was 3 and is missing"),
        ("pk=ed25519:xyz; epoch=4", "its key is not the one that was pinned for the domain"),
        ("epoch=4", "it has no key, and a key of the domain was pinned"),
    ],
)
def test_a_record_that_does_not_continue_the_pinned_key_is_not_usable(
    inline: Inline, server: NameServer, tmp_path: Path, fields: str, fault: str
) -> None:
    pins = {NAME: {"key": "ed25519:abc", "epoch": 3}}
    (tmp_path / "dns-keys.json").write_text(json.dumps(pins))
    server.answers = Zone(NAME, f"v=mcp1; url=https://93.184.215.14/mcp; {fields}")
    how = ("discover", "example.org", "--no-connect", "--data", str(tmp_path))
    (found,) = json.loads(inline(*how, "--json").out)["servers"]
    assert (found["state"], found["detail"]) == (("unusable", fault) if fault else ("untried", ""))
    accepted = json.loads(inline(*how, "--new-key", "--json").out)["servers"]
    assert [each["state"] for each in accepted] == ["untried"]
    if fault:
        for arguments in (how[:3], ("add", "dns:example.org")):
            refused = inline(
                *arguments, "--data", str(tmp_path), *(["--add"] if arguments[0] == "discover" else []), "--yes"
            )
            assert (refused.code, fault in refused.err) == (1, True), refused.err
    assert json.loads((tmp_path / "dns-keys.json").read_text()) == pins


@pytest.mark.req("REG-7.1-7")
def test_pinned_keys_that_cannot_be_read_stop_the_discovery(inline: Inline, server: NameServer, tmp_path: Path) -> None:
    (tmp_path / "dns-keys.json").write_text("[1")
    server.answers = Zone(NAME, "v=mcp1; url=https://93.184.215.14/mcp")
    refused = inline("discover", "example.org", "--no-connect", "--data", str(tmp_path))
    assert (refused.code, "the pinned keys in" in refused.err) == (1, True)
