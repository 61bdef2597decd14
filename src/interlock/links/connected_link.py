"""A link to a server over a pipe: messages out under our own ids, answers back to the calls that wait for them.

Theory of operation. The link is shared by all clients. Every request sent has an id of this link, and what waits for
the answer is in one of these places, never in two:

    in_flight   sent, the server works on it (calls, and our own inquiries)
    suspended   the server asked its client something; it takes no room and has no deadline until the answer
    _to_resend  the server forgot our session before it read the call; sent again once greeted
    refused     the server refused our credential; sent again by the keeper once there is another

`on_message` finds the request by its id. A message without one (a log line, a request of the server) belongs to the
call whose stream it came on; on a pipe shared by all it must be plain whose it is (`whose`), or it is dropped. What a
server asks is in `_asks` until its client has answered, the server withdraws it, or the call ends.

The link renames nothing (the route did), writes what the server's era wants (`request_meta`), and tells its keeper
about everything it did not ask for. Its life (connecting, listing, coming back) is the keeper's: `pipe` is None while
there is no connection. A keeper that lost it calls `fail_all`, so that no call waits in vain.
"""

import asyncio
import logging
import os
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.config.plan import Dial, Spawn
from interlock.core.calls.call import Call, CallFactory, Inquiry, Outcome, Pending
from interlock.core.calls.caller import Asking, Caller
from interlock.core.calls.noted_sink import add_note
from interlock.core.calls.refusals import BUSY
from interlock.core.clock import Clock
from interlock.guard.guard import Admitted
from interlock.links.link import Link, ServerFacts
from interlock.links.link_events import LinkEvents
from interlock.links.listen_request import is_told_first, maybe_acknowledged, subscription_id
from interlock.links.lost_fault import LostFault, lost_fault, unauthorised_fault
from interlock.links.noise import BANNER_MAX, GARBAGE_MAX, Noise, maybe_answer_id
from interlock.links.pipes import HttpPipe, Pipe, Trouble, Undelivered
from interlock.links.request_meta import rewrite_meta
from interlock.links.waiting_calls import SuspendedCalls, maybe_speaking
from interlock.mcp.eras import BATCH_VERSION, LATEST_MODERN, MODERN
from interlock.mcp.meta import ERA_KEYS, PROGRESS_TOKEN, RAW_EMPTY, UNCHANGED_KEYS, crossing_keys
from interlock.mcp.methods import (
    ACKNOWLEDGED,
    CANCELLED,
    ELICITATION_COMPLETE,
    LOG_MESSAGE,
    META_TASK,
    PING,
    PROGRESS,
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    ROOTS_LIST,
    TASK_NEWS,
    TASK_STATUS,
    TOOLS_CHANGED,
    is_vendor_method,
)
from interlock.mcp.roots import encode_roots, hold_answers_untrusted, hold_roots_untrusted
from interlock.mcp.tasks import offers_tasks
from interlock.process.sandbox.denied_host import DeniedHost
from interlock.wire.jsonrpc.batch import is_batch, parts_untrusted
from interlock.wire.jsonrpc.codec import (
    decode_object,
    decode_untrusted,
    encode_call,
    encode_notification,
    encode_request,
    encode_value,
)
from interlock.wire.jsonrpc.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CodecError,
    Fault,
    error_body,
    for_legacy,
)
from interlock.wire.jsonrpc.messages import Notification, Request, Response
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized, message_too_large, result_too_large
from interlock.wire.jsonrpc.pieces import LargeParams, call_pieces

log = logging.getLogger("interlock.links")

MODERN_HEAD: Final = b"mcp-protocol-version: %b\r\n" % LATEST_MODERN.encode()
ID_DIGITS_MAX: Final = 18  # of a request of ours
ONE_FOR_ALL: Final = frozenset(("stdio", "websocket"))  # no request has a stream of its own that could be closed
_RESULT: Final = b'"result":'
DENIED_MAX: Final = 64  # hosts that are kept to be shown
_SOMETHING_DENIED: Final = (
    "Interlock: egress_denied: this server wanted to reach a host that it may not while this call was under way;"
    " interlock links logs {} names it"
)
BATCH_MAX: Final = 1000  # messages of one batch of a server
CHANGES: Final = {TOOLS_CHANGED: "tools", PROMPTS_CHANGED: "prompts", RESOURCES_CHANGED: "resources"}


