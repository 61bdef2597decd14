"""The requests and messages of one link: what waits for an answer, what failed, and what the server sends unasked.

`WaitingRequests` are the requests that were sent and not answered. `FailedRequests` are those that failed and may be
sent again. A call is never sent twice unless it is certain that the server did not act on the first one. That is
certain when the server refused the credential (401) or had forgotten the session (404) before it read the call. Every
other failure ends the call, with an error whose `outcome` says whether the server may have acted: "not_sent" or
"unknown" (MCP-AX 13.1). The error for the client names no hosts; `LostRefusal` keeps the details for the log and for
the keeper.

`ServerNotifications` delivers a notification to the call that it is about, or passes it on as an event of the link.
`ServerQuestions` passes requests of the server (sampling, elicitation, roots) to the client of a call, and answers a
ping itself. `ListenRequest` is an open `subscriptions/listen` request; the server's acknowledgement arrives as a
notification, and everything it reports names that request.

These parts refer to the link weakly (`LinkPart`).
"""

import logging
import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from interlock.core.calls.call import Call, Outcome, OwnRequest, Pending
from interlock.core.calls.caller import QuestionOrigin, refuse_question
from interlock.core.calls.check import BUSY
from interlock.core.clock import Clock, rfc3339
from interlock.core.link_state import UNREACHABLE
from interlock.links.pipes import Trouble, Undelivered
from interlock.mcp import methods
from interlock.mcp.meta import PROGRESS_TOKEN, RAW_EMPTY, encode_roots, hold_answers_untrusted, hold_roots_untrusted
from interlock.mcp.methods import CANCELLED, LOG_MESSAGE, PROGRESS, Era
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Notification, Request, Response, decode_array, decode_object, error_body
from interlock.wire.jsonrpc.oversized import result_too_large
from interlock.wire.refusal import INTERNAL_ERROR, TOOL_DEGRADED, Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink
    from interlock.links.subscriptions import Subscriptions, TaskListening


class WaitingRequests:
    """Requests that were sent to a server and not answered yet: those that the server works on, and those that wait for
    a client.

    `in_flight`: the server works on it. `suspended`: the server asked the client something; the call does not count
    towards the limit of the link and has no deadline until the client has answered.
    """

    __slots__ = ("in_flight", "suspended", "suspended_by_principal")

    def __init__(self) -> None:
        self.in_flight: dict[int, Pending] = {}
        self.suspended: dict[int, Call] = {}
        self.suspended_by_principal: dict[str, int] = {}  # the number of its suspended calls

    def __contains__(self, upstream_id: int) -> bool:
        return upstream_id in self.in_flight or upstream_id in self.suspended

    def get(self, upstream_id: int) -> Pending | None:
        return self.in_flight.get(upstream_id) or self.suspended.get(upstream_id)

    def pop(self, upstream_id: int) -> Pending | None:
        return self.in_flight.pop(upstream_id, None) or self.pop_suspended(upstream_id)

    def pop_all(self) -> list[Pending]:
        requests: list[Pending] = [*self.in_flight.values(), *self.suspended.values()]
        for places in (self.in_flight, self.suspended, self.suspended_by_principal):
            places.clear()
        return requests

    def suspend(self, call: Call) -> None:
        if self.in_flight.pop(call.upstream_id, None) is not None:
            self.suspended[call.upstream_id] = call
            principal = call.caller.principal.name
            self.suspended_by_principal[principal] = self.suspended_by_principal.get(principal, 0) + 1

    def resume(self, call: Call) -> None:
        if self.pop_suspended(call.upstream_id) is not None:
            self.in_flight[call.upstream_id] = call

    def pop_suspended(self, upstream_id: int) -> Call | None:
        """Remove a suspended call and return it, or return None if no suspended call has this id."""
        if (call := self.suspended.pop(upstream_id, None)) is not None:
            principal = call.caller.principal.name
            self.suspended_by_principal[principal] -= 1
            if not self.suspended_by_principal[principal]:
                del self.suspended_by_principal[principal]
        return call

    @property
    def calls_in_flight(self) -> list[Call]:
        return [pending for pending in self.in_flight.values() if isinstance(pending, Call)]

    @property
    def principals(self) -> set[str]:
        """Return the names of all principals with a waiting call."""
        return {call.caller.principal.name for call in self.calls_in_flight} | self.suspended_by_principal.keys()

    def find_speaking_call(self) -> Call | None:
        """Return the call to which a message without an id must belong, or None if it may belong to a call of another
        client.

        All calls share the pipe. A legacy session counts as one client with all its calls; each modern request counts
        as a client. If only one client has calls, the newest call is returned. If several clients of one principal have
        calls, the result is the only call that does not wait for its client, or the call about which the server is just
        asking (a server may ask several questions at once).
        """
        calls, suspended = self.calls_in_flight, self.suspended
        clients = {id(call.caller) if call.caller.channel is not None else id(call): call for call in calls}
        if len(clients) + len(suspended) <= 1:
            return calls[-1] if calls else next(iter(suspended.values()), None)
        if len(self.principals) > 1:
            return None
        candidates = [
            call
            for call in clients.values()
            if not call.asking or (call.dialogue is not None and call.dialogue.is_gathering)
        ]
        return candidates[0] if len(candidates) == 1 else None


