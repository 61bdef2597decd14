"""Newline-delimited messages on stdin and stdout."""

import asyncio
import sys
from collections.abc import Sequence

from .server import Message, Refusal, Server, Session, error_message

LINE_MAX = 64 * 1024 * 1024


class Stdout:
    """The one channel of a stdio server; every request answers on it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, message: bytes) -> None:
        await self.write(message + b"\n")

    async def finish(self, messages: Sequence[bytes], status: int) -> None:
        for message in messages:
            await self.send(message)


async def serve(server: Server) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    out = Stdout(asyncio.StreamWriter(transport, protocol, None, loop))
    session = server.sessions["stdio"] = Session("stdio")
    running = {loop.create_task(_pump(session, out))}
    for fault in server.faults:
        running.add(loop.create_task(fault.started(out.write)))
    while line := await reader.readline():
        if not line.strip():
            continue
        try:
            message = Message.parse(line)
        except Refusal as refusal:
            await out.send(error_message(None, refusal))
            continue
        server.record(message)
        if message.method is not None and message.id is not None:
            task = loop.create_task(server.request(message, session, out))
            running.add(task)
            task.add_done_callback(running.discard)
        else:
            await asyncio.sleep(0)  # a request of the same read begins before what cancels it is heard
            await server.notice(message, session)


async def _pump(session: Session, out: Stdout) -> None:
    while True:
        await out.send(await session.outbox.get())
