"""The requests of one link: those that wait for an answer, and those that failed and may be sent again.

A call is never sent twice unless it is certain that the server did not act on the first one. That is certain when the
server refused the credential (401) or had forgotten the session (404) before it read the call. Every other failure ends
the call, with an error whose `outcome` says whether the server may have acted: "not_sent" or "unknown" (MCP-AX 13.1).

The error for the client names no hosts; `LostRefusal` keeps the details for the log and for the keeper.
"""

import logging
import weakref
from collections.abc import KeysView
from typing import TYPE_CHECKING

from interlock.core.calls.call import Call, Outcome, Pending
from interlock.core.calls.check import BUSY
from interlock.core.clock import Clock, rfc3339
from interlock.core.link_state import UNREACHABLE
from interlock.links.pipes import Trouble, Undelivered
from interlock.wire.jsonrpc.oversized import result_too_large
from interlock.wire.refusal import INTERNAL_ERROR, TOOL_DEGRADED, Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink


class SuspendedCalls:
    """Calls whose server waits for an answer of their client, keyed by their id at the server."""

    __slots__ = ("_calls", "_counts")

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._counts: dict[str, int] = {}  # principal -> number of its calls

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, upstream_id: int) -> bool:
        return upstream_id in self._calls

    @property
    def principals(self) -> KeysView[str]:
        return self._counts.keys()

    def get(self, upstream_id: int) -> Call | None:
        return self._calls.get(upstream_id)

    def first(self) -> Call | None:
        return next(iter(self._calls.values()), None)

    def add(self, call: Call) -> None:
        self._calls[call.upstream_id] = call
        principal = call.caller.principal.name
        self._counts[principal] = self._counts.get(principal, 0) + 1

    def pop(self, upstream_id: int) -> Call | None:
        call = self._calls.pop(upstream_id, None)
        if call is not None:
            principal = call.caller.principal.name
            self._counts[principal] -= 1
            if not self._counts[principal]:
                del self._counts[principal]
        return call

    def pop_all(self) -> list[Call]:
        calls = list(self._calls.values())
        self._calls.clear()
        self._counts.clear()
        return calls


class WaitingRequests:
    """Requests that were sent and not answered yet, keyed by their id at the server. Each is in one of two places.

    `in_flight`: the server works on it. `suspended`: the server asked the client something; the call does not count
    towards the limit of the link and has no deadline until the client has answered.
    """

    __slots__ = ("in_flight", "suspended")

    def __init__(self) -> None:
        self.in_flight: dict[int, Pending] = {}
        self.suspended = SuspendedCalls()

    def __contains__(self, upstream_id: int) -> bool:
        return upstream_id in self.in_flight or upstream_id in self.suspended

    def get(self, upstream_id: int) -> Pending | None:
        return self.in_flight.get(upstream_id) or self.suspended.get(upstream_id)

    def pop(self, upstream_id: int) -> Pending | None:
        return self.in_flight.pop(upstream_id, None) or self.suspended.pop(upstream_id)

    def pop_all(self) -> list[Pending]:
        requests: list[Pending] = [*self.in_flight.values(), *self.suspended.pop_all()]
        self.in_flight.clear()
        return requests

    def suspend(self, call: Call) -> None:
        if self.in_flight.pop(call.upstream_id, None) is not None:
            self.suspended.add(call)

    def resume(self, call: Call) -> None:
        if self.suspended.pop(call.upstream_id) is not None:
            self.in_flight[call.upstream_id] = call

    @property
    def calls_in_flight(self) -> list[Call]:
        return [pending for pending in self.in_flight.values() if isinstance(pending, Call)]

    @property
    def principals(self) -> set[str]:
        """Return the names of all principals with a waiting call."""
        return {call.caller.principal.name for call in self.calls_in_flight} | self.suspended.principals

    def find_speaking_call(self) -> Call | None:
        """Return the call that a message without an id must be about, or None if it may concern another client.

        All calls share the pipe. A legacy session counts as one client with all its calls; each modern request counts
        as a client. If only one client has calls, the newest call is returned. If several clients of one principal have
        calls, the result is the only call that does not wait for its client, or the call about which the server is just
        asking (a server may ask several questions at once).
        """
        calls, suspended = self.calls_in_flight, self.suspended
        clients = {id(call.caller) if call.caller.channel is not None else id(call): call for call in calls}
        if len(clients) + len(suspended) <= 1:
            return calls[-1] if calls else suspended.first()
        if len(self.principals) > 1:
            return None
        candidates = [
            call
            for call in clients.values()
            if not call.asking or (call.dialogue is not None and call.dialogue.is_gathering)
        ]
        return candidates[0] if len(candidates) == 1 else None


class LinkPart:
    """Base class of the parts of a connected link.

    A part refers to its link weakly, so that the link is freed at once and not by the garbage collector.
    """

    __slots__ = ("_link_ref",)

    def __init__(self, link: "ConnectedLink") -> None:
        self._link_ref = weakref.ref(link)

    @property
    def link(self) -> "ConnectedLink":
        link = self._link_ref()
        if link is None:
            raise ReferenceError("the link of this part is gone")
        return link


log = logging.getLogger("interlock.links")


class LostRefusal(Refusal, frozen=True):
    """Error of a call that was lost on its link.

    `detail` and `what` stay inside the node, because they may contain host names. The client gets only what it can act
    on.
    """

    detail: str = ""
    what: Undelivered | None = None


