"""A link to a server over a pipe: requests go out under ids of this link, answers go to the calls that wait for them.

Theory of operation. All clients share the link. Every request gets an id of this link and waits in one of these places,
never in two:

    waiting.in_flight          sent, the server works on it (calls, and inquiries of the node)
    waiting.suspended          the server asked the client something
    failed (to be resent)      the server forgot the session before it read the call; sent again after the next greeting
    failed.refused             the server refused our credential; sent again once there is another

`on_message` finds the request by its id. Messages without the id of a request go to `questions` (requests of the server
to its clients) or `notifications`. They belong to the call on whose stream they arrived; on a pipe that all calls share
it must be clear which call they are for (`find_call`).

The link renames nothing (the route did), writes `_meta` as the era of the server wants it (`rewrite_meta`), and tells
its keeper about everything it did not ask for. The keeper connects and reconnects it: `pipe` is None while there is no
connection, and a keeper that lost the connection calls `fail_all`, so that no call waits in vain.
"""

import asyncio
import logging
import os
import re
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from interlock import __version__
from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.config.plan import Dial, ServerPlan, Spawn
from interlock.config.plan_servers import DefinitionPolicy
from interlock.core.calls.call import Call, CallFactory, Inquiry, Outcome, Pending
from interlock.core.calls.caller import Caller, add_note
from interlock.core.calls.check import Admitted
from interlock.core.clock import Clock
from interlock.links.link import Link, LinkEvents, ServerFacts
from interlock.links.pipes import HttpPipe, Pipe, Trouble, Undelivered
from interlock.links.server_messages import FailedRequests, ServerNotifications, ServerQuestions, WaitingRequests
from interlock.mcp import methods
from interlock.mcp.meta import ERA_KEYS, PROGRESS_TOKEN, UNCHANGED_KEYS, crossing_keys, stamp_modern
from interlock.mcp.methods import BATCH_VERSION, LATEST_MODERN, META_CAPABILITIES, META_TASK, MODERN, Era
from interlock.mcp.modern_requests import MODERN_HEAD, modern_head
from interlock.process.sandbox.mounts import EgressDenial
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import LargeParams, Notification, Request, Response, decode_untrusted, encode_call
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized, message_too_large, result_too_large
from interlock.wire.refusal import INVALID_REQUEST, Refusal

if TYPE_CHECKING:
    from interlock.links.own_links import AutoSharing, OwnLinks

log = logging.getLogger("interlock.links")

OUR_INFO: Final = {"name": "interlock", "title": "Interlock", "version": __version__}
MODERN_META: Final[dict[str, Any]] = {
    methods.META_VERSION: LATEST_MODERN,
    META_CAPABILITIES: {},
    methods.META_CLIENT: OUR_INFO,
}
# The same, where a server must know that tasks are understood.
TASKS_META: Final[dict[str, Any]] = {**MODERN_META, META_CAPABILITIES: {"extensions": {methods.TASKS_EXTENSION: {}}}}
ID_DIGITS_MAX: Final = 18  # of a request of ours
SHARED_STREAM_TRANSPORTS: Final = frozenset(("stdio", "websocket"))  # no request has a stream that could be closed
DENIED_MAX: Final = 64  # hosts that are kept to be shown
BATCH_MAX: Final = 1000  # messages of one batch of a server: they are all handled in one turn, and others wait
GARBAGE_MAX: Final = 1000  # messages of one connection that are not JSON-RPC, before it is given up
BANNER_MAX: Final = 100  # the same before the greeting: a banner is shorter (AIP-transport-6)
UNSOLICITED_PER_S: Final = 1000  # messages, before reading stops for the rest of the second
# Progress that a client asked for: this many notifications cost as much as one without a request. A call may have
# 10,000 of them without a pause, and so may several such calls at once.
PROGRESS_PER_NOTIFICATION: Final = 50
RECEIVERS_PER_NOTIFICATION: Final = 10  # this many receivers cost as much as one more notification

