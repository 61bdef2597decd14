"""One server, seen from the node: messages out under our own ids, answers back to whoever waits.

A link is shared by all clients. It takes only what the guard admitted, renames nothing itself (the route did), stamps
the era its server speaks, and tells its keeper about everything nobody asked for. Its life (connecting, listing,
coming back) is the keeper's.
"""

import asyncio
import logging
import re
from collections import deque
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.config.plan import Dial, ServerPlan, Spawn
from interlock.protocol.ax.hop_metadata import ADOPTED, Offer
from interlock.protocol.jsonrpc.codec import (
    decode_object,
    decode_untrusted,
    encode_notification,
    encode_request,
    encode_value,
)
from interlock.protocol.jsonrpc.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    TOOL_DEGRADED,
    CodecError,
    Fault,
    error_body,
    for_legacy,
)
from interlock.protocol.jsonrpc.messages import Notification, Request, Response
from interlock.protocol.mcp.eras import LATEST_MODERN, MODERN, Era
from interlock.protocol.mcp.meta import ERA_KEYS, PROGRESS_TOKEN, RAW_EMPTY, UNCHANGED_KEYS, crossing_keys, stamp_modern
from interlock.protocol.mcp.methods import (
    ACKNOWLEDGED,
    CANCELLED,
    ELICITATION_COMPLETE,
    LOG_MESSAGE,
    META_CAPABILITIES,
    META_CLIENT,
    META_LOG_LEVEL,
    META_TASK,
    PING,
    PROGRESS,
    PROMPTS_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_CHANGED,
    TASK_NEWS,
    TASK_STATUS,
    TOOLS_CHANGED,
)
from interlock.protocol.mcp.tasks import offers_tasks
from interlock.runtime.base.clock import Clock, rfc3339
from interlock.runtime.base.link_state import RETRY_AFTER_MS, LinkState, Outlook, Standing
from interlock.runtime.calls.budgets import Account
from interlock.runtime.calls.call import Call, CallFactory, Inquiry, Outcome, Pending
from interlock.runtime.calls.caller import Asking
from interlock.runtime.calls.guard import Admitted
from interlock.runtime.calls.refusals import BUSY
from interlock.runtime.credentials.consents import Consent
from interlock.runtime.links.link_events import LinkEvents
from interlock.runtime.links.listen_request import Listener, subscription_id
from interlock.runtime.links.pipes import Pipe, Trouble, Undelivered

log = logging.getLogger("interlock.links")

GARBAGE_MAX: Final = 1000  # messages of one connection that are not JSON-RPC, before it is given up
NOISE_MAX: Final = 100  # of them before it is greeted: a banner is shorter (AIP-transport-6)
CHATTER_PER_S: Final = 1000  # notifications per second, before we stop reading for the rest of it
_LOOKS_LIKE_ANSWER: Final = re.compile(rb'\s*\{(?=.{0,64}"jsonrpc")(?!.{0,300}"method")', re.DOTALL)
_ANSWER_ID: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,18})\b')
MODERN_HEAD: Final = b"mcp-protocol-version: %b\r\n" % LATEST_MODERN.encode()
ONE_FOR_ALL: Final = frozenset(("stdio", "websocket"))  # no request has a stream of its own that could be closed
CHANGES: Final = {TOOLS_CHANGED: "tools", PROMPTS_CHANGED: "prompts", RESOURCES_CHANGED: "resources"}


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server said of itself when greeted."""

    era: Era
    version: str
    name: str = ""
    server_version: str = ""
    capabilities: dict[str, Raw] = {}
    instructions: str | None = None


class Crowded(Exception):
    """There is no room for another user's link: all that could make room have calls under way."""


class Personal(Protocol):
    """Every user's own link to a server that wants to know them."""

    def ready(self, principal: str) -> "Link | None":
        """The user's link, when it can be used at once."""

    async def open(self, principal: str) -> "Link | Consent":
        """The same, however long it takes; or what the user has to agree to first.

        Raises Unobtainable, StoreError, Crowded.
        """

    @property
    def links(self) -> "list[Link]": ...


