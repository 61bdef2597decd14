"""The forward proxy of a sandbox: whom it connects, whom it refuses, and what it survives."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence

import pytest

from interlock.net import egress_proxy
from interlock.net import egress_proxy as egress
from interlock.net.egress_proxy import Egress, Streams

PUBLIC = "93.184.216.34"


class Yard:
    """A proxy, a host behind it that answers every name, and what was refused."""

    def __init__(self, addresses: dict[str, Sequence[str]]) -> None:
        self.addresses = addresses
        self.denied: list[tuple[str, int, str]] = []
        self.dialled: list[str] = []
        self.heard: list[bytes] = []
        self.port = self.direct_port = 0
        self.names_at = ("", 0)
        self._host: asyncio.Server | None = None
        self._proxy: Egress | None = None

    async def open(self, *entries: str) -> None:
        self._host = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        names = socket.socket(type=socket.SOCK_DGRAM)
        names.bind(("127.0.0.1", 0))
        self.names_at = names.getsockname()
        direct = socket.create_server(("0.0.0.0", 0))
        self.direct_port = direct.getsockname()[1]
        entries = tuple(each.replace(":DIRECT", f":{self.direct_port}") for each in entries)
        self._proxy = Egress(entries, lambda *told: self.denied.append(told), resolve=self._resolve, dial=self._dial)
        await self._proxy.start(names, listener, (direct,))

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if self._host is not None:
            self._host.close()

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        if host not in self.addresses:
            raise socket.gaierror("no such name")
        return self.addresses[host]

    async def _dial(self, address: str, port: int) -> Streams:
        self.dialled.append(address)
        assert self._host is not None
        return await asyncio.open_connection(*self._host.sockets[0].getsockname()[:2])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.heard.append(data)
                body = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
                writer.write(body if data.startswith((b"GET", b"POST")) else data.upper())
                if data.startswith(b"GET"):
                    break
        writer.close()

    async def ask(self, data: bytes, *more: bytes) -> bytes:
        """Everything that comes back until the proxy closes or is silent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        heard = b""
        try:
            for each in more:
                heard += await reader.readuntil(b"\r\n\r\n")
                writer.write(each)
            writer.write_eof()
            async with asyncio.timeout(10):
                heard += await reader.read()
        finally:
            writer.close()
        return heard


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    made = Yard(
        {
            "api.foo.com": [PUBLIC],
            "a.foo.com": [PUBLIC],
            "inner.foo.com": ["10.0.0.7"],
            "mixed.foo.com": [PUBLIC, "127.0.0.1"],
            "mapped.foo.com": ["::ffff:127.0.0.1"],
            "meta.foo.com": ["169.254.169.254"],
            "named.internal": ["10.0.0.7"],
            "turned.example": ["127.0.0.1"],
            "localhost": ["127.0.0.1"],
        }
    )
    yield made
    made.close()
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others, timeout=10)
    await asyncio.sleep(0)  # the loop closes a socket in its next turn