_EGRESS_DENIED: Final = (
    "Interlock: egress_denied: this server wanted to reach a host that it may not while this call was under way;"
    " interlock links logs {} names it"
)
_LOOKS_LIKE_ANSWER: Final = re.compile(rb'\s*\{(?=.{0,64}"jsonrpc")(?!.{0,300}"method")', re.DOTALL)
_ANSWER_ID: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,18})\b')


class Noise:
    """Counter of the unrequested input on one connection: bytes that are no message, and notifications. It says when
    there is too much.
    """

    __slots__ = ("_awaited", "_garbage", "_since", "_unsolicited", "garbage_max", "total")

    def __init__(self) -> None:
        self.total = 0  # messages that are not JSON-RPC, over all connections
        self.garbage_max = BANNER_MAX
        self._garbage = 0
        self._unsolicited = 0
        self._awaited = 0  # progress since the last that counted
        self._since = 0.0

    def begin(self, garbage_max: int) -> None:
        """Reset the count of unreadable messages and set its limit, for a new connection or after the handshake."""
        self._garbage, self.garbage_max = 0, garbage_max

    def count_garbage(self) -> bool:
        """Count a message that is not JSON-RPC. Return True if the connection has sent too many of them."""
        self.total += 1
        self._garbage += 1
        return self._garbage > self.garbage_max

    def count_unsolicited(self, now: float) -> float | None:
        """Count a notification. Return the seconds for which reading should pause, or None if no pause is needed."""
        if now - self._since >= 1.0:
            self._since, self._unsolicited = now, 0
        self._unsolicited += 1
        return max(0.0, 1.0 - (now - self._since)) if self._unsolicited >= UNSOLICITED_PER_S else None

    def count_progress(self, now: float) -> float | None:
        """Count a progress notification that a client asked for. Return the seconds for which reading should pause, or
        None.
        """
        self._awaited += 1
        if self._awaited < PROGRESS_PER_NOTIFICATION:
            return None
        self._awaited = 0
        return self.count_unsolicited(now)

    def count_receivers(self, count: int) -> None:
        """Count the clients to which a notification was passed on: ten of them count as one more notification."""
        self._unsolicited += count // RECEIVERS_PER_NOTIFICATION