class Link:
    def __init__(
        self, plan: ServerPlan, events: LinkEvents, clock: Clock, *, vendor_meta: bool, offer: Offer = ADOPTED
    ) -> None:
        self.plan = plan
        self.offer = offer
        self.segment = plan.segment
        self.kind = "dialled" if isinstance(plan.reach, Dial) else "spawned"
        self.transport = "http" if isinstance(plan.reach, Dial) else "stdio"
        self.pipe: Pipe | None = None
        self.facts: ServerFacts | None = None
        self.standing = Standing(LinkState.CONNECTING, None, clock.wall())
        self.in_flight: dict[int, Pending] = {}
        self.booked = 0  # clients' calls under way; our own questions do not count
        self.calls = 0
        self.errors = 0
        self.restarts = 0
        self.stray = 0  # answers nobody waits for
        self.unsent = 0  # messages of ours that ask nothing and did not arrive
        self._unsent_told = 0  # of them when the link was last greeted
        self.latencies: deque[float] = deque(maxlen=100)
        self.pid: int | None = None
        self.events = events  # its keeper, for as long as there is one
        self._clock = clock
        self._vendor_meta = vendor_meta
        self.modern = False
        self.era = Era.LEGACY
        self.tasks = False  # it makes tasks of calls
        self.connection = 0  # counts greetings: what a server remembers may end with one
        self._last_id = 0
        self.noise = 0  # messages that are not JSON-RPC, over all connections
        self._garbage = 0
        self._garbage_max = NOISE_MAX
        self._chatter = 0
        self._chatter_since = 0.0
        self.aside: dict[int, Call] = {}  # calls that wait for their clients, by their ids here
        self._aside_of: dict[str, int] = {}  # principal -> how many of them
        self._asks: dict[bytes, Asking] = {}  # the server's questions under way, and on whose behalf each is
        self._parked: list[Call] = []
        self.renewable = False  # whether another credential can be had when the server refuses ours
        self.refused: list[tuple[Call, Undelivered]] = []
        self.doubled: dict[bytes, dict[int, int]] | None = None  # resource -> updates told by each of two subscriptions
        self.personal: Personal | None = None  # each user's own link to the same server, where they have their own
        self.call_type: CallFactory = Call  # of a tools/call
        self.checks_input = False  # whether a call's arguments are compared with a contract
        self.asks: frozenset[str] = frozenset()  # tools of which a person confirms every call, by their own names

    @property
    def sandboxed(self) -> bool | None:
        """None for a server that somebody else started."""
        reach = self.plan.reach
        return reach.sandbox is not None if isinstance(reach, Spawn) else None

    # What goes out

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        pipe = self.pipe
        if pipe is None:
            call.on_failed(self._lost("the link went away before the call was sent", "not_sent"), Outcome.LOST)
            return
        self._last_id = uid = self._last_id + 1
        call.upstream_id = uid
        call.link = self
        call.ticket = admitted
        modern = self.modern
        if modern:
            if call.caller.era is not MODERN or not UNCHANGED_KEYS.issuperset(call.meta):
                self._rewrite_meta(call, uid)
        elif "_meta" in call.params:
            self._rewrite_meta(call, uid)
        self.in_flight[uid] = call
        self.calls += 1
        message = encode_request(b"%d" % uid, call.method.encode(), encode_value(call.params))
        call.handle = pipe.send(message, call.head if modern else b"", call)

    @property
    def task_call_type(self) -> CallFactory:
        """Of a tools/call that its server may answer with a task."""
        tasks = self.events.tasks
        return tasks.call_type if self.personal is None else tasks.per_user_call_type

    def new_request(self, what: str, *fields: Any) -> Call:
        """A request for a prompt or a resource, or about one; `what` is its name or URI here. One that is done was
        answered."""
        return Call(*fields)

    def maybe_outlook(self, tool: str) -> Outlook | None:
        """What a call of a tool would find beyond this link; None where there is nothing but its server."""
        return None

    def _rewrite_meta(self, call: Call, uid: int) -> None:
        if not call.meta:
            if self.modern:
                call.params["_meta"] = call.caller.stamped()
            else:
                call.params.pop("_meta", None)
            return
        meta = {}
        if not ERA_KEYS.issuperset(call.meta):
            meta = crossing_keys(call.meta, vendor=self._vendor_meta)
            if META_TASK in call.meta:
                self._name_task(call, meta)
        if self.modern:
            self._stamp(call, meta)
        if call.progress_token is not None:
            meta[PROGRESS_TOKEN] = Raw(b"%d" % uid)
        if meta:
            call.params["_meta"] = meta
        else:
            call.params.pop("_meta", None)

    def _name_task(self, call: Call, meta: dict[str, Raw]) -> None:
        named = self.events.tasks.named_for(self, call.caller, call.meta[META_TASK])
        if named is not None:
            meta[META_TASK] = Raw(encode_value(named))

    def _stamp(self, call: Call, meta: dict[str, Raw]) -> None:
        caller = call.caller
        if caller.era is Era.MODERN:
            said = call.meta
            stamp_modern(
                meta,
                capabilities=said[META_CAPABILITIES],
                client=said.get(META_CLIENT),
                log_level=said.get(META_LOG_LEVEL),
            )
        else:
            caller.stamp(meta)

    def ask(self, method: str, params: dict[str, Any], head: bytes = b"") -> Inquiry:
        """A question of our own. Await `inquiry.future`; `forget` it when you give up."""
        inquiry = Inquiry()
        self.attach(inquiry, method, params, head)
        return inquiry

    def attach(self, pending: Pending, method: str, params: dict[str, Any], head: bytes = b"") -> None:
        self._last_id = uid = self._last_id + 1
        pending.upstream_id = uid
        if self.pipe is None:
            pending.on_failed(self._lost("the link is not connected", "not_sent"), Outcome.LOST)
            return
        self.in_flight[uid] = pending
        message = encode_request(b"%d" % uid, method.encode(), encode_value(params) if params else b"")
        pending.handle = self.pipe.send(message, head, pending)

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        if self.pipe is not None:
            body = encode_value(params) if params else b""
            self.pipe.send(encode_notification(method.encode(), body), b"", None)

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
        call = self._answered(upstream_id)
        if call is not None and call.caller.asker is not None:
            call.asking -= 1
            call.progressed = True
        if self.pipe is not None:
            payload = self.events.tasks.on_task_answer(self, upstream_id, payload)
            self.pipe.send(b'{"jsonrpc":"2.0","id":%b,%b}' % (upstream_id, payload), b"", None)

    def cancel(self, pending: Pending, reason: str) -> None:
        """Tell the server that nobody waits any more: by closing the stream, and in words where words are spoken."""
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

    def set_aside(self, call: Call) -> None:
        """Its client is asked: the server does nothing for it until the answer."""
        if self.in_flight.pop(call.upstream_id, None) is not None:
            self.aside[call.upstream_id] = call
            principal = call.caller.principal.name
            self._aside_of[principal] = self._aside_of.get(principal, 0) + 1

    def take_up(self, call: Call) -> None:
        if self._from_aside(call.upstream_id) is not None:
            self.in_flight[call.upstream_id] = call

    def _from_aside(self, uid: int) -> Call | None:
        call = self.aside.pop(uid, None)
        if call is not None:
            principal = call.caller.principal.name
            self._aside_of[principal] -= 1
            if not self._aside_of[principal]:
                del self._aside_of[principal]
        return call

    def _no_longer(self, uid: int) -> Pending | None:
        return self.in_flight.pop(uid, None) or self._from_aside(uid)

    @property
    def in_use(self) -> bool:
        """Whether anybody would lose something if it ended now."""
        return bool(self.in_flight or self.aside or self.booked)

    def principals(self) -> set[str]:
        """Whose calls are under way here."""
        calls = {pending.caller.principal.name for pending in self.in_flight.values() if isinstance(pending, Call)}
        return calls | self._aside_of.keys()

    # What comes in

    def waits(self, origin: Pending) -> bool:
        return origin.upstream_id in self.in_flight or origin.upstream_id in self.aside

    def on_session(self, session: bytes) -> None:
        self.session = session

    def on_message(self, data: bytes, origin: Pending | None) -> bool:
        try:
            message = decode_untrusted(data)
        except CodecError as error:
            self._on_garbage(data, error)
            return False
        if type(message) is Response:
            try:
                pending = self.in_flight.pop(int(message.id))
            except KeyError:
                self._on_response_aside(message)
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

    def _on_response_aside(self, response: Response) -> None:
        """A server that did not wait for its client's answer; or nobody waits."""
        call = self._from_aside(int(response.id))
        if call is None:
            self._drop(response)
        else:
            call.on_response(response, self.era)

    def _drop(self, response: Response) -> None:
        """Nobody asked this."""
        self.stray += 1
        if self.stray == 1:
            log.info("link %s: an answer to no request, id %.40s; more are counted", self.segment, response.id)

    def _on_notification(self, message: Notification, origin: Pending | None) -> None:
        self._count_chatter()
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
            if not self._is_old_news(message.params) and (doubled is None or _is_new(message.params, origin, doubled)):
                self.events.on_resource_updated(self, message.params)
        elif method == ELICITATION_COMPLETE:
            self.events.on_elicitation_complete(self, message.params)
        elif method == CANCELLED:
            params = decode_object(message.params) or {}
            self._withdraw(bytes(params.get("requestId", b"")), message.params)
        elif method == (TASK_NEWS if self.modern else TASK_STATUS):
            self.events.tasks.on_task_status(self, message.params)
        elif method == ACKNOWLEDGED:
            listener = self._listener(message.params, origin)
            if listener is not None:
                listener.on_acknowledged(message.params)
            else:
                self.events.on_acknowledged(self, message.params)

    def _listener(self, params: Raw, origin: Pending | None) -> Listener | None:
        """Which of ours is acknowledged: by its stream, else by its id, else the one that waits for it."""
        named = subscription_id(params)
        if isinstance(origin, Listener):
            return origin
        if origin is not None:
            return None
        if named is not None:
            found = self.in_flight.get(named)
            return found if isinstance(found, Listener) else None
        unheard = [one for one in self.in_flight.values() if isinstance(one, Listener) and not one.heard]
        return unheard[0] if len(unheard) == 1 else None

    def _is_old_news(self, params: Raw) -> bool:
        """Told on a subscription that was replaced: the newer one tells it as well."""
        named = subscription_id(params) if self.modern else None
        return named is not None and 0 < named <= self._last_id and named not in self.in_flight

    def _on_request(self, request: Request, origin: Pending | None) -> None:
        if request.method == PING:
            self.respond(request.id, b'"result":{}')
            return
        if self.modern:
            self._refuse(request, "a 2026-07-28 server sends no requests")
            return
        if self.events.tasks.on_task_request(self, request, origin):
            return
        pending = self.whose(origin)
        if isinstance(pending, Call):
            self.entrust(request, pending)
        elif not self.events.on_orphan_request(self, request):
            self._refuse(request, "the client this is for cannot be told from others with calls under way")

    def entrust(self, request: Request, asking: Asking) -> None:
        """Let a client be asked; its answer comes back as `respond`."""
        fault = self.events.on_question(self, asking)
        if fault is not None:
            self.respond(request.id, b'"error":' + error_body(for_legacy(fault)))
            return
        self._asks[request.id] = asking
        if isinstance(asking, Call):
            asking.open_dialogue().questions += (request.id,)
        asking.on_request(self, request)

    def awaits(self, upstream_id: bytes, asking: Asking) -> bool:
        """Whether the server still wants this answer."""
        return self._asks.get(upstream_id) is asking

    def _refuse(self, request: Request, why: str) -> None:
        self.respond(request.id, b'"error":' + error_body(Fault(METHOD_NOT_FOUND, why)))

    def whose(self, origin: Pending | None) -> Pending | None:
        """Whose call an unsolicited message belongs to. HTTP tells; on a shared pipe it has to be plain.

        A legacy session is one client with all its calls, a modern request a client of its own. One client with calls
        under way: its. Several of one principal: the only one that waits for no answer yet, or is just asking (a server
        that asks several things does so in one breath). Otherwise nobody's, rather than somebody else's.
        """
        if isinstance(origin, Call):
            return origin
        calls = [pending for pending in self.in_flight.values() if isinstance(pending, Call)]
        if self.tasks and self.events.tasks.of_others(self, self.principals()):
            return None  # a task of theirs may be speaking
        clients = {id(call.caller) if call.caller.asker is not None else id(call): call for call in calls}
        if len(clients) + len(self.aside) <= 1:
            return calls[-1] if calls else next(iter(self.aside.values()), None)
        if len(self.principals()) > 1:
            return None
        may_ask = [call for call in clients.values() if not call.asking or _is_gathering(call)]
        return may_ask[0] if len(may_ask) == 1 else None

    def _count_chatter(self) -> None:
        now = self._clock.now()
        if now - self._chatter_since >= 1.0:
            self._chatter_since, self._chatter = now, 0
        self._chatter += 1
        if self._chatter == CHATTER_PER_S and self.pipe is not None:
            self.pipe.throttle(max(0.0, 1.0 - (now - self._chatter_since)))

    def _on_garbage(self, data: bytes, error: CodecError) -> None:
        """Noise is skipped and counted. An answer nobody can read is still somebody's: it must not time out."""
        self.noise += 1
        self._garbage += 1
        found = _ANSWER_ID.search(data, 0, 256) if _LOOKS_LIKE_ANSWER.match(data) is not None else None
        uid = int(found[1]) if found is not None else 0
        origin = self.in_flight.get(uid) or self.aside.get(uid)
        if origin is not None:
            self.on_undelivered(origin, Undelivered(Trouble.MALFORMED, f"its answer cannot be read: {error}"))
        elif self._garbage > self._garbage_max:
            self.on_pipe_lost(f"it sent more than {self._garbage_max} messages that are not JSON-RPC")

    # What goes wrong

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
                self._parked.append(origin)  # refused before it was looked at: sent again once greeted
            case Trouble.SESSION_LOST if isinstance(origin, Call):
                self.lose(origin, what)
            case Trouble.UNAUTHORISED if isinstance(origin, Call) and origin.ticket is None:
                self.lose(origin, what)
            case Trouble.MALFORMED if isinstance(origin, Call):
                fault = Fault(INTERNAL_ERROR, "the server's answer cannot be used", {"reason": "malformed_answer"})
                origin.on_failed(fault, Outcome.ERROR)
            case Trouble.BUSY:
                origin.on_failed(BUSY, Outcome.REFUSED)
            case Trouble.UNAUTHORISED:
                origin.on_failed(self._unauthorised(what), Outcome.ERROR)
            case Trouble.LOST | Trouble.MALFORMED:
                origin.on_failed(self._lost(what.detail, "unknown", what), Outcome.LOST)
            case Trouble.REFUSED if what.status >= 500:  # it failed in the middle, or a proxy did not wait for it
                origin.on_failed(self._lost(what.detail, "unknown", what), Outcome.LOST)
            case _:
                origin.on_failed(self._lost(what.detail, "not_sent", what), Outcome.LOST)

    def _may_be_renewed(self, call: Call) -> bool:
        """A call without a ticket was parked: the server has had it, and it is never sent again."""
        return call.ticket is not None and not call.renewed and self.waits(call)

    def lose(self, call: Call, what: Undelivered) -> None:
        """The server had it and will not answer it any more."""
        call.on_failed(self._lost(what.detail, "unknown", what), Outcome.LOST)

    def _note_unsent(self, what: Undelivered) -> None:
        """An answer, a cancellation or a notice of ours did not arrive; nobody waits for it, so it is said here."""
        if self.unsent == self._unsent_told:
            log.warning("link %s: a message was not delivered: %s; more are counted", self.segment, what.detail)
        self.unsent += 1

    def on_pipe_lost(self, reason: str) -> None:
        self.events.on_pipe_lost(self, reason)

    def fail_all(self, reason: str) -> None:
        """The connection is gone: everybody waiting is told, and every question to a client is taken back."""
        self._garbage, self._garbage_max = 0, NOISE_MAX
        waiting: dict[int, Pending] = {**self.in_flight, **self.aside}
        self.in_flight, self.aside, self._aside_of = {}, {}, {}
        for pending in waiting.values():
            pending.on_failed(self._lost(reason, "unknown"), Outcome.LOST)
        parked, self._parked = self._parked, []
        for call in parked:
            call.on_failed(self._lost(reason, "not_sent"), Outcome.LOST)
        refused, self.refused = self.refused, []
        for call, _ in refused:
            call.on_failed(self._lost(reason, "not_sent"), Outcome.LOST)
        for upstream_id in list(self._asks):
            self._withdraw(upstream_id, RAW_EMPTY)

    def _withdraw(self, upstream_id: bytes, params: Raw) -> None:
        """The server no longer wants this answer, or is no longer there."""
        call = self._answered(upstream_id)
        if call is None:
            return
        if call.caller.asker is not None:
            call.asking -= 1
            call.caller.asker.withdraw(self, upstream_id, params)
        elif isinstance(call, Call):
            call.handler.withdraw_question(call, upstream_id)

    def _answered(self, upstream_id: bytes) -> Asking | None:
        """On whose behalf a question was asked that is open no more."""
        asking = self._asks.pop(upstream_id, None)
        if isinstance(asking, Call) and asking.dialogue is not None:
            dialogue = asking.dialogue
            dialogue.questions = tuple(one for one in dialogue.questions if one != upstream_id)
        return asking

    def _lost(self, detail: str, outcome: str, what: Undelivered | None = None) -> "LostFault":
        data = {
            "reason": "subserver_unreachable",
            "since": rfc3339(self._clock.wall()),
            "outcome": outcome,
            "retry_after_ms": self.retry_after_ms,
            "mcpax_code": -32002,
        }
        return LostFault(TOOL_DEGRADED, "tool_degraded", data, detail, what)

    def _unauthorised(self, what: Undelivered) -> "LostFault":
        data = {"reason": "unauthorised", "outcome": "not_sent", "mcpax_code": -32002}
        return LostFault(TOOL_DEGRADED, "tool_degraded", data, what.detail, what)

    # What the keeper sets

    session = b""
    retry_after_ms = RETRY_AFTER_MS
    account: Account | None = None  # the budget of a registration

    def greeted(self, facts: ServerFacts) -> None:
        self.facts = facts
        self.era = facts.era
        self.modern = facts.era is Era.MODERN
        # A task is asked about over the link it was made on, and a user's link ends when it is idle.
        self.tasks = self.personal is None and offers_tasks(facts.capabilities, facts.era)
        makes_others = self.modern and (self.tasks or self.personal is not None)
        self.call_type = self.task_call_type if makes_others else Call
        self.connection += 1
        self._garbage, self._garbage_max = 0, GARBAGE_MAX
        self._unsent_told = self.unsent
        parked, self._parked = self._parked, []
        for call in parked:
            if not call.done and call.ticket is not None:
                self.send(call.ticket)

    def stand(self, state: LinkState, reason: str | None) -> None:
        if self.standing.state is not state or self.standing.reason != reason:
            since = self._clock.wall() if self.standing.state is not state else self.standing.since_wall
            self.standing = Standing(state, reason, since, self.retry_after_ms)
            self.events.on_standing(self)


def _is_gathering(call: Call) -> bool:
    return call.dialogue is not None and call.dialogue.is_gathering


def _is_new(params: Raw, origin: Pending | None, doubled: dict[bytes, dict[int, int]]) -> bool:
    """While a subscription and its successor are both open, each tells the same news; who is first is heard."""
    listener = subscription_id(params) or (origin.upstream_id if origin is not None else 0)
    told = doubled.setdefault(bytes((decode_object(params) or {}).get("uri", b"")), {})
    told[listener] = told.get(listener, 0) + 1
    return told[listener] > max((count for one, count in told.items() if one != listener), default=0)


class LostFault(Fault, frozen=True):
    """A lost link, with the detail that stays inside: it may name hosts. The client hears what it can act on."""

    detail: str = ""
    what: Undelivered | None = None
