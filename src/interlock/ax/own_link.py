"""The link whose other end is the node itself: no process, no connection, no keeper."""

import asyncio
from collections.abc import Callable

from msgspec import Raw

from interlock.core.calls.call import Call
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.guard.guard import Admitted
from interlock.links.link import Link, ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.mcp.eras import LATEST_MODERN, Era
from interlock.wire.jsonrpc.messages import ABSENT, Response


class OwnLink(Link):
    def __init__(self, segment: str, events: LinkEvents, clock: Clock, result: Callable[[], bytes]) -> None:
        """`result`: of a call now, as 2026-07-28 has it."""
        super().__init__(segment, events, clock, kind="own", transport="memory")
        self._result = result
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.stand(LinkState.READY, None)

    def send(self, admitted: Admitted[Call]) -> None:
        """The answer comes in a later turn of the loop, as from every other link."""
        call = admitted.command
        call.link = self
        self.calls += 1
        asyncio.get_running_loop().call_soon(self._answer, call)

    def _answer(self, call: Call) -> None:
        call.on_response(Response(b"0", Raw(self._result()), ABSENT), Era.MODERN)
