"""Requests that a link could not deliver: what their senders are told, and which calls are sent again."""

import logging
from typing import TYPE_CHECKING

from interlock.core.calls.call import Call, Outcome, Pending
from interlock.core.calls.refusals import BUSY
from interlock.core.clock import Clock, rfc3339
from interlock.core.link_state import UNREACHABLE
from interlock.links.link_part import LinkPart
from interlock.links.pipes import Trouble, Undelivered
from interlock.wire.jsonrpc.oversized import result_too_large
from interlock.wire.refusal import INTERNAL_ERROR, TOOL_DEGRADED, Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink

log = logging.getLogger("interlock.links")


class LostRefusal(Refusal, frozen=True):
    """The error of a call that a link lost.

    `detail` and `what` stay inside the node, because they may name hosts. The client gets what it can act on.
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
    """Build the error of a lost call. `outcome`: "not_sent", or "unknown" if the server may have acted."""
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
    """Handles requests of one link that failed on their way, and holds the calls that will be sent again.

    `refused`: the server refused the credential; `CredentialRenewal` sends them again with another one.
    `_to_resend`: the server had forgotten the session; they are sent again after the next greeting.
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
        """Handle a message that was not delivered. `origin`: the request; None for a message without an answer."""
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
        """A call without a ticket was parked: the server has had it, and it is never sent again."""
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
        """End a request that the server had and will not answer any more."""
        request.on_failed(self.build_refusal(what.detail, "unknown", what), Outcome.LOST)

    def fail_all(self, reason: str) -> None:
        """End every waiting request, because the connection is gone."""
        for pending in self.link.waiting.pop_all():
            pending.on_failed(self.build_refusal(reason, "unknown"), Outcome.LOST)
        unsent = [*self._to_resend, *(call for call, _ in self.refused)]
        self._to_resend, self.refused = [], []
        for call in unsent:
            call.on_failed(self.build_refusal(reason, "not_sent"), Outcome.LOST)

    def resend(self) -> None:
        """Send the calls again that wait for a new session, after the server was greeted."""
        self._undelivered_logged = self.undelivered
        calls, self._to_resend = self._to_resend, []
        for call in calls:
            if not call.done and call.ticket is not None:
                self.link.send(call.ticket)

    def count_undelivered(self, what: Undelivered) -> None:
        """Count a message without an answer that did not arrive, and log the first one of a connection."""
        if self.undelivered == self._undelivered_logged:
            log.warning("link %s: a message was not delivered: %s; more are counted", self.link.name, what.detail)
        self.undelivered += 1

    def build_refusal(self, detail: str, outcome: str, what: Undelivered | None = None) -> LostRefusal:
        link, wall = self.link, self._clock.wall()
        return lost_refusal(detail, outcome, wall=wall, retry_after_ms=link.retry_after_ms, what=what, reason=link.gone)
