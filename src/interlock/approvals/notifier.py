"""The notifier tells operators that something waits; a notice that cannot be sent is counted and logged.

One task per channel takes notices from a bounded line, so that a slow channel holds up no other, and no call ever. The
inbox is the truth; a notice is only the wish that somebody looks.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Protocol

import msgspec

from interlock.approvals.audit import subject_name
from interlock.approvals.inbox import Inbox, Listener
from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.config.plan import ApprovalsPlan
from interlock.core.clock import Clock, rfc3339
from interlock.net.fetch import Fetcher, FetchFailed
from interlock.process.child import ChildStartFailed, child_environment, program
from interlock.wire.jsontext.display import plain

# The channels that notify operators: a notification on the desktop, a command, a webhook.
#
# In: a `Notice`, which says that something waits and where to look, and holds no argument and no text of the caller;
# and
# no secret but the verification code of an agent, which is for operators and goes by stdin or over TLS, never as an
# argument of a program. Out: nothing, or ChannelFailed with what is wrong. Each takes a bounded time.

COMMAND_S: Final = 10.0  # how long a command may take
DIALOG_S: Final = 120  # how long a code stays on the desktop
SIGNATURE: Final = "x-interlock-signature"

_DESKTOP: Final = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
_TITLE: Final = "Interlock: a decision waits"
_APPLE_SCRIPT: Final = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)

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
    """The notice did not arrive; the message is for the log, and names neither a secret nor the path of a URL."""


class Channel(Protocol):
    async def send(self, notice: Notice) -> None:
        """Send a notice. Raise ChannelFailed."""

    async def close(self) -> None: ...


class CommandChannel:
    """A program that reads one line of JSON from its stdin."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    async def send(self, notice: Notice) -> None:
        await _run(self._command, _encode(notice) + b"\n")

    async def close(self) -> None:
        pass


@dataclass(eq=False)
class DesktopChannel:
    """The program that shows notifications on this desktop. `platform` as `sys.platform` says it."""

    platform: str = sys.platform

    async def send(self, notice: Notice) -> None:
        if notice.code is None:
            await _run(self._argv(notice), b"")
        else:  # arguments are read by all who may list processes
            await _run(self._dialog_argv(), self._dialog(notice, notice.code), DIALOG_S + COMMAND_S)

    def _dialog_argv(self) -> list[str]:
        if self.platform == "darwin":
            return ["osascript", "-"]
        return ["zenity", "--text-info", f"--title={_TITLE}", f"--timeout={DIALOG_S}", "--width=480"]

    def _dialog(self, notice: Notice, code: str) -> bytes:
        text = plain(f"{notice.name}, of {notice.requested_by}, waits for you. Code: {code}")
        if self.platform != "darwin":
            return text.encode()
        quoted = text.replace("\\", "").replace('"', "")
        return f'display dialog "{quoted}" buttons {{"OK"}} giving up after {DIALOG_S}\n'.encode()

    def _argv(self, notice: Notice) -> list[str]:
        text = plain(f"{notice.name}, asked by {notice.requested_by}: interlock approvals show {notice.id[:8]}")
        if self.platform == "darwin":
            return ["osascript", *(word for line in _APPLE_SCRIPT for word in ("-e", line)), _TITLE, text]
        return ["notify-send", "--app-name=Interlock", "--", _TITLE, escape(text, quote=False)]

    async def close(self) -> None:
        pass