@pytest.mark.req("AIP-security-3")
async def test_a_permitted_host_is_reached_by_tunnel_and_by_request(yard: Yard) -> None:
    await yard.open("api.foo.com")
    heard = await yard.ask(b"CONNECT api.foo.com:443 HTTP/1.1\r\n\r\n", b"hello")
    assert heard == b"HTTP/1.1 200 Connection established\r\n\r\nHELLO"
    plain = await yard.ask(b"GET http://api.foo.com/x HTTP/1.1\r\nHost: api.foo.com\r\n\r\n")
    assert plain.endswith(b"ok")
    assert yard.heard[-1] == b"GET /x HTTP/1.1\r\nHost: api.foo.com\r\nConnection: close\r\n\r\n"
    assert yard.dialled == [PUBLIC, PUBLIC]
    assert yard.denied == []


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(
    ("entries", "host", "reached"),
    [
        (["*.foo.com"], "a.foo.com", True),
        (["*.foo.com"], "inner.foo.com", False),
        (["*.foo.com"], "mixed.foo.com", False),
        (["*.foo.com"], "mapped.foo.com", False),
        (["*"], "meta.foo.com", False),
        (["*"], "a.foo.com", True),
        (["named.internal"], "named.internal", True),
        (["turned.example"], "turned.example", False),  # to the letter, and it leads to this machine
        (["localhost"], "localhost", True),
        (["api.foo.com"], "a.foo.com", False),
        (["api.foo.com"], PUBLIC, False),
    ],
)
async def test_private_addresses_are_for_hosts_named_to_the_letter(
    yard: Yard, entries: list[str], host: str, reached: bool
) -> None:
    await yard.open(*entries)
    heard = await yard.ask(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
    assert heard.startswith(b"HTTP/1.1 200" if reached else b"HTTP/1.1 403")
    assert bool(yard.dialled) is reached
    assert [told[:2] for told in yard.denied] == ([] if reached else [(host, 443)])


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize(("port", "reached"), [(443, True), (22, False)])
async def test_an_entry_with_a_port_opens_that_port_alone(yard: Yard, port: int, reached: bool) -> None:
    await yard.open("api.foo.com:443")
    heard = await yard.ask(f"CONNECT api.foo.com:{port} HTTP/1.1\r\n\r\n".encode())
    assert heard.startswith(b"HTTP/1.1 200" if reached else b"HTTP/1.1 403")
    assert bool(yard.dialled) is reached


@pytest.mark.parametrize(
    "address", ["::127.0.0.1", "fec0::1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2606:2800::5efe:192.168.0.1"]
)
async def test_no_spelling_of_a_private_address_is_reached_by_a_wildcard(yard: Yard, address: str) -> None:
    async def leading(host: str, port: int) -> Sequence[str]:
        return [address]

    yard._resolve = leading  # type: ignore[method-assign]
    await yard.open("*")
    heard = await yard.ask(b"CONNECT api.foo.com:443 HTTP/1.1\r\n\r\n")
    assert (heard[:12], yard.dialled) == (b"HTTP/1.1 403", [])


async def test_the_address_that_was_judged_is_dialled(yard: Yard) -> None:
    """A name that changes its address between two questions is asked for once."""
    asked = []

    async def turning(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return [PUBLIC] if len(asked) == 1 else ["127.0.0.1"]

    yard._resolve = turning  # type: ignore[method-assign]
    await yard.open("*")
    await yard.ask(b"CONNECT turning.example:80 HTTP/1.1\r\n\r\n")
    assert (asked, yard.dialled) == (["turning.example"], [PUBLIC])


async def test_a_request_that_follows_on_the_connection_goes_to_the_same_host(yard: Yard) -> None:
    await yard.open("api.foo.com")
    two = b"POST http://api.foo.com/1 HTTP/1.1\r\n\r\n" + b"GET http://other.com/2 HTTP/1.1\r\n\r\n"
    await yard.ask(two)
    assert yard.dialled == [PUBLIC]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://api.foo.com/ HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"CONNECT unknown.foo.com:443 HTTP/1.1\r\n\r\n", b"502"),
    ],
)
async def test_requests_the_proxy_cannot_serve_are_answered(yard: Yard, data: bytes, status: bytes) -> None:
    await yard.open("api.foo.com", "unknown.foo.com")
    assert (await yard.ask(data)).startswith(b"HTTP/1.1 " + status)
    assert yard.dialled == []


