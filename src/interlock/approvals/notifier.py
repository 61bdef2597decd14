"""The notifier, which informs operators about waiting approvals, and the channels that deliver its notices.

Theory of operation. One task listens to the inbox and makes a notice of every approval that is raised. The notice goes
into a bounded queue for each channel, from which the task of that channel sends it. A slow channel therefore delays
neither other channels nor calls; when its queue is full, the oldest notice is dropped and counted. A notice that cannot
be sent is tried again, and the status shows the problem. Nothing depends on notices, because the inbox itself is
authoritative.

A channel is a notification on the desktop, a command, a webhook or mail. A notice says that something waits and where
to look. It holds no argument and no text of the caller, and no secret except the verification code of an agent. That
code is for operators alone: it goes by stdin or over TLS, never as an argument of a program. A channel raises
ChannelFailed, and takes a bounded time.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import shutil
import ssl
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from interlock.approvals.audit import subject_name
from interlock.approvals.inbox import ApprovalListener, Inbox
from interlock.approvals.protocol.approval import Kind, Status
from interlock.config.plan import ApprovalsPlan
from interlock.core.clock import Clock, rfc3339
from interlock.net.fetch import Fetcher, FetchFailed
from interlock.process.child import ChildStartFailed, child_environment, program
from interlock.wire.jsontext.display import plain

COMMAND_S: Final = 10.0  # how long a command may take
DIALOG_S: Final = 120  # how long a code stays on the desktop
SIGNATURE: Final = "x-interlock-signature"
MAIL_STEP_S: Final = 10.0  # for each step of the exchange with a mail server
MAIL_PORTS: Final = {"smtp": 587, "smtps": 465}
_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))

_DESKTOP: Final = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
_TITLE: Final = "Interlock: a decision waits"
_APPLE_SCRIPT: Final = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")

# Where a program is looked up that may be given a code, and the users who may own it. Windows has no such owners.
PROGRAM_FOLDERS: Final = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin")
SYSTEM_OWNERS: Final = (0,)
_NOT_OF_SYSTEM: Final = (
    "the program must be given by its path or be in a folder of the system, and it, the files in its arguments and all "
    "folders above them must belong to root and be writable by no one else"
)

log = logging.getLogger("interlock.approvals")
_encode = msgspec.json.Encoder().encode


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    event: str
    id: str
    kind: str
    tool: str  # the subject that is signed
    name: str  # what people call it
    requested_by: str
    created_at: str
    expires_at: str | None
    url: str
    node: str
    code: str | None = None  # with which a person verifies an agent, or the token that confirms its step


class ChannelFailed(Exception):
    """Raised if a notice could not be delivered. The message is for the log, and contains neither a secret nor the path
    of a URL.
    """


class Channel(ABC):
    """Base class of the channels that deliver notices."""

    @abstractmethod
    async def send(self, notice: Notice) -> None:
        """Send a notice. Raise ChannelFailed if it cannot be delivered."""

    async def close(self) -> None:  # noqa: B027
        """Release what the channel holds. By default a channel holds nothing."""


@dataclass(eq=False)
class CommandChannel(Channel):
    """A channel that runs a program, which reads the notice as one line of JSON from stdin."""

    command: Sequence[str]

    async def send(self, notice: Notice) -> None:
        # AX-11.N-4: the code goes only to a program that the user of the node cannot replace
        path = find_code_program(self.command) if notice.code is not None else None
        if notice.code is not None and path is None:
            log.warning("no code is sent to %s: %s", self.command[0], _NOT_OF_SYSTEM)
            notice = msgspec.structs.replace(notice, code=None)
        await _run(self.command, _encode(notice) + b"\n", COMMAND_S, path)


@dataclass(eq=False)
class DesktopChannel(Channel):
    """A channel that shows notifications on the local desktop. `platform` is the value of `sys.platform`."""

    platform: str = sys.platform

    async def send(self, notice: Notice) -> None:
        if notice.code is None:
            text = plain(f"{notice.name}, asked by {notice.requested_by}: interlock approvals show {notice.id[:8]}")
            argv = ["notify-send", "--app-name=Interlock", "--", _TITLE, escape(text, quote=False)]
            if self.platform == "darwin":
                argv = ["osascript", *(word for line in _APPLE_SCRIPT for word in ("-e", line)), _TITLE, text]
            await _run(argv, b"", COMMAND_S)
            return
        # A code goes by stdin: every user who may list processes reads their arguments.
        text = plain(f"{notice.name}, of {notice.requested_by}, waits for you. Code: {notice.code}")
        argv = ["zenity", "--text-info", f"--title={_TITLE}", f"--timeout={DIALOG_S}", "--width=480"]
        if self.platform == "darwin":
            quoted = text.replace("\\", "").replace('"', "")
            argv = ["osascript", "-"]
            text = f'display dialog "{quoted}" buttons {{"OK"}} giving up after {DIALOG_S}\n'
        # AX-11.N-4: likewise
        path = find_code_program(argv)
        if path is None:
            raise ChannelFailed(f"no code is shown with {argv[0]}: {_NOT_OF_SYSTEM}")
        await _run(argv, text.encode(), DIALOG_S + COMMAND_S, path)


class DesktopBell(DesktopChannel):
    """The channel that is used on a machine with a desktop if no channel is configured. It shows no codes, because no
    approver has signed this channel.
    """

    async def send(self, notice: Notice) -> None:
        # No one asked for it, so that it is no trouble if the desktop does not take it.
        with contextlib.suppress(ChannelFailed):
            await super().send(msgspec.structs.replace(notice, code=None))


def has_desktop(env: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether this machine has a desktop that shows notifications."""
    if platform == "darwin":
        return True
    has_screen = bool(env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))
    return has_screen and shutil.which("notify-send", path=env.get("PATH")) is not None


