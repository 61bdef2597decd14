"""Messages that a server sends unasked: notifications, and requests to its clients.

`ServerNotifications` delivers a notification to the call that it is about, or passes it on as an event of the link.
`ServerQuestions` passes requests of the server (sampling, elicitation, roots) to the client of a call, and answers a
ping itself. `ListenRequest` is an open `subscriptions/listen` request; the server's acknowledgement arrives as a
notification, and everything it reports names that request.

Both refer to the link weakly (`LinkPart`).
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from interlock.core.calls.call import Call, Outcome, OwnRequest, Pending
from interlock.core.calls.caller import QuestionOrigin
from interlock.links.link_requests import LinkPart
from interlock.mcp.meta import PROGRESS_TOKEN, RAW_EMPTY
from interlock.mcp.methods import (
    ACKNOWLEDGED,
    CANCELLED,
    ELICITATION_COMPLETE,
    LOG_MESSAGE,
    META_SUBSCRIPTION,
    PING,
    PROGRESS,
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    ROOTS_LIST,
    TASK_NEWS,
    TASK_STATUS,
    TOOLS_CHANGED,
    Era,
    is_vendor_method,
)
from interlock.mcp.roots import encode_roots, hold_answers_untrusted, hold_roots_untrusted
from interlock.wire.jsonrpc.codec import (
    Notification,
    Request,
    Response,
    decode_array,
    decode_object,
    error_body,
    find_string,
)
from interlock.wire.refusal import METHOD_NOT_FOUND, Refusal

if TYPE_CHECKING:
    from interlock.links.connected_link import ConnectedLink
    from interlock.links.subscriptions import Subscriptions, TaskListening

RESOURCE_FILTER: Final = "resourceSubscriptions"
CHANGES: Final = {TOOLS_CHANGED: "tools", PROMPTS_CHANGED: "prompts", RESOURCES_CHANGED: "resources"}


class ListenRequest(OwnRequest):
    """Open `subscriptions/listen` request to a 2026-07-28 server.

    Its owner decides what happens after it ends.
    """

    def __init__(self, owner: "Subscriptions | TaskListening", field: str, wanted: frozenset[str]) -> None:
        """Create a request for `wanted`, which the filter names in `field`: URIs of resources, or ids of tasks."""
        self.field = field
        self.wanted = wanted
        self.is_acknowledged = False
        self._owner = owner

    def on_acknowledged(self, params: Raw) -> None:
        if not self.is_acknowledged:
            self.is_acknowledged = True
            granted = decode_object((decode_object(params) or {}).get("notifications", RAW_EMPTY)) or {}
            names = decode_array(granted.get(self.field, Raw(b"[]"))) or []
            self._owner.acknowledged(self, {name for raw in names if (name := find_string(raw)) is not None})

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
        """Deliver a notification.

        `origin` is the request on whose stream it arrived, or None on a transport with one shared stream.
        """
        link, method, params = self.link, message.method, message.params
        if method == PROGRESS:
            self._deliver_progress(params)
        elif method == LOG_MESSAGE:
            if link.tasks and link.events.tasks.on_task_log(link, params):
                return
            call = link.find_call(origin)
            if call is not None:
                call.on_log(params)
            else:
                link.events.on_log(link, params)
        elif method in CHANGES:
            if not self._is_replaced(params):
                link.events.on_changed(link, CHANGES[method])
        elif method == RESOURCE_UPDATED:
            if not self._is_replaced(params) and self._is_first_report(params, origin):
                link.events.on_resource_updated(link, params)
        elif method == ELICITATION_COMPLETE:
            link.events.on_elicitation_complete(link, params)
        elif method == CANCELLED:
            question_id = (decode_object(params) or {}).get("requestId", b"")
            link.questions.withdraw(bytes(question_id), params)
        elif method == (TASK_NEWS if link.modern else TASK_STATUS):
            link.events.tasks.on_task_status(link, params)
        elif method == ACKNOWLEDGED:
            listener = find_acknowledged(link.in_flight, params, origin)
            if listener is not None:
                listener.on_acknowledged(params)
        elif is_vendor_method(method):
            call = link.find_call(origin)
            if isinstance(call, Call):
                call.on_vendor_notification(message, link.era)
            else:
                link.events.on_vendor_notification(link, message)

    def _deliver_progress(self, raw_params: Raw) -> None:
        link, params = self.link, decode_object(raw_params)
        if params is None:
            return
        try:
            token = int(bytes(params[PROGRESS_TOKEN]))
        except (KeyError, ValueError):
            return
        pending = link.in_flight.get(token)
        if pending is not None:
            pending.on_progress(params)
        elif link.tasks:
            link.events.tasks.on_task_progress(link, token, params)

    def _is_replaced(self, params: Raw) -> bool:
        """Return whether a notification comes from a subscription that was replaced. Its successor reports the same."""
        link = self.link
        listener_id = find_subscription_id(params) if link.modern else None
        return listener_id is not None and link.has_sent(listener_id) and listener_id not in link.in_flight

    def _is_first_report(self, params: Raw, origin: Pending | None) -> bool:
        """Return whether an update is reported for the first time.

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
        return int(bytes(meta[META_SUBSCRIPTION]))
    except (KeyError, ValueError):
        return None


