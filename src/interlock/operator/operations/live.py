"""What happens at a node, for an operator who looks on: its status, approvals and the audit log in one stream."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from msgspec import Raw

from interlock.approvals.api import ApprovalSummary
from interlock.approvals.views import ApprovalViews
from interlock.core.clock import Clock, rfc3339
from interlock.operator.api import NodeEvent, Status
from interlock.operator.operations.audit import AuditOperations
from interlock.operator.operations.node import NodeOperations

LOOK_S: Final = 1.0  # how often the status and the log are looked at, while somebody looks on
BEAT_LOOKS: Final = 5  # without news a sign of life is given
RECORDS_MAX: Final = 100  # in one event


class LiveOperations:
    def __init__(self, node: NodeOperations, approvals: ApprovalViews, audit: AuditOperations, clock: Clock) -> None:
        self._node = node
        self._approvals = approvals
        self._audit = audit
        self._clock = clock

    async def events(self) -> AsyncGenerator[NodeEvent[Raw], None]:
        """The status now and what waits, then what changes. Ends when the inbox is closed."""
        shown, quiet = b"", 0
        async with contextlib.aclosing(self._approvals.changes()) as changes:
            # Begun before anything is told: what changes after the first event must not be missed.
            upcoming: asyncio.Future[ApprovalSummary] | None = asyncio.ensure_future(anext(changes))
            try:
                await asyncio.sleep(0)
                last = await self._audit.last()
                while True:
                    status = self._node.status()
                    if (now := _comparable(status)) != shown:
                        shown, quiet = now, 0
                        yield NodeEvent(at=self._time(), status=status)
                    page = await self._audit.tail(last, RECORDS_MAX)
                    if page.records:
                        last, quiet = page.last, 0
                        yield NodeEvent(at=self._time(), records=page.records)
                    looked = asyncio.get_running_loop().time()
                    while (left := looked + LOOK_S - asyncio.get_running_loop().time()) > 0:
                        upcoming = upcoming or asyncio.ensure_future(anext(changes))
                        if not (await asyncio.wait((upcoming,), timeout=left))[0]:
                            break
                        change, upcoming = upcoming.result(), None
                        quiet = 0
                        yield NodeEvent(at=self._time(), approval=change)
                    quiet += 1
                    if quiet > BEAT_LOOKS:
                        quiet = 0
                        yield NodeEvent(at=self._time())
            except StopAsyncIteration:
                return
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.gather(upcoming, return_exceptions=True)

    def _time(self) -> str:
        return rfc3339(self._clock.wall())


def _comparable(status: Status) -> bytes:
    """Without what only says that time goes by."""
    node = msgspec.structs.replace(status.node, uptime_s=0.0)
    return msgspec.json.encode(msgspec.structs.replace(status, node=node))
