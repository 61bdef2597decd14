"""The egress of one sandboxed server: a forward proxy that is the only way out of its network, and its name server.

Connections from inside come in two forms. A program that knows the proxy sends one CONNECT or one absolute-form http
request. A program that does not know it asks the name server for a host and connects to the address in the answer: an
address of the loopback network that means this host, so that the connection reaches the proxy all the same.

Out go bytes to and from hosts that the entries permit. Everything else is answered with 403, or cut off, and reported
to `denied`. Names are resolved here, once, and exactly the address that was judged is connected to. Private addresses
are only reached for hosts that an entry names to the letter. The name server answers "no such name" for everything
that may not be reached; no query leaves the machine.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec

from interlock.net.protocol.address_scope import Scope, scope_of
from interlock.net.protocol.dns import answer_query, read_query_untrusted
from interlock.net.protocol.egress import (
    HEAD_BYTES_MAX,
    Malformed,
    Permit,
    ProxyRequest,
    direct_ports,
    names_this_machine,
    permits,
    read_head_untrusted,
)

HEAD_S: Final = 30.0  # how long a client may take to say what it wants
DIAL_S: Final = 20.0
CONNECTIONS_MAX: Final = 256  # of one server at a time
CHUNK_BYTES: Final = 64 * 1024
NO_NETWORK: Final = "this server has no network"
NOT_LISTED: Final = "not in egress"
_OWN: Final = "127.0.0.1"  # of the sandbox

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Dial = Callable[[str, int], Awaitable[Streams]]
OnDenied = Callable[[str, int, str], None]  # the host, the port and the reason of a refusal


# Separate threads, because names that no server answers for must not take the threads that write to disk.
_LOOKUPS: Final = ThreadPoolExecutor(4, thread_name_prefix="egress")


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host."""
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    addresses = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look)
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


async def dial(address: str, port: int) -> Streams:
    """Open a TCP connection to an address."""
    return await asyncio.open_connection(address, port, limit=CHUNK_BYTES)


class _Refusal(msgspec.Struct, frozen=True):
    """An HTTP status and text, as the answer to a request that the proxy refuses."""

    status: str
    text: str