class WebhookChannel(Channel):
    """A channel that sends notices as JSON in POST requests. The signature is `t=UNIX_TIME,v1=HEX`, HMAC-SHA256 over
    `UNIX_TIME.BODY`.

    A receiver should compare the signature in constant time, refuse old times, and use the id to recognise a repeated
    notice.
    """

    def __init__(self, url: str, secret: str, clock: Clock) -> None:
        self._url = url
        self._secret = secret.encode()
        self._clock = clock
        self._fetcher = Fetcher()

    async def send(self, notice: Notice) -> None:
        body = _encode(notice)
        headers = f"content-type: application/json\r\n{SIGNATURE}: {self.signature(body)}\r\n"
        try:
            answer = await self._fetcher.exchange(self._url, headers.encode("ascii"), body)
        except FetchFailed as failed:
            raise ChannelFailed(f"the webhook does not answer: {failed}") from None
        if not 200 <= answer.status < 300:
            raise ChannelFailed(f"the webhook answers {answer.status}")

    def signature(self, body: bytes) -> str:
        at = int(self._clock.wall())
        return f"t={at},v1={hmac.new(self._secret, b'%d.%b' % (at, body), hashlib.sha256).hexdigest()}"

    async def close(self) -> None:
        await self._fetcher.close()


class MailChannel(Channel):
    """A channel that sends mail over SMTP. A mail may contain a verification code, so mail to other
    machines requires TLS.
    """

    def __init__(self, url: str, sender: str, receivers: Sequence[str]) -> None:
        """Read the address of the mail server from the URL. The scheme smtp:// means STARTTLS and smtps:// means TLS;
        USER:PASSWORD@ is needed if the server demands a login.
        """
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "smtps"
        self._host = parts.hostname or ""
        self._port = parts.port or MAIL_PORTS[parts.scheme]
        self._login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        self._sender = sender
        self._receivers = tuple(receivers)

    async def send(self, notice: Notice) -> None:
        await asyncio.to_thread(self._deliver, notice)

    def _deliver(self, notice: Notice) -> None:
        """Send a notice. This blocks, and runs in a thread."""
        import smtplib  # here, because most nodes send no mail
        from email.message import EmailMessage
        from email.utils import formatdate, make_msgid

        mail = EmailMessage()
        mail["Subject"] = _TITLE
        mail["From"], mail["To"] = self._sender, ", ".join(self._receivers)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain="interlock.invalid")
        lines = [f"{notice.name}, asked by {notice.requested_by}, waits for a decision.", notice.url]
        lines += [f"Until {notice.expires_at}."] if notice.expires_at is not None else []
        lines += [f"Code: {notice.code}"] if notice.code is not None else []
        mail.set_content("\n".join(plain(line) for line in lines) + "\n")
        try:
            context = ssl.create_default_context()
            if self._is_tls:
                server: smtplib.SMTP = smtplib.SMTP_SSL(self._host, self._port, timeout=MAIL_STEP_S, context=context)
            else:
                server = smtplib.SMTP(self._host, self._port, timeout=MAIL_STEP_S)
            with server:
                if not self._is_tls and self._host not in _LOOPBACK:
                    server.starttls(context=context)
                if self._login is not None:
                    server.login(*self._login)
                server.send_message(mail)
        except (OSError, smtplib.SMTPException) as failed:
            # The log must not repeat what the server quotes of the mail: only a code or the name of the failure.
            why = type(failed).__name__.removeprefix("SMTP")
            if isinstance(failed, smtplib.SMTPResponseException):
                why = f"it answers {failed.smtp_code}"
            elif failed.strerror:
                why = failed.strerror
            raise ChannelFailed(f"the mail server {self._host} does not take it: {why}") from None


