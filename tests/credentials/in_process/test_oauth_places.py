"""A server may send us no nearer than it stands itself: what is fetched for it, and from which address."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.drivers import driver_texts

from interlock.config.plan import Dial
from interlock.core.clock import Clock
from interlock.credentials.authorization_server import AuthorizationServers
from interlock.credentials.protocol.resource import Challenge
from interlock.credentials.secret_references import NoOAuth, Unobtainable
from interlock.drivers.install.installation import Installed, Locked
from interlock.drivers.kinds import kind_of
from interlock.net.fetch import Fetcher, FetchFailed, scope_of_url
from interlock.net.protocol.address_scope import Scope

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Knocked:
    """Something that listens on this machine and counts who comes."""

    def __init__(self) -> None:
        self.hosts: list[str] = []

    async def __aenter__(self) -> "Knocked":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.hosts.append(next(line[6:] for line in lines if line.startswith("host: ")))
        writer.write(ANSWER)
        await writer.drain()
        writer.close()


def names_lead_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Every name leads to these addresses, as if its owner had said so."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)


@pytest.mark.parametrize("within", [Scope.PUBLIC, Scope.PRIVATE])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_nothing_on_this_machine_is_knocked_at_for_a_server_elsewhere(within: Scope, host: str) -> None:
    async with Knocked() as knocked:
        fetcher = Fetcher(within)
        for fetch in (fetcher.get, lambda url: fetcher.exchange(url, b"", b"x")):
            with pytest.raises(FetchFailed, match="private address"):
                await fetch(f"http://{host}:{knocked.port}/")  # type: ignore[operator]
        await fetcher.close()
    assert knocked.hosts == []


@pytest.mark.parametrize("within", [None, Scope.MACHINE])
async def test_a_server_on_this_machine_may_send_us_anywhere_on_it(within: Scope | None) -> None:
    async with Knocked() as knocked:
        fetcher = Fetcher(within)
        assert await fetcher.get(f"http://localhost:{knocked.port}/") == b"{}"
        await fetcher.close()
    assert knocked.hosts == [f"localhost:{knocked.port}"]


@pytest.mark.parametrize(
    ("addresses", "within"),
    [
        (["10.0.0.1"], Scope.PUBLIC),
        (["93.184.215.14", "10.0.0.1"], Scope.PUBLIC),
        (["127.0.0.1"], Scope.PRIVATE),
        (["169.254.169.254"], Scope.PRIVATE),
        (["10.0.0.1", "::ffff:127.0.0.1"], Scope.PRIVATE),
    ],
)
async def test_a_name_that_leads_nearer_by_any_of_its_addresses_is_refused(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], within: Scope
) -> None:
    names_lead_to(monkeypatch, *addresses)
    fetcher = Fetcher(within)
    with pytest.raises(FetchFailed, match="private address"):
        await fetcher.get("https://login.example.com/x")
    await fetcher.close()


@pytest.mark.parametrize(
    ("url", "addresses", "place"),
    [
        ("https://mcp.example.com/mcp", ["93.184.215.14"], Scope.PUBLIC),
        ("https://mcp.example.com/mcp", ["10.0.0.1"], Scope.PRIVATE),
        ("https://mcp.example.com/mcp", ["10.0.0.1", "93.184.215.14"], Scope.PUBLIC),
        ("https://mcp.example.com/mcp", ["127.0.0.1"], Scope.PRIVATE),  # its owner says so, not we
        ("https://mcp.example.com/mcp", [], Scope.PUBLIC),
        ("http://127.0.0.1:1/mcp", [], Scope.MACHINE),
        ("http://localhost:1/mcp", [], Scope.MACHINE),
        ("https://10.0.0.1/mcp", [], Scope.PRIVATE),
    ],
)
async def test_the_state_of_a_server_is_shown(
    monkeypatch: pytest.MonkeyPatch, url: str, addresses: list[str], place: Scope
) -> None:
    names_lead_to(monkeypatch, *addresses)
    assert await scope_of_url(url) is place


async def test_a_server_in_the_world_cannot_have_this_machine_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Knocked() as knocked:
        names_lead_to(monkeypatch, "93.184.215.14")
        authority = AuthorizationServers("https://mcp.example.com/mcp", None, Clock())
        await authority._fetcher_for("https://mcp.example.com/mcp")
        names_lead_to(monkeypatch, "127.0.0.1")  # from now on the name leads here
        for named in (f"http://127.0.0.1:{knocked.port}/", f"https://mcp.example.com:{knocked.port}/"):
            with pytest.raises(Unobtainable, match="private address"):
                await authority.find(Challenge(resource_metadata=named))
        with pytest.raises(NoOAuth, match="it names no authorization server"):
            await authority.find(Challenge())
        await authority.close()
    assert knocked.hosts == []


async def test_no_token_is_asked_for_where_others_could_read_it() -> None:
    authority = AuthorizationServers("http://mcp.example.com/mcp", None, Clock())
    with pytest.raises(Unobtainable, match="plain http"):
        await authority.find(Challenge(resource_metadata="https://mcp.example.com/x"))
    await authority.close()


@pytest.mark.req("AIP-security-4")
async def test_a_driver_that_lists_its_hosts_has_no_others_asked_for_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Knocked() as knocked:
        names_lead_to(monkeypatch, "127.0.0.1")
        here = f"http://127.0.0.1:{knocked.port}/mcp"
        authority = AuthorizationServers(here, None, Clock(), egress=("127.0.0.1", "*.example.com"))
        for named in ("https://login.example.org/", "https://example.com/", f"http://localhost:{knocked.port}/"):
            with pytest.raises(Unobtainable, match="egress_denied"):
                await authority.find(Challenge(resource_metadata=named))
            with pytest.raises(Unobtainable, match="egress_denied"):
                await authority.server(named)
        assert knocked.hosts == []
        with pytest.raises(Unobtainable) as asked:
            await authority.find(Challenge(resource_metadata=f"http://127.0.0.1:{knocked.port}/metadata"))
        assert "egress_denied" not in str(asked.value)
        await authority.close()
    assert len(knocked.hosts) == 1


@pytest.mark.req("AIP-security-4")
def test_the_hosts_of_a_remote_driver_are_those_it_lists_and_its_own(tmp_path: Path) -> None:
    def asked(**network: Any) -> tuple[str, ...] | None:
        data = driver_texts.remote("https://mcp.example.com/v1", auth={"type": "oauth"}) | network
        declared = driver_texts.as_driver(data).value
        assert declared is not None
        installed = Installed(command=(), version=None, lock=Locked(asked="", method="present"))
        reach = kind_of(declared.server).compile_plan(declared, installed, folder=tmp_path, data=tmp_path).reach
        assert isinstance(reach, Dial)
        return reach.egress

    assert asked() is None
    listed = ["*.example.com", "login.example.org"]
    assert asked(network={"egress": listed}) == (*listed, "mcp.example.com")