class Egress:
    """The forward proxy and the name server of one sandbox."""

    def __init__(
        self, entries: Sequence[str], denied: OnDenied, *, resolve: Resolve = resolve, dial: Dial = dial
    ) -> None:
        """Create a proxy that permits only the hosts in `entries`.

        `denied` is called with the host, the port and the reason of every refusal. Port 0 means that a name lookup was
        refused.
        """
        self._entries = tuple(entries)
        self._denied, self._resolve, self._dial = denied, resolve, dial
        self._servers: list[asyncio.Server] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._ports = direct_ports(self._entries)
        refusal = NOT_LISTED if self._entries else NO_NETWORK
        self._names = SandboxNames(self._may_reach, lambda host: denied(host, 0, refusal))

    async def start(self, names: socket.socket, proxy: socket.socket | None, direct: Sequence[socket.socket]) -> None:
        """Serve the sockets inside a sandbox through which its programs reach the network.

        Without `proxy` they reach none. The name server still runs and records which hosts they wanted to reach.
        """
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self._names, sock=names)
        if proxy is not None:
            await self._listen(proxy, self._serve)
        for each in direct:
            await self._listen(each, self._serve_direct)

    def close(self) -> None:
        self._names.close()
        for server in self._servers:
            server.close()
        for task in self._under_way:
            task.cancel()

    async def _listen(self, listener: socket.socket, serve: Callable[..., Awaitable[None]]) -> None:
        on_accepted = partial(self._on_accepted, serve)
        self._servers.append(await asyncio.start_server(on_accepted, sock=listener, limit=HEAD_BYTES_MAX))

    def _may_reach(self, host: str) -> bool:
        return any(permits(host, port, self._entries) for port in self._ports)

    async def _on_accepted(
        self, serve: Callable[..., Awaitable[None]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (the loop made one for us)
        if len(self._under_way) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._under_way.add(task)
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # one of the two ends went away
        finally:
            self._under_way.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _answer(writer, _Refusal("431 Request Header Fields Too Large", "the request's head is too long"))
            return
        request = read_head_untrusted(head)
        if isinstance(request, Malformed):
            await _answer(writer, _Refusal("400 Bad Request", request.why))
            return
        there = await self._connect(request)
        if isinstance(there, _Refusal):
            await _answer(writer, there)
        else:
            await _join((reader, writer), there, request)

    async def _serve_direct(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection of a program in the sandbox that does not use the proxy. The program connects to the
        address that the sandbox's name server gave for the host.

        The address to which it connected identifies the host it wants.
        """
        address, port = writer.get_extra_info("sockname")[:2]
        host = self._names.hosts.get(address)
        if host is None and address == _OWN:
            host = "localhost"
        there = await self._connect(ProxyRequest(host=host, port=port, head=b"")) if host is not None else None
        if there is None or isinstance(there, _Refusal):
            writer.transport.abort()
        else:
            await _join((reader, writer), there, ProxyRequest(host=host or "", port=port, head=b""))

    async def _connect(self, request: ProxyRequest) -> Streams | _Refusal:
        """Connect to the host of a request, or return the refusal. Report a host that is not permitted.

        The name is resolved once, and the connection goes to exactly the address that was checked. Otherwise, the owner
        of a public name could point it at a private network after the check.
        """
        permit = permits(request.host, request.port, self._entries)
        if permit is None:
            return self._refuse(request, NOT_LISTED)
        try:
            addresses = await self._resolve(request.host, request.port)
        except (OSError, UnicodeError):
            return _Refusal("502 Bad Gateway", f"{request.host} cannot be resolved")
        if permit is not Permit.NAMED and not all(scope_of(each) is Scope.PUBLIC for each in addresses):
            return self._refuse(request, "it leads to a private address, and egress does not name it to the letter")
        if not names_this_machine(request.host) and any(scope_of(each) is Scope.MACHINE for each in addresses):
            # The owner of the name could otherwise reach every endpoint of this machine, the node's own included.
            return self._refuse(request, "it leads to this machine, which egress names as localhost or by address")
        for address in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(DIAL_S):
                    return await self._dial(address, request.port)
        return _Refusal("502 Bad Gateway", f"{request.host} does not answer")

    def _refuse(self, request: ProxyRequest, why: str) -> _Refusal:
        self._denied(request.host, request.port, why)
        return _Refusal("403 Forbidden", f"egress_denied: {request.host}: {why}")


async def _answer(writer: asyncio.StreamWriter, refusal: _Refusal) -> None:
    body = f"{refusal.text}\n".encode()
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(f"HTTP/1.1 {refusal.status}\r\n{fields}".encode() + body)
    await writer.drain()


async def _join(here: Streams, there: Streams, request: ProxyRequest) -> None:
    """Confirm a tunnel to the client, or forward the head of its request to the host. Then copy bytes in both
    directions until both have ended.
    """
    try:
        if request.head is None:
            here[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there[1].write(request.head)
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(here[0], there[1]))
            both.create_task(_pump(there[0], here[1]))
    except ExceptionGroup as failed:
        if failed.split(OSError)[1] is not None:
            raise
    finally:
        there[1].close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy bytes from `source` to `sink` until the source ends. Then close only the writing direction of the sink."""
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


FIRST_ADDRESS: Final = ipaddress.IPv4Address("127.64.0.1")  # every address of 127.0.0.0/8 leads back to its sandbox
NAMES_MAX: Final = 16_384  # of one start; a server that may reach any host may think up any number


class SandboxNames(asyncio.DatagramProtocol):
    """The DNS server of one sandbox. It gives addresses only for hosts that the sandbox may reach.

    Each permitted host gets a separate loopback address when it is first looked up. A program connects to that address,
    and the proxy recognises the host by it.
    """

    def __init__(self, may_reach: Callable[[str], bool], denied: Callable[[str], None]) -> None:
        self._may_reach, self._denied = may_reach, denied
        self._addresses: dict[str, str] = {}
        self.hosts: dict[str, str] = {}  # by the address that is assigned to each
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = read_query_untrusted(data)
        if query is None or self._transport is None:
            return
        address = self._addresses.get(query.name)
        if address is None and len(self._addresses) < NAMES_MAX and self._may_reach(query.name):
            address = str(FIRST_ADDRESS + len(self._addresses))
            self._addresses[query.name], self.hosts[address] = address, query.name
        if address is None and query.wants_address:
            self._denied(query.name)
        self._transport.sendto(answer_query(query, address), addr)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
