"""The channel that notifies operators by mail, over SMTP.

To another machine only over TLS (`smtps://`, or `smtp://` with STARTTLS), because a mail may hold a verification code.
"""

import asyncio
import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Final
from urllib.parse import unquote, urlsplit

from interlock.approvals.notifier import ChannelFailed, Notice
from interlock.wire.jsontext.display import plain

SECONDS: Final = 10.0  # for each step of the exchange
PORTS: Final = {"smtp": 587, "smtps": 465}
_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))


class MailChannel:
    def __init__(self, url: str, sender: str, receivers: Sequence[str]) -> None:
        """Create a mail channel. `url` is smtp://HOST[:PORT] or smtps://, with USER:PASSWORD@ if the server needs
        them.
        """
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "smtps"
        self._host = parts.hostname or ""
        self._port = parts.port or PORTS[parts.scheme]
        self._login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        self._sender = sender
        self._receivers = tuple(receivers)

    async def send(self, notice: Notice) -> None:
        try:
            await asyncio.to_thread(self._deliver, self._message(notice))
        except (OSError, smtplib.SMTPException) as failed:
            raise ChannelFailed(f"the mail server {self._host} does not take it: {_said(failed)}") from None

    def _message(self, notice: Notice) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = "Interlock: a decision waits"
        mail["From"], mail["To"] = self._sender, ", ".join(self._receivers)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain="interlock.invalid")
        lines = [f"{notice.name}, asked by {notice.requested_by}, waits for a decision.", notice.url]
        lines += [f"Until {notice.expires_at}."] if notice.expires_at is not None else []
        lines += [f"Code: {notice.code}"] if notice.code is not None else []
        mail.set_content("\n".join(plain(line) for line in lines) + "\n")
        return mail

    def _deliver(self, mail: EmailMessage) -> None:
        """Send a mail. This blocks, and runs in a thread."""
        context = ssl.create_default_context()
        if self._is_tls:
            server: smtplib.SMTP = smtplib.SMTP_SSL(self._host, self._port, timeout=SECONDS, context=context)
        else:
            server = smtplib.SMTP(self._host, self._port, timeout=SECONDS)
        with server:
            if not self._is_tls and self._host not in _LOOPBACK:
                server.starttls(context=context)
            if self._login is not None:
                server.login(*self._login)
            server.send_message(mail)

    async def close(self) -> None:
        pass


def _said(failed: Exception) -> str:
    """Describe a failure without what the server repeats of the mail."""
    if isinstance(failed, smtplib.SMTPResponseException):
        return f"it answers {failed.smtp_code}"
    if isinstance(failed, OSError) and failed.strerror:
        return failed.strerror
    return type(failed).__name__.removeprefix("SMTP")