class LinkPart:
    """Base class of an object that handles one concern of a connected link, such as the server's open questions.

    A part refers to its link weakly, so that the link is freed at once and not by the garbage collector.
    """

    __slots__ = ("_link_ref",)

    def __init__(self, link: "ConnectedLink") -> None:
        self._link_ref = weakref.ref(link)

    @property
    def link(self) -> "ConnectedLink":
        if (link := self._link_ref()) is None:
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
    """Return the error of a call whose connection to the server was lost.

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
            # A call without a ticket was parked. The server has already received it, so it is never sent again.
            may_renew = self.can_renew_credential and origin is not None and origin.upstream_id in link.waiting
            if may_renew and isinstance(origin, Call) and origin.ticket is not None and not origin.renewed:
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

    def _fail(self, origin: Pending, what: Undelivered) -> None:
        match what.trouble:
            case Trouble.SESSION_LOST if isinstance(origin, Call) and origin.ticket is not None:
                # The server refused the call before it looked at it.
                self._to_resend.append(origin)
            case Trouble.SESSION_LOST | Trouble.UNAUTHORISED if isinstance(origin, Call) and origin.ticket is None:
                self.lose(origin, what)
            case Trouble.MALFORMED if isinstance(origin, Call):
                unusable = "the server's answer cannot be used"
                refused = Refusal(INTERNAL_ERROR, unusable, {"reason": "malformed_answer"})
                origin.on_failed(refused, Outcome.ERROR)
            case Trouble.TOO_LARGE:
                origin.on_failed(result_too_large(what.limit), Outcome.ERROR)
            case Trouble.BUSY:
                origin.on_failed(BUSY, Outcome.REFUSED)
            case Trouble.UNAUTHORISED:
                data = {"reason": "unauthorised", "outcome": "not_sent", "mcpax_code": -32002}
                refusal = LostRefusal(TOOL_DEGRADED, "tool_degraded", data, detail=what.detail, what=what)
                origin.on_failed(refusal, Outcome.ERROR)
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
        """Count an undelivered message that expected no answer. Log the first one of each connection."""
        if self.undelivered == self._undelivered_logged:
            log.warning("link %s: a message was not delivered: %s; more are counted", self.link.name, what.detail)
        self.undelivered += 1

    def build_refusal(self, detail: str, outcome: str, what: Undelivered | None = None) -> LostRefusal:
        link, wall = self.link, self._clock.wall()
        return lost_refusal(detail, outcome, wall=wall, retry_after_ms=link.retry_after_ms, what=what, reason=link.gone)


RESOURCE_FILTER: Final = "resourceSubscriptions"
CHANGES: Final = {
    methods.TOOLS_CHANGED: "tools",
    methods.PROMPTS_CHANGED: "prompts",
    methods.RESOURCES_CHANGED: "resources",
}


class ListenRequest(OwnRequest):
    """Open `subscriptions/listen` request to a 2026-07-28 server.

    Its owner decides what happens after it ends.
    """

    def __init__(self, owner: "Subscriptions | TaskListening", field: str, wanted: frozenset[str]) -> None:
        """Create a request to be notified about `wanted`, which are URIs of resources or ids of tasks. `field` is their
        member in the filter of the request.
        """
        self.field = field
        self.wanted = wanted
        self.is_acknowledged = False
        self._owner = owner

    def on_acknowledged(self, params: Raw) -> None:
        if not self.is_acknowledged:
            self.is_acknowledged = True
            granted = decode_object((decode_object(params) or {}).get("notifications", RAW_EMPTY)) or {}
            names = decode_array(granted.get(self.field, Raw(b"[]"))) or []
            self._owner.acknowledged(self, {name for raw in names if (name := codec.find_string(raw)) is not None})

    def on_response(self, response: Response, era: Era) -> None:
        self._owner.ended(self, response)

    def on_failed(self, fault: Refusal, outcome: Outcome) -> None:
        self._owner.ended(self, fault)


class ServerNotifications(LinkPart):
    """Delivery of a server's notifications: each to the call that it belongs to, or as an event of the link.

    A notification without an id belongs to the call on whose stream it arrived. On a pipe that all calls share, it must
    be certain which call that is (`ConnectedLink.find_call`); otherwise it becomes an event of the link.
    """

    __slots__ = ("update_counts",)

    def __init__(self, link: "ConnectedLink") -> None:
        super().__init__(link)
        # While a subscription and its successor are both open: resource -> updates reported by each of the two.
        self.update_counts: dict[bytes, dict[int, int]] | None = None

    def deliver(self, message: Notification, origin: Pending | None) -> None:
        """Deliver a server's notification to the call, the task or the clients that it concerns.

        `origin` is the request on whose stream it arrived, or None on a transport with one shared stream.
        """
        link, method, params = self.link, message.method, message.params
        if method == PROGRESS:
            if (news := self._read_progress(params)) is not None:
                self._deliver_progress(*news)
        elif method == LOG_MESSAGE:
            if link.tasks and link.events.tasks.on_task_log(link, params):
                return
            if (call := link.find_call(origin)) is not None:
                call.on_log(params)
            else:
                link.events.on_log(link, params)
        elif method in CHANGES:
            if not self._is_replaced(params):
                link.events.on_changed(link, CHANGES[method])
        elif method == methods.RESOURCE_UPDATED:
            if not self._is_replaced(params) and self._is_first_report(params, origin):
                link.events.on_resource_updated(link, params)
        elif method == methods.ELICITATION_COMPLETE:
            link.events.on_elicitation_complete(link, params)
        elif method == CANCELLED:
            question_id = (decode_object(params) or {}).get("requestId", b"")
            link.questions.withdraw(bytes(question_id), params)
        elif method == (methods.TASK_NEWS if link.modern else methods.TASK_STATUS):
            link.events.tasks.on_task_status(link, params)
        elif method == methods.ACKNOWLEDGED:
            if (listener := find_acknowledged(link.in_flight, params, origin)) is not None:
                listener.on_acknowledged(params)
        elif methods.is_vendor_method(method):
            if isinstance(call := link.find_call(origin), Call):
                call.on_vendor_notification(message, link.era)
            else:
                link.events.on_vendor_notification(link, message)

    def deliver_awaited_progress(self, raw_params: Raw) -> bool:
        """Deliver a progress notification of a call whose client asked for progress. Return False, without delivering
        it, if there is no such call.
        """
        news = self._read_progress(raw_params)
        call = self.link.in_flight.get(news[0]) if news is not None else None
        if news is None or not isinstance(call, Call) or call.progress_token is None:
            return False
        call.on_progress(news[1])
        return True

    def _read_progress(self, raw_params: Raw) -> tuple[int, dict[str, Raw]] | None:
        params = decode_object(raw_params)
        try:
            return (int(bytes(params[PROGRESS_TOKEN])), params) if params is not None else None
        except (KeyError, ValueError):
            return None

    def _deliver_progress(self, token: int, params: dict[str, Raw]) -> None:
        link = self.link
        if (pending := link.in_flight.get(token)) is not None:
            pending.on_progress(params)
        elif link.tasks:
            link.events.tasks.on_task_progress(link, token, params)

    def _is_replaced(self, params: Raw) -> bool:
        """Return whether a notification belongs to a subscription that a newer one has replaced. It can be ignored,
        because the newer one reports the same event.
        """
        link = self.link
        listener_id = find_subscription_id(params) if link.modern else None
        return listener_id is not None and 0 < listener_id <= link.last_id and listener_id not in link.in_flight

    def _is_first_report(self, params: Raw, origin: Pending | None) -> bool:
        """Return whether the server reports an update of a resource for the first time, rather than again on another
        subscription.

        While one subscription replaces another, the server reports each update on both.
        """
        if self.update_counts is None:
            return True
        listener_id = find_subscription_id(params) or (origin.upstream_id if origin is not None else 0)
        counts = self.update_counts.setdefault(bytes((decode_object(params) or {}).get("uri", b"")), {})
        counts[listener_id] = counts.get(listener_id, 0) + 1
        return counts[listener_id] > max((count for id, count in counts.items() if id != listener_id), default=0)


def find_subscription_id(params: Raw) -> int | None:
    """Return the id of the `subscriptions/listen` request that a notification names, or None."""
    meta = decode_object((decode_object(params) or {}).get("_meta", Raw(b"{}"))) or {}
    try:
        return int(bytes(meta[methods.META_SUBSCRIPTION]))
    except (KeyError, ValueError):
        return None


def find_acknowledged(in_flight: Mapping[int, Pending], params: Raw, origin: Pending | None) -> ListenRequest | None:
    """Return the open `subscriptions/listen` request that a server's notification acknowledges, or None.

    It is found by the stream, otherwise by the id in the params, otherwise as the only listener for resources that
    still waits.
    """
    if isinstance(origin, ListenRequest):
        return origin
    if origin is not None:
        return None
    if (listener_id := find_subscription_id(params)) is not None:
        pending = in_flight.get(listener_id)
        return pending if isinstance(pending, ListenRequest) else None
    listeners = [each for each in in_flight.values() if isinstance(each, ListenRequest)]
    waiting = [each for each in listeners if each.field == RESOURCE_FILTER and not each.is_acknowledged]
    return waiting[0] if len(waiting) == 1 else None


_RESULT: Final = b'"result":'


class ServerQuestions(LinkPart):
    """Open questions of one server, each with the call or task on whose behalf it was asked.

    A question is open until the client has answered it, the server withdraws it, or the call ends.
    """

    __slots__ = ("_for_roots", "_open")

    def __init__(self, link: "ConnectedLink") -> None:
        super().__init__(link)
        self._open: dict[bytes, QuestionOrigin] = {}  # by the server's ids
        self._for_roots: set[bytes] = set()  # the ids of questions for roots

    def receive(self, request: Request, origin: Pending | None) -> None:
        """Answer a request of the server, or pass it to the client of the call that it belongs to.

        `origin` is the request on whose stream it arrived, or None on a transport with one shared stream.
        """
        link = self.link
        if request.method == methods.PING:
            self.respond(request.id, b'"result":{}')
        elif link.modern:
            refuse_question(self, request.id, "a 2026-07-28 server sends no requests")
        elif request.method == methods.ROOTS_LIST and link.owner is None:
            # The roots of one client must not change what the server does for all others.
            link.on_asked(request.method, in_call=False)
            self.respond_roots(request)
        elif not link.events.tasks.on_task_request(link, request, origin):
            link.on_asked(request.method, in_call=isinstance(origin, Call))
            if isinstance(call := link.find_call(origin), Call):
                self.ask_client(request, call)
            elif not link.events.on_orphan_request(link, request):
                why = "the client this is for cannot be told from others with calls under way"
                refuse_question(self, request.id, why)

    def ask_client(self, request: Request, asking: QuestionOrigin) -> None:
        """Pass a server's question to the client of `asking`, which is a call or a task. The answer arrives at
        `respond`.
        """
        link = self.link
        if (refusal := link.events.on_question(link, asking)) is not None:
            self.respond(request.id, b'"error":' + error_body(refusal, draft=True))
            return
        self._open[request.id] = asking
        if request.method == methods.ROOTS_LIST:
            self._for_roots.add(request.id)
        if isinstance(asking, Call):
            asking.open_dialogue().questions += (request.id,)
        asking.on_request(self, request)

    def is_open(self, question_id: bytes, asking: QuestionOrigin) -> bool:
        """Return whether the server still waits for the answer to this question."""
        return self._open.get(question_id) is asking

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Send a client's answer to the server. `payload` is the encoded member `result` or `error`."""
        if (link := self._link_ref()) is None:
            return
        is_for_roots = upstream_id in self._for_roots
        asking = self._close(upstream_id)
        if is_for_roots and asking is not None and payload.startswith(_RESULT):
            answer = Raw(payload[len(_RESULT) :])
            result, held = hold_roots_untrusted(answer, link.allowed_folders(), os.path.realpath)
            if held:
                link.events.on_client_roots(link, asking.caller, held)
            payload = _RESULT + bytes(result)
        if asking is not None and asking.caller.channel is not None:
            asking.asking -= 1
            asking.progressed = True
        if link.pipe is not None:
            payload = link.events.tasks.on_task_answer(link, upstream_id, payload)
            link.pipe.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (upstream_id, payload), b"", None)

    def respond_roots(self, request: Request) -> None:
        """Answer a server's request for roots with the folders that the operator allows, whatever the clients' roots
        are.
        """
        self.respond(request.id, _RESULT + encode_roots(self.link.allowed_folders()))

    def limit_answers(self, call: Call) -> None:
        """Remove folders that the operator does not allow from the roots in a modern client's answers, before the call
        is sent again.
        """
        link = self.link
        answers, held = hold_answers_untrusted(call.params["inputResponses"], link.allowed_folders(), os.path.realpath)
        call.params["inputResponses"] = answers
        if held:
            link.events.on_client_roots(link, call.caller, held)

    def withdraw(self, question_id: bytes, params: Raw = RAW_EMPTY) -> None:
        """Tell the client that its answer is no longer needed. `params` are those of the server's cancellation."""
        if (asking := self._close(question_id)) is None:
            return
        if asking.caller.channel is not None:
            asking.asking -= 1
            asking.caller.channel.withdraw(self, question_id, params)
        elif isinstance(asking, Call):
            asking.handler.withdraw_question(asking, question_id)

    def withdraw_of(self, call: Call) -> None:
        """Withdraw the questions of a cancelled call.

        They are not refused at the server: a refusal that arrives before the cancellation could change what the server
        does.
        """
        if call.dialogue is not None:
            for question_id in call.dialogue.questions:
                if self.is_open(question_id, call):
                    self.withdraw(question_id)

    def withdraw_all(self) -> None:
        for question_id in list(self._open):
            self.withdraw(question_id)

    def _close(self, question_id: bytes) -> QuestionOrigin | None:
        """Remove a question that a server asked a client.

        Return the call or task on whose behalf it was asked, or None if the question is not open.
        """
        asking = self._open.pop(question_id, None)
        self._for_roots.discard(question_id)
        if isinstance(asking, Call) and asking.dialogue is not None:
            dialogue = asking.dialogue
            dialogue.questions = tuple(each for each in dialogue.questions if each != question_id)
        return asking