def find_code_program(command: Sequence[str]) -> str | None:
    """Return the path of a command's program if it may be given a verification code, or None.

    The program, and every file that its arguments name, must belong to root, and so must all folders above them. An
    agent with a shell could replace any other program and read its own code. A name without a folder is looked up in
    the system's folders alone, because PATH may begin with a folder of the user.
    """
    name = command[0]
    folders = ("",) if Path(name).is_absolute() else PROGRAM_FOLDERS if os.sep not in name else ()
    paths = (str(Path(folder, name)) for folder in folders)
    files = [each for each in command[1:] if Path(each).is_absolute() and Path(each).exists()]
    for path in paths:
        if os.access(path, os.X_OK) and all(map(_is_of_system, (path, *files))):
            return path
    return None


def _is_of_system(path: str) -> bool:
    """Return whether only root can replace a file: it and all folders above it belong to root, links included."""
    for each in {Path(path), Path(path).resolve()}:
        for place in (each, *each.parents):
            status = place.lstat()
            is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(status.st_mode)
            # In a folder with the sticky bit, as of temporary files, no other user can replace a file of root.
            if status.st_uid not in SYSTEM_OWNERS or (is_shared and not status.st_mode & stat.S_ISVTX):
                return False
    return True


async def _run(command: Sequence[str], stdin: bytes, limit_s: float, path: str | None = None) -> None:
    """Run a command without a shell and with a minimal environment, and write `stdin` to it. `path` is the path of its
    program, if already known.
    """
    declared = {name: os.environ[name] for name in _DESKTOP if name in os.environ}
    try:
        env = child_environment(declared, os.environ)
        path = path or program(command, env, None)
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            path, *command[1:], env=env, stdin=pipe, stdout=null, stderr=null, start_new_session=True
        )
    except (ChildStartFailed, OSError) as error:
        raise ChannelFailed(f"{command[0]} cannot be started: {getattr(error, 'strerror', None) or error}") from None
    try:
        async with asyncio.timeout(limit_s):
            await process.communicate(stdin)
    except TimeoutError:
        raise ChannelFailed(f"{command[0]} did not end within {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise ChannelFailed(f"{command[0]} ended with exit code {process.returncode}")


WAITING_MAX: Final = 100  # notices per channel; the oldest is dropped for a newer one
TRIES: Final = 3
PAUSE_S: Final = 2.0  # before the second try; the third waits longer
WAITS: Final = "approval_waiting"
NOT_IN_THE_INBOX: Final = frozenset((Kind.ACK,))


@dataclass(eq=False)
class Notifier:
    """The service that sends notices of waiting approvals through the configured channels."""

    inbox: Inbox
    channels: Mapping[str, Channel]
    _: KW_ONLY
    url: Callable[[], str]
    node: str
    code: Callable[[str], str | None] = lambda _: None  # to include in the notice of an approval, by its id
    trouble: dict[str, str] = field(default_factory=dict, init=False)  # of a channel, until something arrives again
    dropped: int = field(default=0, init=False)
    _queues: dict[str, asyncio.Queue[Notice]] = field(default_factory=dict, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    async def open(self) -> None:
        if not self.channels:
            return
        loop = asyncio.get_running_loop()
        self._queues = {name: asyncio.Queue(WAITING_MAX) for name in self.channels}
        self._tasks = [loop.create_task(self._queue_notices(self.inbox.listen(only_own=True)), name="notices")]
        self._tasks += [loop.create_task(self._send_notices(name), name=f"notices {name}") for name in self.channels]

    async def replan(self, channels: Mapping[str, Channel]) -> None:
        await self.close()
        self.channels = dict(channels)
        self.trouble.clear()
        await self.open()

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self.channels.values():
            await channel.close()

    async def _queue_notices(self, listener: ApprovalListener) -> None:
        try:
            async for approval in listener:
                if approval.status is not Status.PENDING or approval.kind in NOT_IN_THE_INBOX:
                    continue
                notice = Notice(
                    event=WAITS,
                    id=approval.id,
                    kind=approval.kind.value,
                    tool=approval.tool,
                    name=subject_name(approval),
                    requested_by=approval.requested_by,
                    created_at=rfc3339(approval.created_at),
                    expires_at=None if approval.expires_at is None else rfc3339(approval.expires_at),
                    url=f"{self.url()}/approvals/{approval.id}",
                    node=self.node,
                    code=self.code(approval.id),
                )
                for queue in self._queues.values():
                    if queue.full():
                        queue.get_nowait()
                        self.dropped += 1
                    queue.put_nowait(notice)
        finally:
            listener.close()

    async def _send_notices(self, name: str) -> None:
        while True:
            notice = await self._queues[name].get()
            try:
                await self._send(name, notice)
            except Exception:
                log.exception("the channel %s failed in a way it should not", name)

    async def _send(self, name: str, notice: Notice) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                await self.channels[name].send(notice)
            except ChannelFailed as failed:
                if name not in self.trouble:
                    log.warning("operators are not told by the channel %s: %s", name, failed)
                self.trouble[name] = str(failed)  # AQL-8.8.2-3
            else:
                self.trouble.pop(name, None)
                return
            if attempt < TRIES:
                await asyncio.sleep(PAUSE_S * attempt)


def make_channels(plan: ApprovalsPlan, clock: Clock) -> dict[str, Channel]:
    """Create the configured channels, keyed by name. The console and the command line need no channel, because they
    query the node.
    """
    channels: dict[str, Channel] = {}
    if "os_dialog" in plan.channels:
        channels["os_dialog"] = DesktopChannel()
    elif plan.channels == ApprovalsPlan().channels and has_desktop(os.environ):
        channels["desktop"] = DesktopBell()
    if "command" in plan.channels and plan.command:
        channels["command"] = CommandChannel(plan.command)
    if "webhook" in plan.channels and plan.webhook_url is not None and plan.webhook_secret is not None:
        channels["webhook"] = WebhookChannel(plan.webhook_url, plan.webhook_secret, clock)
    if "smtp" in plan.channels and plan.smtp_url is not None and plan.smtp_from is not None:
        channels["smtp"] = MailChannel(plan.smtp_url, plan.smtp_from, plan.smtp_to)
    return channels
