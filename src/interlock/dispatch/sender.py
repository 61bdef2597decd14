"""From a call to its link: through the guard, at once where that is possible, else as soon as it may be sent.

One way: the guard admits, refuses or holds. What is held, or waits for a server that is being started again, is sent by
a task of its own once the guard releases it. Nothing is sent that the guard did not admit.
"""

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from typing import Final

from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import CheckNumber, Refuse
from interlock.core.calls.failures import answer_failures
from interlock.core.calls.refusals import BUSY, HELD, is_not_found, own_links_full
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.core.recorder import Recorder
from interlock.credentials.consents import Consent
from interlock.credentials.errors import Unobtainable
from interlock.dispatch.call_queue import CallQueue, Place
from interlock.dispatch.handler import Handler
from interlock.guard.budgets import Budgets
from interlock.guard.checks.availability import AvailabilityCheck
from interlock.guard.checks.route import RouteCheck
from interlock.guard.checks.send import forbid_resending
from interlock.guard.guard import Admitted, Guard
from interlock.links.keeper import Keeper
from interlock.links.link import Link, Own
from interlock.links.process_room import RoomFull
from interlock.links.unauthorized_retry import unauthorised
from interlock.mcp.eras import Era
from interlock.mcp.ladder import HTTP_STATUS
from interlock.mcp.methods import META_CAPABILITIES
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import encode_result
from interlock.wire.jsonrpc.errors import Fault

log = logging.getLogger("interlock.dispatch")

_NO_ROOM: Final = Refuse(CheckNumber.AVAILABILITY, BUSY)
RESPAWN_WAIT_S: Final = 5.0  # how long a call waits for a server that is being started again


class Sender(Handler):
    def __init__(
        self,
        catalog: Catalog,
        keepers: Mapping[str, Keeper],
        recorder: Recorder,
        clock: Clock,
        budgets: Budgets,
        *,
        guard: Guard[Route],
        route_check: RouteCheck,
        availability: AvailabilityCheck,
        latency_meta: bool,
    ) -> None:
        super().__init__(catalog, keepers, recorder, clock, budgets, latency_meta=latency_meta)
        self.guard = guard
        self._queue = CallQueue(availability.is_full)
        self._route_check = route_check
        self._availability = availability
        self._waiting = BackgroundTasks()

    def go(self, call: Call, link: Link) -> Call:
        if link.own is not None or call.caller.asker is not None:
            own_links = link.own if link.own is not None else link.own_of_legacy
            if own_links is not None:
                own = own_links.ready(call.caller, call.meta.get(META_CAPABILITIES))
                if own is None:
                    return self._go_over_own_link(call, link, own_links)
                if own is not link:
                    link, call.after = own, self._tell_level(call, own)
        verdict = self.guard.admit(call, link)
        if isinstance(verdict, Admitted):
            if call.after is None:
                self._register(call, link)
                link.send(verdict)
                return call
        elif verdict is not HELD and not self._availability.may_wait(verdict, link):
            place = self._queue.maybe_join(call, link) if verdict.fault is BUSY else None
            if place is not None:
                return self._wait_for_room(call, link, place)
            if link.standing.state is LinkState.DEGRADED:
                self._availability.wake(link)
            return self._refuse(call, verdict)
        self._register(call, link)
        call.deadline = inf  # the time of its class begins when it is sent (MCP-AX 7.3); until then other bounds hold
        self._waiting.begin(answer_failures(call, self._send_when_ready(call, link)))
        return call

    def _wait_for_room(self, call: Call, link: Link, place: Place) -> Call:
        self._register(call, link)
        link.booked -= 1  # not yet
        call.booked = None
        call.deadline = inf
        self._waiting.begin(answer_failures(call, self._send_with_room(call, link, place)))
        return call

    async def _send_with_room(self, call: Call, link: Link, place: Place) -> None:
        has_room = await self._queue.wait(place)
        if call.done:
            return
        refused = self._route_check.maybe_relisted(call) if has_room else _NO_ROOM
        if refused is not None:
            self._refuse(call, refused, 200)
        else:
            await self._send_when_ready(call, link)

    async def _send_when_ready(self, call: Call, link: Link) -> None:
        if call.after is not None:
            await asyncio.wait((call.after,))
            if call.done:  # its client left meanwhile, and was given back what it was charged
                return
        verdict = self.guard.admit(call, link)
        is_away = not link.is_connected or (isinstance(verdict, Refuse) and self._availability.may_wait(verdict, link))
        if is_away and self._availability.may_return_soon(link) and not call.done:
            keeper = self._keepers[link.segment]
            keeper.wake()
            await keeper.usable_within(RESPAWN_WAIT_S)
            if call.done:
                return
            verdict = self.guard.admit(call, link)
            if verdict is HELD or not isinstance(verdict, Refuse):
                verdict = self._route_check.maybe_relisted(call) or verdict
        await self._settle(call, link, verdict)

    async def _settle(self, call: Call, link: Link, verdict: Admitted[Call] | Refuse) -> None:
        """Send it or refuse it; what is held waits for its release first."""
        is_released = verdict is HELD and not call.done
        if is_released:
            verdict = await self.guard.release(call, link)
        if call.done:
            return
        if isinstance(verdict, Refuse):
            self._refuse(call, verdict, 200)
            return
        call.forwarded = self._clock.now()
        if call.timeout_s is not None:
            call.deadline = call.forwarded + call.timeout_s
        link.send(verdict)
        if is_released:
            forbid_resending(call, link)

    # Clients' own links

    def _go_over_own_link(self, call: Call, link: Link, own: Own) -> Call:
        refused = self.guard.maybe_refusal(call, link, CheckNumber.AVAILABILITY)
        if refused is not None:
            return self._refuse(call, refused)
        if self._availability.is_full(link):
            return self.refuse(call, BUSY)
        self._register(call, link)
        self._waiting.begin(answer_failures(call, self._send_over_own_link(call, link, own)))
        return call

    async def _send_over_own_link(self, call: Call, link: Link, own: Own) -> None:
        """The client's link is not up: bring it up, or send its user to the page where they can agree to it."""
        if call.done:
            return
        try:
            found = await own.open(call.caller, call.meta.get(META_CAPABILITIES))
        except (Unobtainable, StoreError) as error:
            log.warning("link %s: no token for %s: %s", link.name, call.caller.principal.name, error)
            call.on_failed(unauthorised(link.name), Outcome.REFUSED)
            return
        except RoomFull as full:
            call.on_failed(own_links_full(full.most), Outcome.REFUSED)
            return
        if call.done:
            return
        if isinstance(found, Consent):
            self.ask_consent(call, link.name, found)
            return
        verdict = self.guard.admit(call, found)
        link.booked -= 1
        if link.queue is not None:
            link.queue.on_room()
        found.booked += 1
        call.booked = found
        heard = self._tell_level(call, found)
        if heard is not None:
            await asyncio.wait((heard,))
        await self._settle(call, found, verdict)

    # Refusals

    def _refuse(self, call: Call, refused: Refuse, status: int | None = None) -> Call:
        if refused.result is not None:
            call.answer(encode_result(call.client_id, refused.result), Outcome.REFUSED)
            return call
        if status is not None:
            call.refuse(refused.fault, status)
            return call
        return self.refuse(call, refused.fault)

    def refuse(self, call: Call, fault: Fault) -> Call:
        """An unknown tool is 200 on HTTP: 404 with -32601 means an unknown method there."""
        is_200 = call.caller.era is Era.LEGACY or is_not_found(fault)
        status = 200 if is_200 else HTTP_STATUS.get(fault.code, 200)
        call.refuse(fault, status)
        return call