class ConnectedLink(Link):
    """Link to an MCP server over a pipe."""

    session = b""
    unset: tuple[str, ...] = ()  # environment variables that it needs and the node does not have
    reach: Spawn | Dial | None = None  # where the node finds the server; None: the server connects to the node
    result_bytes: int | None = None  # limit for an answer of the server; None: limits.message_bytes

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
        self.waiting = WaitingRequests()
        self.in_flight = self.waiting.in_flight  # the same dict: every call looks at it twice
        self.questions = ServerQuestions(self)
        self.notifications = ServerNotifications(self)
        self.failed = FailedRequests(self, clock)
        self.noise = Noise()
        self.connection = 0  # counts greetings: what a server remembers may end with one
        # Hosts that the server, since it started, wanted to reach and may not.
        self.denied: dict[str, EgressDenial] = {}
        self._vendor_meta = vendor_meta
        self.last_id = 0

    @property
    def active_principals(self) -> Set[str]:
        return self.waiting.principals

    @property
    def is_connected(self) -> bool:
        return self.pipe is not None

    @property
    def task_call_type(self) -> CallFactory:  # type: ignore[override]
        tasks = self.events.tasks
        return tasks.call_type if self.own is None or self.own.is_whole else tasks.per_user_call_type

    # Sending

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        if (pipe := self.pipe) is None:
            fault = self.failed.build_refusal("the link went away before the call was sent", "not_sent")
            call.on_failed(fault, Outcome.LOST)
            return
        self.last_id = uid = self.last_id + 1
        call.upstream_id = uid
        call.link = self
        call.ticket = admitted
        params = call.params
        if self.modern:
            head = call.head
            if "inputResponses" in params:
                self.questions.limit_answers(call)
            if call.caller.era is not MODERN or not UNCHANGED_KEYS.issuperset(call.meta):
                self._rewrite_meta(call, uid)
        else:
            head = b""
            if "_meta" in params:
                self._rewrite_meta(call, uid)
        self.in_flight[uid] = call
        self.calls += 1
        if type(params) is LargeParams and isinstance(pipe, HttpPipe):
            call.handle = pipe.send_pieces(codec.call_pieces(uid, call.method, params), head, call)
            return
        call.handle = pipe.send(encode_call(uid, call.method, params), head, call)

    def _rewrite_meta(self, call: Call, uid: int) -> None:
        task = (
            self.events.tasks.find_related_task(self, call.caller, call.meta[META_TASK])
            if META_TASK in call.meta
            else None
        )
        rewrite_meta(call, uid, modern=self.modern, vendor=self._vendor_meta, task=task)

    def send_again(self, call: Call) -> None:
        """Send a call once more with the answers to its server's questions, under a new id and with a new deadline."""
        if self.pipe is not None:
            # A stream that lingers after its answer says nothing about the next round.
            self.pipe.abort(call.handle)

        def send_next_round() -> None:
            if not call.done and call.ticket is not None:
                call.forwarded = self._clock.now()
                if call.timeout_s is not None:
                    call.deadline = call.forwarded + call.timeout_s
                self.send(call.ticket)

        asyncio.get_running_loop().call_soon(send_next_round)

    def ask(self, method: str, params: dict[str, Any], head: bytes = b"") -> Inquiry:
        """Send a request that the node makes by itself. Await `inquiry.future`, and `cancel` the inquiry to give up."""
        inquiry = Inquiry()
        self.attach(inquiry, method, params, head)
        return inquiry

    async def request(self, method: str, params: dict[str, Any], within_s: float) -> Response | Refusal | None:
        """Send a request that the node makes by itself, in the era of the server, and return the answer.

        If there is no answer within the time, cancel the request and return None.
        """
        if self.modern:
            inquiry = self.ask(method, {"_meta": MODERN_META, **params}, modern_head(method))
        else:
            inquiry = self.ask(method, params)
        try:
            return await asyncio.wait_for(inquiry.future, within_s)
        except TimeoutError:
            self.cancel(inquiry, "timeout")
            return None

    def attach(self, pending: Pending, method: str, params: dict[str, Any], head: bytes = b"") -> None:
        """Send a request. Its answer is delivered to `pending`."""
        self.last_id = uid = self.last_id + 1
        pending.upstream_id = uid
        if self.pipe is None:
            pending.on_failed(self.failed.build_refusal("the link is not connected", "not_sent"), Outcome.LOST)
            return
        self.in_flight[uid] = pending
        message = codec.encode_request(b"%d" % uid, method.encode(), codec.encode_value(params) if params else b"")
        pending.handle = self.pipe.send(message, head, pending)

    def notify(self, method: str, params: dict[str, Any] | None = None, head: bytes = b"") -> None:
        if self.pipe is not None:
            body = codec.encode_value(params) if params else b""
            self.pipe.send(codec.encode_notification(codec.encode_value(method)[1:-1], body), head, None)

    def forward_notification(self, notification: Notification) -> None:
        """Send a vendor-specific notification of a client to the server."""
        params = codec.decode_object(notification.params) if notification.params else {}
        if params is None:
            return
        meta = codec.decode_object(params["_meta"]) if "_meta" in params else None
        if meta is not None:
            of_era = {key: meta[key] for key in ERA_KEYS if key in meta}
            crossing = crossing_keys(meta, vendor=self._vendor_meta)
            params["_meta"] = Raw(codec.encode_value({**crossing, **of_era}))
        self.notify(notification.method, params, MODERN_HEAD if self.modern else b"")

    def cancel(self, pending: Pending, reason: str) -> None:
        """Tell the server that the answer to this request is no longer needed.

        A legacy server, and any server on a shared stream, gets a notification. The stream of the request is closed if
        it has one. Nothing is sent if the request was answered already or the link is not connected.
        """
        if self.waiting.pop(pending.upstream_id) is None or self.pipe is None:
            return
        if not self.modern or self.transport in SHARED_STREAM_TRANSPORTS:
            self.notify(methods.CANCELLED, {"requestId": pending.upstream_id, "reason": reason})
        self.pipe.abort(pending.handle)
        if isinstance(pending, Call):
            self.questions.withdraw_of(pending)

    def suspend(self, call: Call) -> None:
        self.waiting.suspend(call)

    def resume(self, call: Call) -> None:
        self.waiting.resume(call)

    # Receiving (PipeOwner)

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        """Handle a message of the server. Return whether it was the answer to `origin`.

        The result is also False if the answered call was suspended because the server had asked its client.
        Almost every message is a response to a call in flight, so that is the first case and costs one dict lookup.
        """
        try:
            message = decode_untrusted(data)
        except codec.CodecError as error:
            if self.facts is not None and self.facts.version == BATCH_VERSION and codec.is_batch(data):
                return self._on_batch(data, origin)
            self._on_garbage(data, error)
            return False
        if type(message) is Response:
            try:
                pending = self.in_flight.pop(int(message.id))
            except KeyError:  # its call waits for the client, or it answers no request
                if (call := self.waiting.pop_suspended(int(message.id))) is None:
                    self._drop(message)
                else:
                    call.on_response(message, self.era)
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

    def _on_batch(self, data: bytes, origin: Pending | None) -> bool:
        """Handle the messages of a batch. Only servers of BATCH_VERSION may send one."""
        try:
            messages = codec.split_batch_untrusted(data)
        except codec.CodecError as error:
            self._on_garbage(data, error)
            return False
        if len(messages) > BATCH_MAX:
            self._on_garbage(data, codec.CodecError(INVALID_REQUEST, f"a batch of more than {BATCH_MAX} messages"))
            return False
        is_answered = False
        for message in messages:
            if codec.is_batch(message):
                self._on_garbage(message, codec.CodecError(INVALID_REQUEST, "a batch inside a batch"))
            elif self.on_message(message, origin):
                is_answered = True
        return is_answered

    def _drop(self, response: Response) -> None:
        """Count a response that answers no request of this link."""
        self.stray += 1
        self._count_unsolicited()
        if self.stray == 1:
            answered_id = str(response.id[:40], "utf-8", "replace")
            log.info("link %s: an answer to no request, id %s; more are counted", self.name, answered_id)

    def _on_notification(self, message: Notification, origin: Pending | None) -> None:
        if message.method == methods.PROGRESS and self.notifications.deliver_awaited_progress(message.params):
            self._throttle(self.noise.count_progress(self._clock.now()))
            return
        self._count_unsolicited()
        self.notifications.deliver(message, origin)

    def _on_request(self, request: Request, origin: Pending | None) -> None:
        self._count_unsolicited()
        self.questions.receive(request, origin)

    def _count_unsolicited(self) -> None:
        self._throttle(self.noise.count_unsolicited(self._clock.now()))

    def _throttle(self, pause_s: float | None) -> None:
        if pause_s is not None and self.pipe is not None:
            self.pipe.throttle(pause_s)

    def find_call(self, origin: Pending | None) -> Pending | None:
        """Return the call to which a message without an id belongs, or None if several calls are possible.

        `origin` is the request on whose stream the message arrived, or None on a transport with one shared stream.
        """
        if isinstance(origin, Call):
            return origin
        if self.tasks and self.events.tasks.of_others(self, self.waiting.principals):
            # The message may be about a task of another principal.
            return None
        return self.waiting.find_speaking_call()

    # What servers may ask for, which subclasses decide

    def allowed_folders(self) -> tuple[str, ...]:
        """Return the folders that the operator allows the server to see as roots. Symbolic links are resolved."""
        return ()

    def on_asked(self, method: str, *, in_call: bool) -> None:
        """Note that the server sent a request to a client, such as sampling. `in_call` is true if the request came on
        the stream of a call.
        """

    # Failing

    def _on_garbage(self, data: bytes, error: codec.CodecError) -> None:
        """Count a message that cannot be read and skip it.

        If it seems to be the answer to a call, that call fails at once.
        """
        is_too_much = self.noise.count_garbage()
        match = _ANSWER_ID.search(data, 0, 256) if _LOOKS_LIKE_ANSWER.match(data) is not None else None
        if match is not None and (origin := self.waiting.get(int(match[1]))) is not None:
            self.on_undelivered(origin, Undelivered(Trouble.MALFORMED, f"its answer cannot be read: {error}"))
        elif is_too_much:
            self.on_pipe_lost(f"it sent more than {self.noise.garbage_max} messages that are not JSON-RPC")

    def on_oversized(self, oversized: Oversized, origin: Pending | None) -> None:
        """Handle a message over the size limit, which was not read.

        If it is an answer, its call fails. If it is a question, the server gets an error.
        """
        is_response = oversized.kind is MessageKind.RESPONSE
        is_ours = oversized.id.isdigit() and len(oversized.id) <= ID_DIGITS_MAX
        pending = self.waiting.pop(int(oversized.id)) if is_response and is_ours else None
        if pending is not None:
            pending.on_failed(result_too_large(oversized.limit), Outcome.ERROR)
        elif oversized.kind is MessageKind.REQUEST:
            self.questions.respond(oversized.id, b'"error":' + codec.error_body(message_too_large(oversized.limit)))
        kind = oversized.kind.value
        log.warning("link %s: a message over %d bytes was left out (%s)", self.name, oversized.limit, kind)
        if oversized.kind is MessageKind.UNKNOWN and self.noise.count_garbage():
            self.on_pipe_lost(f"it sent more than {self.noise.garbage_max} messages that are not JSON-RPC")

    def on_undelivered(self, origin: Pending | None, what: Undelivered) -> None:
        self.failed.take(origin, what)

    def on_pipe_lost(self, reason: str) -> None:
        self.events.on_pipe_lost(self, reason)

    def on_host_denied(self, denied: EgressDenial) -> None:
        """Add a note to the waiting call that the sandbox denied the server access to a host.

        If several calls wait, none of them gets the name of the host, because it may concern another client.
        """
        if len(self.denied) < DENIED_MAX:
            self.denied.setdefault(denied.place, denied)
        if isinstance(call := self.find_call(None), Call):
            call.sink = add_note(call.sink, f"Interlock: {denied.client_text}")
            return
        for call in self.waiting.calls_in_flight:
            call.sink = add_note(call.sink, _EGRESS_DENIED.format(self.name))

    # Commands of the keeper

    def greeted(self, facts: ServerFacts) -> None:
        super().greeted(facts)
        is_whole = self.own is None or self.own.is_whole
        self.tasks = is_whole and self.offers_tasks
        makes_others = self.modern and (self.tasks or not is_whole)
        self.call_type = self.task_call_type if makes_others else Call
        self.connection += 1
        self.noise.begin(GARBAGE_MAX)
        self.failed.resend()

    def fail_all(self, reason: str) -> None:
        """End every call and withdraw every question, because the connection is lost."""
        self.noise.begin(BANNER_MAX)
        self.failed.fail_all(reason)
        self.questions.withdraw_all()


