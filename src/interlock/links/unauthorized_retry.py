"""The retry after a 401 from a server: gets a new token and resends each refused call once.

One renewal at a time per link, outside the path of other calls. Where no token can be obtained, the refused calls fail
with an error that says what the operator has to do.
"""

import asyncio
import logging
from collections.abc import Callable

from interlock.core.calls.call import Call, Outcome
from interlock.core.clock import Clock
from interlock.credentials.errors import Unobtainable
from interlock.credentials.protocol.www_authenticate import read_challenge_untrusted
from interlock.credentials.token import Denied, TokenHolder
from interlock.links.connected_link import ConnectedLink
from interlock.links.pipes import Undelivered
from interlock.store.ports import StoreError
from interlock.wire.refusal import TOOL_DEGRADED, Refusal

log = logging.getLogger("interlock.links")


class Renewal:
    def __init__(self, link: ConnectedLink, holder: TokenHolder, clock: Clock, doubt: Callable[[], None]) -> None:
        """Create the renewal of a link. `doubt` is called when the server may refuse everything from now on."""
        self._link = link
        self._holder = holder
        self._clock = clock
        self._doubt = doubt
        self._task: asyncio.Task[None] | None = None
        self._held: dict[Call, None] = {}  # not sent again yet, and not told why not

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, what: Undelivered) -> None:
        if not self.under_way:
            self._task = asyncio.get_running_loop().create_task(self._run(what))

    def cancel(self) -> None:
        """Stop, because the link is going away. No call is left waiting."""
        if self._task is not None:
            self._task.cancel()
        self._give_up()

    def _give_up(self) -> None:
        held, self._held = self._held, {}
        for call in held:
            call.on_failed(unauthorised(self._link.name), Outcome.ERROR)

    async def _run(self, what: Undelivered) -> None:
        try:
            await self._settle_all(what)
        except Exception:
            log.exception("link %s: its credential could not be renewed", self._link.name)
        finally:
            refused, self._link.failed.refused = self._link.failed.refused, []
            self._held.update((call, None) for call, _ in refused)
            self._give_up()

    async def _settle_all(self, what: Undelivered) -> None:
        waiting: dict[Undelivered, list[Call]] = {what: []}
        while waiting:
            refused, self._link.failed.refused = self._link.failed.refused, []
            self._held = {call: None for call, _ in refused}
            for call, why in refused:
                waiting.setdefault(why, []).append(call)
            for why, calls in waiting.items():
                await self._settle(why, calls)
            waiting = {why: [] for _, why in self._link.failed.refused}

    async def _settle(self, what: Undelivered, calls: list[Call]) -> None:
        sent_at = max((call.started for call in calls), default=self._clock.now())
        challenge = read_challenge_untrusted(what.challenges)
        denied = await self._holder.refused(what.status, challenge, sent_at=sent_at)
        for call in calls:
            if not call.done:
                if denied is not None:
                    await self._tell(call, denied)
                elif call.ticket is not None:
                    self._link.send(call.ticket)
                else:
                    self._link.failed.lose(call, what)
            self._held.pop(call, None)
        if denied is not None and denied.standing:
            self._doubt()

    async def _tell(self, call: Call, denied: Denied) -> None:
        if denied.consent and self._holder.principal:
            try:
                consent = await self._holder.consent()
            except (Unobtainable, StoreError):
                pass
            else:
                if not call.done:
                    call.handler.ask_consent(call, self._link.name, consent.url, consent.id)
                return
        call.on_failed(unauthorised(self._link.name, lasting=denied.standing), Outcome.ERROR)


def unauthorised(name: str, *, lasting: bool = True) -> Refusal:
    """Return the refusal for a client. The exact reason is for the operator, because it may name hosts."""
    data = {
        "reason": "unauthorised" if lasting else "insufficient_scope",
        "outcome": "not_sent",
        "next": f"an operator looks at it: interlock status {name}",
        "mcpax_code": -32002,
    }
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)
