"""A leased call: its server is chosen when it is sent, and it leases that server's link until it ends.

It is a client's call like any other: its answer, its end, its cancellation and its questions come over the leased link.
What its client wrote is kept apart from what the server is sent.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from math import inf
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.check import Admitted, Refused
from interlock.core.clock import Clock
from interlock.core.link_state import RETRY_AFTER_MS
from interlock.core.recorder import Recorder
from interlock.drivers.interfaces import Lease, Provider
from interlock.drivers.protocol.problems import DriverRefusal
from interlock.guard.guard import Guard
from interlock.links.connected_link import ServerLink
from interlock.mcp.methods import META_CAPABILITIES, NAMED_BY, Era
from interlock.mcp.results import result_to_legacy
from interlock.mcp.tasks import declares_tasks, without_tasks
from interlock.wire.jsonrpc.codec import encode_result
from interlock.wire.refusal import TOOL_DEGRADED, Refusal

log = logging.getLogger("interlock.drivers")

MESSAGE_CHARS_MAX: Final = 4096  # of a server's own words


UNREACHABLE: Final = frozenset(("tool_unavailable", "upstream_error"))  # where they may pass: at the edge a lost link


INTERNAL: Final = DriverRefusal(code="internal", message="something failed inside the node; its log says more")


class CallServices(Protocol):
    """Services that a leased call needs from the link that offers it."""

    @property
    def guard(self) -> Guard[Route]: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def recorder(self) -> Recorder: ...

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task and hold a reference to the task until it ends."""


class LeasedCall(Call, eq=False, kw_only=True):
    services: CallServices
    asked: dict[str, Any]  # its params as its client wrote them: what a retry repeats, and what is recorded
    lease: Lease | None = None
    admitted: Admitted[Call] | None = None  # what let it through, for as long as it may have to be sent
    since: float | None = None  # when it was first sent: its time began
    approved: bool = False  # a person released this very call: once it has left it is never sent again

    def depart(self, admitted: Admitted[Call]) -> None:
        """Find a server for the admitted call and send it."""
        raise NotImplementedError

    def on_leased(self, provider: Provider, link: ServerLink) -> None:
        """Send the call over this link, which is leased until the call ends or releases it."""
        raise NotImplementedError

    def on_lease_failed(self, provider: Provider, error: DriverRefusal) -> None:
        """End the call or try another provider: there is no link. Nothing was sent."""
        raise NotImplementedError

    def fail(self, error: DriverRefusal) -> None:
        """End the call with this error."""
        raise NotImplementedError

    def refuse(self, refusal: Refusal, status: int) -> None:
        if isinstance(refusal, DriverRefusal):
            self.fail(refusal)
        else:
            super().refuse(refusal, status)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a slow part of the call in a task. An exception there ends the call, not only the task."""
        self.services.begin(self._run_to_end(work))

    async def _run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("%s: a call of it failed inside the node", self.target)
            if not self.done:
                self.fail(INTERNAL)

    def borrow(self, provider: Provider) -> None:
        """Lease a link immediately if the provider is ready, else as soon as it is."""
        lease = provider.maybe_ready(self.caller)
        if lease is not None:
            self.lease = lease
            self.on_leased(provider, lease.link)
            return
        if self.since is None:
            self.deadline = inf  # what it takes to start a server is bounded by the provider
        self.begin(self._acquire_lease(provider))

    async def _acquire_lease(self, provider: Provider) -> None:
        lease = await provider.acquire(self.caller, self.timeout_s or 0.0)
        if isinstance(lease, DriverRefusal):
            if not self.done:
                self.on_lease_failed(provider, lease)
        elif self.done:  # its client left meanwhile; what was started for it stays
            lease.release()
        else:
            self.lease = lease
            self.on_leased(provider, lease.link)

    def send_over(self, link: ServerLink, params: dict[str, Any], head: bytes) -> Refused | None:
        """Send the request over the leased link. Return the refusal if that link is gone, else None."""
        assert self.admitted is not None  # noqa: S101  (it departed, and has not ended)
        verdict = self.services.guard.derive(self.admitted, link)
        if isinstance(verdict, Refused):
            self.give_back()
            return verdict
        self.params = params
        self.head = head
        self._set_deadline()
        if link.modern:
            if link.tasks:
                self._take_no_task()
        elif self.caller.era is Era.MODERN:
            params.pop("inputResponses", None)  # of no round that this server knows
            params.pop("requestState", None)
            self.link = link
            self.wished = self.asked.get(NAMED_BY[self.method])
            first = self.handler.prepare_server(self)
            if first is not None:
                self.begin(self._send_after(first, link, verdict))
                return None
        self._send(link, verdict)
        return None

    def _send(self, link: ServerLink, verdict: Admitted[Call]) -> None:
        lease = self.lease
        link.send(verdict)
        if self.approved and self.lease is lease and not self.done:
            if link.modern:
                self.renewed = True  # the ticket stays for the next round of a question
            else:
                self.ticket = None

    async def _send_after(self, first: asyncio.Future[Any], link: ServerLink, verdict: Admitted[Call]) -> None:
        await asyncio.wait((first,))
        if not self.done:
            self._send(link, verdict)

    def _take_no_task(self) -> None:
        """Withhold the tasks capability: one request has one result, and no client could ask about a task."""
        capabilities = self.meta.get(META_CAPABILITIES)
        if capabilities is not None and declares_tasks(capabilities):
            self.meta = {**self.meta, META_CAPABILITIES: without_tasks(capabilities)}
            self.params["_meta"] = self.meta

    def _set_deadline(self) -> None:
        if self.since is None:
            self.since = self.started if self.forwarded is None else self.forwarded
            if self.deadline == inf:
                self.since = self.forwarded = self.services.clock.now()
        if self.timeout_s is not None:
            self.deadline = self.since + self.timeout_s

    def log_failure(self, driver: str, error: DriverRefusal) -> str:
        """Log the failure and return its ref, under which the log has more details than the client receives."""
        ref = secrets.token_hex(6)
        message = error.message[:MESSAGE_CHARS_MAX]
        level = logging.DEBUG if error.code == "input_invalid" else logging.WARNING  # that one the caller can mend
        log.log(level, "%s by %s (ref %s): %s: %s %s", self.target, driver, ref, error.code, message, error.cause or "")
        return ref

    def answer_result(self, result: bytes, outcome: Outcome) -> None:
        """End the call with a tool result that the node made in the 2026-07-28 form, converted to the era of the
        client.
        """
        if self.caller.era is not Era.MODERN:
            brought = result_to_legacy(Raw(result))
            result = result if isinstance(brought, Refusal) else brought
        if self.handler.timing is not None:
            result = self.handler.timing(self, result)
        self._end(encode_result(self.client_id, result), outcome, 200)

    def give_back(self) -> None:
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def send_only(self, params: dict[str, Any], meta: dict[str, Raw]) -> None:
        super().send_only(params, meta)
        self.asked = {**params, "name": self.asked["name"]}

    def as_wished(self) -> dict[str, Any]:
        return self.asked

    def _let_go(self) -> None:
        super()._let_go()
        self.admitted = None
        self.params = self.asked
        self.give_back()


def unreachable(ref: str) -> Refusal:
    data = {
        "reason": "subserver_unreachable",
        "outcome": "not_sent",
        "retry_after_ms": RETRY_AFTER_MS,
        "mcpax_code": -32002,
        "ref": ref,
    }
    return Refusal(TOOL_DEGRADED, "tool_degraded", data)
