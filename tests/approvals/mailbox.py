"""A mail server on this machine that keeps what it is sent."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from typing import cast


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.receivers: list[str] = []
        self.refuses = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """RFC 5321, as far as one client goes."""
        writer.write(b"220 mailbox\r\n")
        while line := await reader.readline():
            verb = line.strip().upper()
            if verb == b"DATA":
                writer.write(b"354 go on\r\n")
                text = (await reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n")
                self.mails.append(cast(EmailMessage, email.message_from_bytes(text, policy=email.policy.default)))
                writer.write(b"250 kept\r\n")
            elif verb == b"QUIT":
                writer.write(b"221 bye\r\n")
                break
            elif verb.startswith(b"RCPT TO:"):
                self.receivers.append(line.decode().strip()[8:])
                writer.write(b"550 no such box\r\n" if self.refuses else b"250 ok\r\n")
            else:
                writer.write(b"250 ok\r\n")
            await writer.drain()
        writer.close()


@asynccontextmanager
async def mailbox() -> AsyncIterator[tuple[Mailbox, str]]:
    box = Mailbox()
    server = await asyncio.start_server(box.serve, "127.0.0.1", 0)
    async with server:
        yield box, f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