def rewrite_meta(call: Call, upstream_id: int, *, modern: bool, vendor: bool, task: Any) -> None:
    """Replace `call.params["_meta"]` by one in the form of the server's era, from which the keys are removed that the
    server must not see.

    `modern` is true for a server of the modern era. `vendor` says whether keys that MCP does not define are passed on.
    `task` is the task that the call says it belongs to, with the server's id.
    """
    if not call.meta:
        if modern:
            call.params["_meta"] = call.caller.stamped()
        else:
            call.params.pop("_meta", None)
        return
    meta: dict[str, Raw] = {}
    if not ERA_KEYS.issuperset(call.meta):
        meta = crossing_keys(call.meta, vendor=vendor)
        if task is not None:
            meta[META_TASK] = Raw(codec.encode_value(task))
    if modern and call.caller.era is Era.MODERN:
        client, log_level = call.meta.get(methods.META_CLIENT), call.meta.get(methods.META_LOG_LEVEL)
        stamp_modern(meta, capabilities=call.meta[META_CAPABILITIES], client=client, log_level=log_level)
    elif modern:
        call.caller.stamp(meta)
    elif call.caller.era is Era.MODERN and call.hold is None and bytes(call.meta[META_CAPABILITIES]) != b"{}":
        # The link is shared and declared what any client may have; this says what the client of this call can do. A
        # call that a person approves carries nothing beside what was shown.
        meta[META_CAPABILITIES] = call.meta[META_CAPABILITIES]
    if call.progress_token is not None:
        meta[PROGRESS_TOKEN] = Raw(b"%d" % upstream_id)
    if meta:
        call.params["_meta"] = meta
    else:
        call.params.pop("_meta", None)


