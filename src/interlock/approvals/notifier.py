"""The notifier tells operators that something waits; a notice that cannot be sent is counted and logged.

One task per channel takes notices from a bounded line, so that a slow channel holds up no other, and no call ever. The
inbox is the truth; a notice is only the wish that somebody looks.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from interlock.approvals.channels import (
    Channel,
    ChannelFailed,
    CommandChannel,
    DesktopChannel,
    Notice,
    WebhookChannel,
)
from interlock.approvals.feed import Listener
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind
from interlock.approvals.protocol.state import Status
from interlock.approvals.subject_name import subject_name
from interlock.config.plan import ApprovalsPlan
from interlock.core.clock import Clock, rfc3339

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
        """`code`: what operators are told beside an approval, by its id."""
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
        """Whether a channel brings a code to operators without their asking."""
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
    """The page and the command line ask by themselves and need no telling."""
    made: dict[str, Channel] = {}
    if "os_dialog" in plan.channels:
        made["os_dialog"] = DesktopChannel()
    if "command" in plan.channels and plan.command:
        made["command"] = CommandChannel(plan.command)
    if "webhook" in plan.channels and plan.webhook_url is not None and plan.webhook_secret is not None:
        made["webhook"] = WebhookChannel(plan.webhook_url, plan.webhook_secret, clock)
    if "smtp" in plan.channels and plan.smtp_url is not None and plan.smtp_from is not None:
        from interlock.approvals.mail_channel import MailChannel  # only where mail is sent

        made["smtp"] = MailChannel(plan.smtp_url, plan.smtp_from, plan.smtp_to)
    return made