def find_acknowledged(in_flight: Mapping[int, Pending], params: Raw, origin: Pending | None) -> ListenRequest | None:
    """Return the listener that a server's notification acknowledges, or None.

    It is found by the stream, otherwise by the id in the params, otherwise as the only listener for resources that
    still waits.
    """
    if isinstance(origin, ListenRequest):
        return origin
    if origin is not None:
        return None
    listener_id = find_subscription_id(params)
    if listener_id is not None:
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
        if request.method == PING:
            self.respond(request.id, b'"result":{}')
        elif link.modern:
            self.refuse(request, "a 2026-07-28 server sends no requests")
        elif request.method == ROOTS_LIST and link.owner is None:
            # The roots of one client must not change what the server does for all others.
            link.on_asked(request.method, in_call=False)
            self.respond_roots(request)
        elif not link.events.tasks.on_task_request(link, request, origin):
            link.on_asked(request.method, in_call=isinstance(origin, Call))
            call = link.find_call(origin)
            if isinstance(call, Call):
                self.ask_client(request, call)
            elif not link.events.on_orphan_request(link, request):
                self.refuse(request, "the client this is for cannot be told from others with calls under way")

    def ask_client(self, request: Request, asking: QuestionOrigin) -> None:
        """Pass a question to the client of `asking`. The answer arrives at `respond`."""
        link = self.link
        refusal = link.events.on_question(link, asking)
        if refusal is not None:
            self.respond(request.id, b'"error":' + error_body(refusal, draft=True))
            return
        self._open[request.id] = asking
        if request.method == ROOTS_LIST:
            self._for_roots.add(request.id)
        if isinstance(asking, Call):
            asking.open_dialogue().questions += (request.id,)
        asking.on_request(self, request)

    def is_open(self, question_id: bytes, asking: QuestionOrigin) -> bool:
        """Return whether the server still waits for the answer to this question."""
        return self._open.get(question_id) is asking

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Send a client's answer to the server. `payload` is the encoded member `result` or `error`."""
        link = self._link_ref()
        if link is None:
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
        """Answer with the folders that the operator allows, regardless of the clients' roots."""
        self.respond(request.id, _RESULT + encode_roots(self.link.allowed_folders()))

    def refuse(self, request: Request, reason: str) -> None:
        self.respond(request.id, b'"error":' + error_body(Refusal(METHOD_NOT_FOUND, reason)))

    def limit_answers(self, call: Call) -> None:
        """Remove roots that the operator does not allow from the answers in a modern client's call."""
        link = self.link
        answers, held = hold_answers_untrusted(call.params["inputResponses"], link.allowed_folders(), os.path.realpath)
        call.params["inputResponses"] = answers
        if held:
            link.events.on_client_roots(link, call.caller, held)

    def withdraw(self, question_id: bytes, params: Raw = RAW_EMPTY) -> None:
        """Tell the client that its answer is no longer needed. `params` are those of the server's cancellation."""
        asking = self._close(question_id)
        if asking is None:
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
        """Remove a question.

        Return the call or task on whose behalf it was asked, or None if the question is not open.
        """
        asking = self._open.pop(question_id, None)
        self._for_roots.discard(question_id)
        if isinstance(asking, Call) and asking.dialogue is not None:
            dialogue = asking.dialogue
            dialogue.questions = tuple(each for each in dialogue.questions if each != question_id)
        return asking
