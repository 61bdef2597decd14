"""A forward proxy for one sandboxed server: the only way out of a network namespace without a route.

In: connections from inside, each with one CONNECT or one absolute-form http request. Out: bytes to and from a host the
entries permit; everything else is answered 403 and told to `denied`. Names are resolved here, once, and exactly the
address that was judged is dialled. Private addresses are for hosts that are named to the letter.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from interlock.protocol.net.address_scope import Scope, scope_of
from interlock.protocol.net.egress import (
    HEAD_BYTES_MAX,
    Malformed,
    Permit,
    ProxyRequest,
    names_this_machine,
    permits,
    read_head_untrusted,
)

HEAD_S: Final = 30.0  # how long a client may take to say what it wants
DIAL_S: Final = 20.0
CONNECTIONS_MAX: Final = 256  # of one server at a time
CHUNK_BYTES: Final = 64 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Dial = Callable[[str, int], Awaitable[Streams]]


# Of their own: names that no server answers for must not take the threads that write to disk.
_LOOKUPS: Final = ThreadPoolExecutor(4, thread_name_prefix="egress")


async def resolve(host: str, port: int) -> Sequence[str]:
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def dial(address: str, port: int) -> Streams:
    return await asyncio.open_connection(address, port, limit=CHUNK_BYTES)


class Egress:
    def __init__(
        self,
        entries: Sequence[str],
        denied: Callable[[str, int, str], None],
        *,
        resolve: Resolve = resolve,
        dial: Dial = dial,
    ) -> None:
        """`denied` hears the host, the port and why, of every refusal."""
        self._entries = tuple(entries)
        self._denied = denied
        self._resolve = resolve
        self._dial = dial
        self._server: asyncio.Server | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._on_accepted, sock=listener, limit=HEAD_BYTES_MAX)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._under_way:
            task.cancel()

    async def _on_accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (the loop made one for us)
        if len(self._under_way) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._under_way.add(task)
        try:
            await self._serve(reader, writer)
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
            await _answer(writer, "431 Request Header Fields Too Large", "the request's head is too long")
            return
        asked = read_head_untrusted(head)
        if isinstance(asked, Malformed):
            await _answer(writer, "400 Bad Request", asked.why)
            return
        addresses = await self._permitted_addresses(asked, writer)
        if not addresses:
            return
        there = await self._reach(addresses, asked.port)
        if there is None:
            await _answer(writer, "502 Bad Gateway", f"{asked.host} does not answer")
            return
        await _join((reader, writer), there, asked)

    async def _permitted_addresses(self, asked: ProxyRequest, writer: asyncio.StreamWriter) -> Sequence[str]:
        """The addresses to try; none when it was answered already."""
        permit = permits(asked.host, asked.port, self._entries)
        if permit is None:
            await self._refuse(writer, asked, "not in egress")
            return ()
        try:
            addresses = await self._resolve(asked.host, asked.port)
        except (OSError, UnicodeError):
            await _answer(writer, "502 Bad Gateway", f"{asked.host} cannot be resolved")
            return ()
        if permit is not Permit.NAMED and not all(scope_of(each) is Scope.PUBLIC for each in addresses):
            await self._refuse(
                writer, asked, "it leads to a private address, and egress does not name it to the letter"
            )
            return ()
        if not names_this_machine(asked.host) and any(scope_of(each) is Scope.MACHINE for each in addresses):
            # The owner of the name could otherwise reach every endpoint of this machine, the node's own included.
            await self._refuse(writer, asked, "it leads to this machine, which egress names as localhost or by address")
            return ()
        return addresses

    async def _refuse(self, writer: asyncio.StreamWriter, asked: ProxyRequest, why: str) -> None:
        self._denied(asked.host, asked.port, why)
        await _answer(writer, "403 Forbidden", f"egress_denied: {asked.host}: {why}")

    async def _reach(self, addresses: Sequence[str], port: int) -> Streams | None:
        for address in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(DIAL_S):
                    return await self._dial(address, port)
        return None


async def _answer(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _join(here: Streams, there: Streams, asked: ProxyRequest) -> None:
    try:
        if asked.head is None:
            here[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            there[1].write(asked.head)
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(here[0], there[1]))
            both.create_task(_pump(there[0], here[1]))
    except ExceptionGroup as failed:
        if failed.split(OSError)[1] is not None:
            raise
    finally:
        there[1].close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK_BYTES):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