class ConnectedLink(Link):
    session = b""
    unset: tuple[str, ...] = ()  # environment variables that it needs and the node does not have
    reach: Spawn | Dial | None = None  # where the node finds the server; None: it comes to the node
    result_bytes: int | None = None  # of what the server may answer; None: limits.message_bytes
    owner: str | None = None  # the one principal whose own process or session it is; None: it is shared
    client: Caller | None = None  # the one session whose own it is

    def __init__(
        self,
        segment: str,
        events: LinkEvents,
        clock: Clock,
        *,
        kind: str,
        transport: str,
        vendor_meta: bool,
        offer: Offer = ADOPTED,
    ) -> None:
        super().__init__(segment, events, clock, kind=kind, transport=transport, offer=offer)
        self.pipe: Pipe | None = None
        self.in_flight: dict[int, Pending] = {}
        self.suspended = SuspendedCalls()
        self.noise = Noise()
        self.restarts = 0
        self.stray = 0  # answers no call waits for
        self.unsent = 0  # messages of ours that ask nothing and did not arrive
        self.pid: int | None = None
        self.connection = 0  # counts greetings: what a server remembers may end with one
        self.renewable = False  # whether we can get another credential when the server refuses ours
        self.refused: list[tuple[Call, Undelivered]] = []
        self.denied: dict[str, DeniedHost] = {}  # hosts that this start of its server wanted to reach and may not
        self.doubled: dict[bytes, dict[int, int]] | None = None  # resource -> updates told by each of two subscriptions
        self._vendor_meta = vendor_meta
        self._last_id = 0
        self._unsent_told = 0  # of `unsent` when the link was last greeted
        self._asks: dict[bytes, Asking] = {}  # the server's questions under way, and on whose behalf each is
        self._roots_asked: set[bytes] = set()  # of these, the ones for roots
        self._to_resend: list[Call] = []

    @property
    def suspended_count(self) -> int:
        return len(self.suspended)

    @property
    def is_connected(self) -> bool:
        return self.pipe is not None

    @property
    def sandboxed(self) -> bool | None:
        """None for a server that somebody else started."""
        return self.reach.sandbox is not None if isinstance(self.reach, Spawn) else None

    @property
    def task_call_type(self) -> CallFactory:  # type: ignore[override]
        tasks = self.events.tasks
        return tasks.call_type if self.own is None or self.own.is_whole else tasks.per_user_call_type

    # What goes out

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        pipe = self.pipe
        if pipe is None:
            call.on_failed(self._lost_fault("the link went away before the call was sent", "not_sent"), Outcome.LOST)
            return
        self._last_id = uid = self._last_id + 1
        call.upstream_id = uid
        call.link = self
        call.ticket = admitted
        params = call.params
        if self.modern:
            head = call.head
            if "inputResponses" in params:
                self._hold_answers(call)
            if call.caller.era is not MODERN or not UNCHANGED_KEYS.issuperset(call.meta):
                self._rewrite_meta(call, uid)
        else:
            head = b""
            if "_meta" in params:
                self._rewrite_meta(call, uid)
        self.in_flight[uid] = call
        self.calls += 1
        if type(params) is LargeParams and isinstance(pipe, HttpPipe):
            call.handle = pipe.send_pieces(call_pieces(uid, call.method, params), head, call)
            return
        call.handle = pipe.send(encode_call(uid, call.method, params), head, call)

    def _hold_answers(self, call: Call) -> None:
        given = call.params["inputResponses"]
        answers, held = hold_answers_untrusted(given, self.allowed_folders(), os.path.realpath)
        call.params["inputResponses"] = answers
        if held:
            self.events.on_client_roots(self, call.caller, held)

    def allowed_folders(self) -> tuple[str, ...]:
        """The folders that the operator lets the server hear of, without symlinks."""
        return ()

    def _rewrite_meta(self, call: Call, uid: int) -> None:
        task = self.events.tasks.named_for(self, call.caller, call.meta[META_TASK]) if META_TASK in call.meta else None
        rewrite_meta(call, uid, modern=self.modern, vendor=self._vendor_meta, task=task)

    def ask(self, method: str, params: dict[str, Any], head: bytes = b"") -> Inquiry:
        """A question of our own. Await `inquiry.future`; `forget` it when you give up."""
        inquiry = Inquiry()
        self.attach(inquiry, method, params, head)
        return inquiry

    def attach(self, pending: Pending, method: str, params: dict[str, Any], head: bytes = b"") -> None:
        self._last_id = uid = self._last_id + 1
        pending.upstream_id = uid
        if self.pipe is None:
            pending.on_failed(self._lost_fault("the link is not connected", "not_sent"), Outcome.LOST)
            return
        self.in_flight[uid] = pending
        message = encode_request(b"%d" % uid, method.encode(), encode_value(params) if params else b"")
        pending.handle = self.pipe.send(message, head, pending)

    def notify(self, method: str, params: dict[str, Any] | None = None, head: bytes = b"") -> None:
        if self.pipe is not None:
            body = encode_value(params) if params else b""
            self.pipe.send(encode_notification(encode_value(method)[1:-1], body), head, None)

    def pass_on(self, notification: Notification) -> None:
        """A client's notification of a vendor's own kind."""
        params = decode_object(notification.params) if notification.params else {}
        if params is None:
            return
        meta = decode_object(params["_meta"]) if "_meta" in params else None
        if meta is not None:
            kept = crossing_keys(meta, vendor=self._vendor_meta)
            params["_meta"] = Raw(encode_value({**kept, **{key: meta[key] for key in ERA_KEYS if key in meta}}))
        self.notify(notification.method, params, MODERN_HEAD if self.modern else b"")

    def send_again(self, call: Call) -> None:
        """The same call in its next round, once what brought the last answer is done: a new id, a new deadline."""
        if self.pipe is not None:
            self.pipe.abort(call.handle)  # a stream that lingers after its answer says nothing about the next round
        asyncio.get_running_loop().call_soon(self._send_next, call)

    def _send_next(self, call: Call) -> None:
        if not call.done and call.ticket is not None:
            call.forwarded = self._clock.now()
            if call.timeout_s is not None:
                call.deadline = call.forwarded + call.timeout_s
            self.send(call.ticket)

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        for_roots = upstream_id in self._roots_asked
        call = self._close_question(upstream_id)
        if for_roots and call is not None and payload.startswith(_RESULT):
            payload = self._held_roots(call, Raw(payload[len(_RESULT) :]))
        if call is not None and call.caller.asker is not None:
            call.asking -= 1
            call.progressed = True
        if self.pipe is not None:
            payload = self.events.tasks.on_task_answer(self, upstream_id, payload)
            self.pipe.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (upstream_id, payload), b"", None)

    def _held_roots(self, asking: Asking, answer: Raw) -> bytes:
        result, held = hold_roots_untrusted(answer, self.allowed_folders(), os.path.realpath)
        if held:
            self.events.on_client_roots(self, asking.caller, held)
        return _RESULT + bytes(result)

    def cancel(self, pending: Pending, reason: str) -> None:
        """Tell the server that no call waits any more: close the stream, and notify where it is legacy or shared."""
        if self._no_longer(pending.upstream_id) is None or self.pipe is None:
            return
        if not self.modern or self.transport in ONE_FOR_ALL:
            self.notify(CANCELLED, {"requestId": pending.upstream_id, "reason": reason})
        self.pipe.abort(pending.handle)
        # Its open questions end with it, unanswered: a refusal that overtakes the cancellation could be acted upon.
        if isinstance(pending, Call) and pending.dialogue is not None:
            for upstream_id in pending.dialogue.questions:
                if self._asks.get(upstream_id) is pending:
                    self._withdraw(upstream_id, RAW_EMPTY)

    def suspend(self, call: Call) -> None:
        if self.in_flight.pop(call.upstream_id, None) is not None:
            self.suspended.add(call)

    def resume(self, call: Call) -> None:
        if self.suspended.pop(call.upstream_id) is not None:
            self.in_flight[call.upstream_id] = call

    def _no_longer(self, uid: int) -> Pending | None:
        return self.in_flight.pop(uid, None) or self.suspended.pop(uid)

    @property
    def in_use(self) -> bool:
        """Whether anybody would lose something if it ended now."""
        return bool(self.in_flight or self.suspended or self.booked)

    def principals(self) -> set[str]:
        """Whose calls are under way here."""
        calls = {pending.caller.principal.name for pending in self.in_flight.values() if isinstance(pending, Call)}
        return calls | self.suspended.principals

    # What comes in

    def waits(self, origin: Pending) -> bool:
        return origin.upstream_id in self.in_flight or origin.upstream_id in self.suspended

    def on_session(self, session: bytes) -> None:
        self.session = session

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        try:
            message = decode_untrusted(data)
        except CodecError as error:
            if self._has_batches and is_batch(data):
                return self._on_batch(data, origin)
            self._on_garbage(data, error)
            return False
        if type(message) is Response:
            try:
                pending = self.in_flight.pop(int(message.id))
            except KeyError:
                self._on_early_response(message)
                return False
            except ValueError:
                self._drop(message)
                return False
            pending.on_response(message, self.era)
            return pending is origin
        if type(message) is Notification:
            self._on_notification(message, origin)
        elif type(message) is Request:
            self._on_request(message, origin)
        return False

    @property
    def _has_batches(self) -> bool:
        return self.facts is not None and self.facts.version == BATCH_VERSION

    def _on_batch(self, data: bytes, origin: Pending | None) -> bool:
        try:
            parts = parts_untrusted(data)
        except CodecError as error:
            self._on_garbage(data, error)
            return False
        if len(parts) > BATCH_MAX:  # they are all handled at once, and others wait
            self._on_garbage(data, CodecError(INVALID_REQUEST, f"a batch of more than {BATCH_MAX} messages"))
            return False
        is_answered = False
        for part in parts:
            if is_batch(part):
                self._on_garbage(part, CodecError(INVALID_REQUEST, "a batch inside a batch"))
            elif self.on_message(part, origin):
                is_answered = True
        return is_answered

    def _on_early_response(self, response: Response) -> None:
        """The server did not wait for its client's answer; or no call waits."""
        call = self.suspended.pop(int(response.id))
        if call is None:
            self._drop(response)
        else:
            call.on_response(response, self.era)

    def _drop(self, response: Response) -> None:
        """The response answers no request of ours."""
        self.stray += 1
        self._count_unasked()
        if self.stray == 1:
            said = str(response.id[:40], "utf-8", "replace")
            log.info("link %s: an answer to no request, id %s; more are counted", self.name, said)

    def _on_notification(self, message: Notification, origin: Pending | None) -> None:
        self._count_unasked()
        self._take_notification(message, origin)

    def _take_notification(self, message: Notification, origin: Pending | None) -> None:
        method = message.method
        if method == PROGRESS:
            params = decode_object(message.params)
            try:
                token = int(bytes(params[PROGRESS_TOKEN])) if params else 0
            except (KeyError, ValueError):
                return
            pending = self.in_flight.get(token)
            if pending is not None and params is not None:
                pending.on_progress(params)
            elif params is not None and self.tasks:
                self.events.tasks.on_task_progress(self, token, params)
        elif method == LOG_MESSAGE:
            if self.tasks and self.events.tasks.on_task_log(self, message.params):
                return
            pending = self.whose(origin)
            if pending is not None:
                pending.on_log(message.params)
            else:
                self.events.on_log(self, message.params)
        elif method in CHANGES:
            if not self._is_old_news(message.params):
                self.events.on_changed(self, CHANGES[method])
        elif method == RESOURCE_UPDATED:
            doubled = self.doubled
            if not self._is_old_news(message.params) and (
                doubled is None or is_told_first(message.params, origin, doubled)
            ):
                self.events.on_resource_updated(self, message.params)
        elif method == ELICITATION_COMPLETE:
            self.events.on_elicitation_complete(self, message.params)
        elif method == CANCELLED:
            params = decode_object(message.params) or {}
            self._withdraw(bytes(params.get("requestId", b"")), message.params)
        elif method == (TASK_NEWS if self.modern else TASK_STATUS):
            self.events.tasks.on_task_status(self, message.params)
        elif method == ACKNOWLEDGED:
            listener = maybe_acknowledged(self.in_flight, message.params, origin)
            if listener is not None:
                listener.on_acknowledged(message.params)
            else:
                self.events.on_acknowledged(self, message.params)
        elif is_vendor_method(method):
            pending = self.whose(origin)
            if isinstance(pending, Call):
                pending.on_vendor_notification(message, self.era)
            else:
                self.events.on_vendor_notification(self, message)

    def _is_old_news(self, params: Raw) -> bool:
        """Told on a subscription that was replaced: the newer one tells it as well."""
        named = subscription_id(params) if self.modern else None
        return named is not None and 0 < named <= self._last_id and named not in self.in_flight

    def _on_request(self, request: Request, origin: Pending | None) -> None:
        self._count_unasked()
        if request.method == PING:
            self.respond(request.id, b'"result":{}')
            return
        if self.modern:
            self._refuse(request, "a 2026-07-28 server sends no requests")
            return
        if request.method == ROOTS_LIST and self.owner is None:
            self.on_asked(request.method, in_call=False)
            self.respond_roots(request)  # one client's roots must not move what all others reach
            return
        if self.events.tasks.on_task_request(self, request, origin):
            return
        self.on_asked(request.method, in_call=isinstance(origin, Call))
        pending = self.whose(origin)
        if isinstance(pending, Call):
            self.entrust(request, pending)
        elif not self.events.on_orphan_request(self, request):
            self._refuse(request, "the client this is for cannot be told from others with calls under way")

    def on_asked(self, method: str, *, in_call: bool) -> None:
        """The server asks a client. `in_call`: that of the call on whose stream it asks; else nothing but the calls
        under way says which."""

    def respond_roots(self, request: Request) -> None:
        """The operator's folders, whatever clients have."""
        self.respond(request.id, _RESULT + encode_roots(self.allowed_folders()))

    def entrust(self, request: Request, asking: Asking) -> None:
        """Let a client be asked; its answer comes back as `respond`."""
        fault = self.events.on_question(self, asking)
        if fault is not None:
            self.respond(request.id, b'"error":' + error_body(for_legacy(fault)))
            return
        self._asks[request.id] = asking
        if request.method == ROOTS_LIST:
            self._roots_asked.add(request.id)
        if isinstance(asking, Call):
            asking.open_dialogue().questions += (request.id,)
        asking.on_request(self, request)

    def awaits(self, upstream_id: bytes, asking: Asking) -> bool:
        """Whether the server still wants this answer."""
        return self._asks.get(upstream_id) is asking

    def _refuse(self, request: Request, why: str) -> None:
        self.respond(request.id, b'"error":' + error_body(Fault(METHOD_NOT_FOUND, why)))

    def whose(self, origin: Pending | None) -> Pending | None:
        """Whose call an unsolicited message belongs to. HTTP tells; on a shared pipe it has to be plain."""
        if isinstance(origin, Call):
            return origin
        principals = self.principals()
        if self.tasks and self.events.tasks.of_others(self, principals):
            return None  # a task of theirs may be speaking
        calls = [pending for pending in self.in_flight.values() if isinstance(pending, Call)]
        return maybe_speaking(calls, self.suspended, principals)

    def _count_unasked(self) -> None:
        pause_s = self.noise.count_unasked(self._clock.now())
        if pause_s is not None and self.pipe is not None:
            self.pipe.throttle(pause_s)

    def _on_garbage(self, data: bytes, error: CodecError) -> None:
        """Noise is skipped and counted. An unreadable answer still belongs to a call, which must not time out."""
        is_too_much = self.noise.count_garbage()
        uid = maybe_answer_id(data)
        origin = self.in_flight.get(uid) or self.suspended.get(uid)
        if origin is not None:
            self.on_undelivered(origin, Undelivered(Trouble.MALFORMED, f"its answer cannot be read: {error}"))
        elif is_too_much:
            self.on_pipe_lost(f"it sent more than {self.noise.garbage_max} messages that are not JSON-RPC")

    # What goes wrong

    def on_oversized(self, found: Oversized, origin: Pending | None) -> None:
        """The call that a message over the limit answers fails; a question gets an error; the rest is noted."""
        pending = self._no_longer(_number(found.id)) if found.kind is MessageKind.RESPONSE else None
        if pending is not None:
            pending.on_failed(result_too_large(found.limit), Outcome.ERROR)
        elif found.kind is MessageKind.REQUEST:
            self.respond(found.id, b'"error":' + error_body(message_too_large(found.limit)))
        log.warning("link %s: a message over %d bytes was left out (%s)", self.name, found.limit, found.kind.value)
        if found.kind is MessageKind.UNKNOWN and self.noise.count_garbage():
            self.on_pipe_lost(f"it sent more than {self.noise.garbage_max} messages that are not JSON-RPC")

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        if what.trouble is Trouble.UNAUTHORISED:
            if self.renewable and isinstance(origin, Call) and self._may_be_renewed(origin):
                self._no_longer(origin.upstream_id)
                origin.renewed = True
                self.refused.append((origin, what))  # not looked at by the server: it may be sent again
                origin = None
            self.events.on_unauthorised(self, what)
        elif what.trouble is Trouble.SESSION_LOST:
            self.events.on_session_lost(self)
        elif what.trouble is Trouble.UNREACHABLE:
            self.events.on_unreachable(self)
        if origin is None:
            self._note_unsent(what)
            return
        if self._no_longer(origin.upstream_id) is None:
            return
        match what.trouble:
            case Trouble.SESSION_LOST if isinstance(origin, Call) and origin.ticket is not None:
                self._to_resend.append(origin)  # refused before it was looked at: sent again once greeted
            case Trouble.SESSION_LOST if isinstance(origin, Call):
                self.lose(origin, what)
            case Trouble.UNAUTHORISED if isinstance(origin, Call) and origin.ticket is None:
                self.lose(origin, what)
            case Trouble.MALFORMED if isinstance(origin, Call):
                fault = Fault(INTERNAL_ERROR, "the server's answer cannot be used", {"reason": "malformed_answer"})
                origin.on_failed(fault, Outcome.ERROR)
            case Trouble.TOO_LARGE:
                origin.on_failed(result_too_large(what.limit), Outcome.ERROR)
            case Trouble.BUSY:
                origin.on_failed(BUSY, Outcome.REFUSED)
            case Trouble.UNAUTHORISED:
                origin.on_failed(unauthorised_fault(what), Outcome.ERROR)
            case Trouble.LOST | Trouble.MALFORMED:
                origin.on_failed(self._lost_fault(what.detail, "unknown", what), Outcome.LOST)
            case Trouble.REFUSED if what.status >= 500:  # it failed in the middle, or a proxy did not wait for it
                origin.on_failed(self._lost_fault(what.detail, "unknown", what), Outcome.LOST)
            case _:
                origin.on_failed(self._lost_fault(what.detail, "not_sent", what), Outcome.LOST)

    def _may_be_renewed(self, call: Call) -> bool:
        """A call without a ticket was parked: the server has had it, and it is never sent again."""
        return call.ticket is not None and not call.renewed and self.waits(call)

    def lose(self, call: Call, what: Undelivered) -> None:
        """The server had it and will not answer it any more."""
        call.on_failed(self._lost_fault(what.detail, "unknown", what), Outcome.LOST)

    def _note_unsent(self, what: Undelivered) -> None:
        """An answer, a cancellation or a notice of ours did not arrive; no call waits for it, so it is logged."""
        if self.unsent == self._unsent_told:
            log.warning("link %s: a message was not delivered: %s; more are counted", self.name, what.detail)
        self.unsent += 1

    def on_host_denied(self, denied: DeniedHost) -> None:
        """The sandbox kept the server from a host: the call that waits is told. Where several wait, none is told of the
        host, which may be another's matter."""
        if len(self.denied) < DENIED_MAX:
            self.denied.setdefault(denied.place, denied)
        call = self.whose(None)
        if isinstance(call, Call):
            call.sink = add_note(call.sink, f"Interlock: {denied.text}")
            return
        for call in self.in_flight.values():
            if isinstance(call, Call):
                call.sink = add_note(call.sink, _SOMETHING_DENIED.format(self.name))

    def on_pipe_lost(self, reason: str) -> None:
        self.events.on_pipe_lost(self, reason)

    def fail_all(self, reason: str) -> None:
        """The connection is gone: everybody waiting is told, and every question to a client is taken back."""
        self.noise.begin(BANNER_MAX)
        waiting: list[Pending] = [*self.in_flight.values(), *self.suspended.pop_all()]
        self.in_flight = {}
        for pending in waiting:
            pending.on_failed(self._lost_fault(reason, "unknown"), Outcome.LOST)
        to_resend, self._to_resend = self._to_resend, []
        for call in to_resend:
            call.on_failed(self._lost_fault(reason, "not_sent"), Outcome.LOST)
        refused, self.refused = self.refused, []
        for call, _ in refused:
            call.on_failed(self._lost_fault(reason, "not_sent"), Outcome.LOST)
        for upstream_id in list(self._asks):
            self._withdraw(upstream_id, RAW_EMPTY)

    def _withdraw(self, upstream_id: bytes, params: Raw) -> None:
        """The server no longer wants this answer, or is no longer there."""
        call = self._close_question(upstream_id)
        if call is None:
            return
        if call.caller.asker is not None:
            call.asking -= 1
            call.caller.asker.withdraw(self, upstream_id, params)
        elif isinstance(call, Call):
            call.handler.withdraw_question(call, upstream_id)

    def _close_question(self, upstream_id: bytes) -> Asking | None:
        """On whose behalf a question was asked that is open no more."""
        asking = self._asks.pop(upstream_id, None)
        self._roots_asked.discard(upstream_id)
        if isinstance(asking, Call) and asking.dialogue is not None:
            dialogue = asking.dialogue
            dialogue.questions = tuple(one for one in dialogue.questions if one != upstream_id)
        return asking

    def _lost_fault(self, detail: str, outcome: str, what: Undelivered | None = None) -> LostFault:
        wall, retry_after_ms = self._clock.wall(), self.retry_after_ms
        return lost_fault(detail, outcome, wall=wall, retry_after_ms=retry_after_ms, what=what, reason=self.gone)

    # What the keeper says

    def greeted(self, facts: ServerFacts) -> None:
        super().greeted(facts)
        is_whole = self.own is None or self.own.is_whole
        self.tasks = is_whole and offers_tasks(facts.capabilities, facts.era)
        makes_others = self.modern and (self.tasks or not is_whole)
        self.call_type = self.task_call_type if makes_others else Call
        self.connection += 1
        self.noise.begin(GARBAGE_MAX)
        self._unsent_told = self.unsent
        to_resend, self._to_resend = self._to_resend, []
        for call in to_resend:
            if not call.done and call.ticket is not None:
                self.send(call.ticket)


def _number(answered: bytes) -> int:
    """The id of a request of ours; 0 for whatever else a server may answer."""
    return int(answered) if answered.isdigit() and len(answered) <= ID_DIGITS_MAX else 0