class WebhookChannel:
    """POST of the notice as JSON. The signature is `t=UNIX_TIME,v1=HEX`, HMAC-SHA256 over `UNIX_TIME.BODY`.

    A receiver compares in constant time and refuses old times; the id tells a notice that came twice.
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


async def _run(command: Sequence[str], stdin: bytes, limit_s: float = COMMAND_S) -> None:
    """Run a command without a shell and with a minimal environment."""
    declared = {name: os.environ[name] for name in _DESKTOP if name in os.environ}
    try:
        env = child_environment(declared, os.environ)
        path = program(command, env, None)
        process = await asyncio.create_subprocess_exec(
            path,
            *command[1:],
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
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


log = logging.getLogger("interlock.approvals")

WAITING_MAX: Final = 100  # notices per channel; the oldest is dropped for a newer one
TRIES: Final = 3
PAUSE_S: Final = 2.0  # before the second try; the third waits longer
WAITS: Final = "approval_waiting"
NOT_IN_THE_INBOX: Final = frozenset((Kind.ACK,))


class Notifier:
    def __init__(
        self,
        inbox: Inbox,
        channels: Mapping[str, Channel],
        *,
        url: Callable[[], str],
        node: str,
        code: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """Create the notifier. `code` returns what operators are told beside an approval, by its id."""
        self.trouble: dict[str, str] = {}  # what is wrong with a channel, until something arrives again
        self.dropped = 0
        self._inbox = inbox
        self._channels = dict(channels)
        self._url = url
        self._node = node
        self._code = code
        self._lines: dict[str, asyncio.Queue[Notice]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def shows_codes(self) -> bool:
        """Return whether a channel delivers codes to operators without their asking."""
        return bool(self._channels)

    async def open(self) -> None:
        if not self._channels:
            return
        loop = asyncio.get_running_loop()
        self._lines = {name: asyncio.Queue(WAITING_MAX) for name in self._channels}
        self._tasks = [loop.create_task(self._hear(self._inbox.listen(only_own=True)), name="notices")]
        self._tasks += [loop.create_task(self._tell(name), name=f"notices {name}") for name in self._channels]

    async def replan(self, channels: Mapping[str, Channel]) -> None:
        await self.close()
        self._channels = dict(channels)
        self.trouble.clear()
        await self.open()

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    async def _hear(self, listener: Listener) -> None:
        try:
            async for approval in listener:
                if approval.status is Status.PENDING and approval.kind not in NOT_IN_THE_INBOX:
                    self._line_up(self._notice(approval))
        finally:
            listener.close()

    def _line_up(self, notice: Notice) -> None:
        for line in self._lines.values():
            if line.full():
                line.get_nowait()
                self.dropped += 1
            line.put_nowait(notice)

    async def _tell(self, name: str) -> None:
        while True:
            notice = await self._lines[name].get()
            try:
                await self._send(name, notice)
            except Exception:
                log.exception("the channel %s failed in a way it should not", name)

    async def _send(self, name: str, notice: Notice) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                await self._channels[name].send(notice)
            except ChannelFailed as failed:
                if name not in self.trouble:
                    log.warning("operators are not told by the channel %s: %s", name, failed)
                self.trouble[name] = str(failed)  # AQL-8.8.2-3
            else:
                self.trouble.pop(name, None)
                return
            if attempt < TRIES:
                await asyncio.sleep(PAUSE_S * attempt)

    def _notice(self, approval: Approval) -> Notice:
        return Notice(
            event=WAITS,
            id=approval.id,
            kind=approval.kind.value,
            tool=approval.tool,
            name=subject_name(approval),
            requested_by=approval.requested_by,
            created_at=rfc3339(approval.created_at),
            expires_at=None if approval.expires_at is None else rfc3339(approval.expires_at),
            url=f"{self._url()}/approvals/{approval.id}",
            node=self._node,
            code=self._code(approval.id),
        )


def make_channels(plan: ApprovalsPlan, clock: Clock) -> dict[str, Channel]:
    """Create the configured channels. The console and the command line ask by themselves and need none."""
    channels: dict[str, Channel] = {}
    if "os_dialog" in plan.channels:
        channels["os_dialog"] = DesktopChannel()
    if "command" in plan.channels and plan.command:
        channels["command"] = CommandChannel(plan.command)
    if "webhook" in plan.channels and plan.webhook_url is not None and plan.webhook_secret is not None:
        channels["webhook"] = WebhookChannel(plan.webhook_url, plan.webhook_secret, clock)
    if "smtp" in plan.channels and plan.smtp_url is not None and plan.smtp_from is not None:
        from interlock.approvals.mail_channel import MailChannel  # only where mail is sent

        channels["smtp"] = MailChannel(plan.smtp_url, plan.smtp_from, plan.smtp_to)
    return channels