async def test_a_client_that_says_nothing_is_let_go(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "HEAD_S", 0.05)
    await yard.open("api.foo.com")
    reader, writer = await asyncio.open_connection("127.0.0.1", yard.port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_half_a_head_and_a_hang_up_harm_nobody(yard: Yard) -> None:
    await yard.open("api.foo.com")
    _, writer = await asyncio.open_connection("127.0.0.1", yard.port)
    writer.write(b"CONNECT api.fo")
    writer.close()
    assert (await yard.ask(b"CONNECT api.foo.com:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_more_connections_than_allowed_are_hung_up(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "CONNECTIONS_MAX", 1)
    await yard.open("api.foo.com")
    reader, writer = await asyncio.open_connection("127.0.0.1", yard.port)
    writer.write(b"CONNECT api.foo.com:1 HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    other, second = await asyncio.open_connection("127.0.0.1", yard.port)
    with contextlib.suppress(ConnectionError):
        assert await other.read() == b""
    for each in (writer, second):
        each.close()


async def test_a_large_transfer_passes_whole_and_both_ways(yard: Yard) -> None:
    await yard.open("api.foo.com")
    reader, writer = await asyncio.open_connection("127.0.0.1", yard.port)
    writer.write(b"CONNECT api.foo.com:1 HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    sent = b"a" * (4 * 1024 * 1024)

    async def send() -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    _, heard = await asyncio.gather(send(), reader.read())
    assert heard == sent.upper()
    writer.close()


async def test_closing_ends_what_is_under_way(yard: Yard) -> None:
    await yard.open("api.foo.com")
    reader, writer = await asyncio.open_connection("127.0.0.1", yard.port)
    writer.write(b"CONNECT api.foo.com:1 HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    yard.close()
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


def name_query(host: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(each)]) + each.encode() for each in host.split("."))
    return struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)


async def looked_up(yard: Yard, host: str) -> str | None:
    """The address that the sandbox's name server gives; None: there is no such name."""
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendto(asking, name_query(host), yard.names_at)
        async with asyncio.timeout(5):
            answer = await loop.sock_recv(asking, 512)
    return socket.inet_ntoa(answer[-4:]) if struct.unpack_from(">H", answer, 6) == (1,) else None


@pytest.mark.req("AIP-security-3")
async def test_a_program_that_knows_no_proxy_reaches_a_permitted_host_by_its_name(yard: Yard) -> None:
    await yard.open("api.foo.com:DIRECT", "*.foo.com:DIRECT")
    first, second = await looked_up(yard, "api.foo.com"), await looked_up(yard, "A.foo.com")
    assert first != second
    assert await looked_up(yard, "api.foo.com") == first
    for address in (first, second):
        reader, writer = await asyncio.open_connection(address, yard.direct_port)
        writer.write(b"hello")
        async with asyncio.timeout(5):
            assert await reader.readexactly(5) == b"HELLO"
        writer.close()
    assert (yard.dialled, yard.denied) == ([PUBLIC, PUBLIC], [])


@pytest.mark.req("AIP-security-3")
async def test_a_name_that_is_not_permitted_does_not_exist_and_is_reported(yard: Yard) -> None:
    await yard.open("api.foo.com:DIRECT")
    assert await looked_up(yard, "api.bar.com") is None
    assert yard.denied == [("api.bar.com", 0, "not in egress")]


async def test_without_entries_no_name_exists(yard: Yard) -> None:
    await yard.open()
    assert await looked_up(yard, "api.foo.com") is None
    assert yard.denied == [("api.foo.com", 0, "this server has no network")]


@pytest.mark.req("AIP-security-3")
@pytest.mark.parametrize("host", ["inner.foo.com", "turned.foo.com"])
async def test_a_permitted_name_that_leads_inside_is_cut_off(yard: Yard, host: str) -> None:
    yard.addresses["turned.foo.com"] = ["127.0.0.1"]
    await yard.open("*.foo.com:DIRECT")
    reader, writer = await asyncio.open_connection(await looked_up(yard, host), yard.direct_port)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert (yard.dialled, yard.denied[0][:2]) == ([], (host, yard.direct_port))


@pytest.mark.req("AIP-security-3")
async def test_an_address_without_a_host_leads_nowhere(yard: Yard) -> None:
    await yard.open("*:DIRECT")
    for address in ("127.64.0.77", "127.0.0.1"):
        reader, writer = await asyncio.open_connection(address, yard.direct_port)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
    assert yard.dialled == []


async def test_names_beyond_all_measure_are_not_kept(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_proxy, "NAMES_MAX", 2)
    await yard.open("*:DIRECT")
    found = [await looked_up(yard, f"{number}.foo.com") for number in range(3)]
    assert [each is not None for each in found] == [True, True, False]
    assert await looked_up(yard, "0.foo.com") == found[0]