def lost_refusal(
    detail: str,
    outcome: str,
    *,
    wall: float,
    retry_after_ms: int,
    what: Undelivered | None = None,
    reason: str = UNREACHABLE,
) -> LostRefusal:
    """Build the error of a lost call.

    `outcome` is "not_sent", or "unknown" if the server may have acted on the call.
    """
    data = {
        "reason": reason,  # AX-13.1-4
        "since": rfc3339(wall),
        "outcome": outcome,  # AX-13.1-4
        "retry_after_ms": retry_after_ms,
        "mcpax_code": -32002,
    }
    return LostRefusal(TOOL_DEGRADED, "tool_degraded", data, detail=detail, what=what)


def unauthorised_refusal(what: Undelivered) -> LostRefusal:
    data = {"reason": "unauthorised", "outcome": "not_sent", "mcpax_code": -32002}
    return LostRefusal(TOOL_DEGRADED, "tool_degraded", data, detail=what.detail, what=what)


class FailedRequests(LinkPart):
    """Requests of one link that could not be delivered, including the calls that will be sent again.

    `refused`: the server refused the credential; `Renewal` sends them again with another one.

    `_to_resend`: the server had forgotten the session; they are sent again after the next handshake.
    """

    __slots__ = ("_clock", "_to_resend", "_undelivered_logged", "can_renew_credential", "refused", "undelivered")

    def __init__(self, link: "ConnectedLink", clock: Clock) -> None:
        super().__init__(link)
        self._clock = clock
        self.can_renew_credential = False
        self.refused: list[tuple[Call, Undelivered]] = []
        self.undelivered = 0  # answers, cancellations and notifications of ours that did not arrive
        self._undelivered_logged = 0  # `undelivered` at the last greeting
        self._to_resend: list[Call] = []

    def take(self, origin: Pending | None, what: Undelivered) -> None:
        """Handle a message that could not be delivered.

        `origin` is the request, or None for a message that expects no answer.
        """
        link = self.link
        if what.trouble is Trouble.UNAUTHORISED:
            if isinstance(origin, Call) and self._can_renew(origin):
                link.waiting.pop(origin.upstream_id)
                origin.renewed = True
                # The server did not look at the call, so that it may be sent again.
                self.refused.append((origin, what))
                origin = None
            link.events.on_unauthorised(link, what)
        elif what.trouble is Trouble.SESSION_LOST:
            link.events.on_session_lost(link)
        elif what.trouble is Trouble.UNREACHABLE:
            link.events.on_unreachable(link)
        if origin is None:
            self.count_undelivered(what)
        elif link.waiting.pop(origin.upstream_id) is not None:
            self._fail(origin, what)

    def _can_renew(self, call: Call) -> bool:
        """Return whether the call may be sent again with a new credential.

        A call without a ticket was parked. The server has already received it, so it is never sent again.
        """
        is_sent_once = call.ticket is not None and not call.renewed
        return self.can_renew_credential and is_sent_once and call.upstream_id in self.link.waiting

    def _fail(self, origin: Pending, what: Undelivered) -> None:
        match what.trouble:
            case Trouble.SESSION_LOST if isinstance(origin, Call) and origin.ticket is not None:
                # The server refused the call before it looked at it.
                self._to_resend.append(origin)
            case Trouble.SESSION_LOST if isinstance(origin, Call):
                self.lose(origin, what)
            case Trouble.UNAUTHORISED if isinstance(origin, Call) and origin.ticket is None:
                self.lose(origin, what)
            case Trouble.MALFORMED if isinstance(origin, Call):
                refusal = Refusal(INTERNAL_ERROR, "the server's answer cannot be used", {"reason": "malformed_answer"})
                origin.on_failed(refusal, Outcome.ERROR)
            case Trouble.TOO_LARGE:
                origin.on_failed(result_too_large(what.limit), Outcome.ERROR)
            case Trouble.BUSY:
                origin.on_failed(BUSY, Outcome.REFUSED)
            case Trouble.UNAUTHORISED:
                origin.on_failed(unauthorised_refusal(what), Outcome.ERROR)
            case Trouble.LOST | Trouble.MALFORMED:
                self.lose(origin, what)
            # The server failed in the middle, or a proxy did not wait for it.
            case Trouble.REFUSED if what.status >= 500:
                self.lose(origin, what)
            case _:
                origin.on_failed(self.build_refusal(what.detail, "not_sent", what), Outcome.LOST)

    def lose(self, request: Pending, what: Undelivered) -> None:
        """End a request that the server received and will not answer."""
        request.on_failed(self.build_refusal(what.detail, "unknown", what), Outcome.LOST)

    def fail_all(self, reason: str) -> None:
        """End every waiting request, because the connection is lost."""
        for pending in self.link.waiting.pop_all():
            pending.on_failed(self.build_refusal(reason, "unknown"), Outcome.LOST)
        unsent = [*self._to_resend, *(call for call, _ in self.refused)]
        self._to_resend, self.refused = [], []
        for call in unsent:
            call.on_failed(self.build_refusal(reason, "not_sent"), Outcome.LOST)

    def resend(self) -> None:
        """Send the calls that wait for a new session, after the handshake with the server."""
        self._undelivered_logged = self.undelivered
        calls, self._to_resend = self._to_resend, []
        for call in calls:
            if not call.done and call.ticket is not None:
                self.link.send(call.ticket)

    def count_undelivered(self, what: Undelivered) -> None:
        """Count a message without an answer that could not be delivered. Log the first one of each connection."""
        if self.undelivered == self._undelivered_logged:
            log.warning("link %s: a message was not delivered: %s; more are counted", self.link.name, what.detail)
        self.undelivered += 1

    def build_refusal(self, detail: str, outcome: str, what: Undelivered | None = None) -> LostRefusal:
        link, wall = self.link, self._clock.wall()
        return lost_refusal(detail, outcome, wall=wall, retry_after_ms=link.retry_after_ms, what=what, reason=link.gone)