class ServerLink(ConnectedLink):
    """Link to a server that the node starts or connects to, as the configuration or a driver describes it."""

    is_asked_about_added = True

    def __init__(
        self,
        plan: ServerPlan,
        events: LinkEvents,
        clock: Clock,
        *,
        vendor_meta: bool,
        own: "OwnLinks | None" = None,
        sharing: "AutoSharing | None" = None,
        shared: Link | None = None,
        owner: str | None = None,
        client: Caller | None = None,
    ) -> None:
        """Create the link. `own` and `sharing` are for a link that all clients share. For any other link, `shared` is
        the shared link to the same server; only the principal `owner` and the session `client` may use it.
        """
        kind, transport = ("dialled", "http") if isinstance(plan.reach, Dial) else ("spawned", "stdio")
        super().__init__(plan.segment, events, clock, kind=kind, transport=transport, vendor_meta=vendor_meta)
        self.plan = plan
        self.reach = plan.reach
        self.unset = plan.unset
        self.classes = plan.classes
        self.timeout_s = plan.timeout_s
        self.result_bytes = plan.result_bytes
        self.own = own
        self.shared = shared
        self.owner = owner
        self.client = client
        self._sharing = sharing

    def definition_policy(self, name: str, kind: str) -> DefinitionPolicy:
        return self.plan.definitions

    def greeted(self, facts: ServerFacts) -> None:
        if self._sharing is not None:
            self.own = self._sharing.find_own(self, facts)
            self.own_of_legacy = self._sharing.find_own_of_legacy(self, facts)
        super().greeted(facts)

    def on_asked(self, method: str, *, in_call: bool) -> None:
        if self._sharing is not None:
            self.own = self._sharing.on_asked(self, method, in_call=in_call)
        elif isinstance(self.shared, ServerLink) and self.owner is None:  # it is of several clients too
            self.shared.on_asked(method, in_call=in_call)

    def allowed_folders(self) -> tuple[str, ...]:
        if (roots := self.plan.roots) is not None:
            return tuple(os.path.realpath(path) for path in roots)
        if not isinstance(self.reach, Spawn):
            return ()
        path_words = (word for word in self.reach.command if word.startswith(("/", ".")))
        paths = ((self.reach.cwd or Path()) / word for word in path_words)
        return tuple(os.path.realpath(path) for path in paths if path.is_dir())
