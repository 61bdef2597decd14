"""A node as a child of others (MCP-AX 5.3, 6, 13.3): it registers with one parent of a tree, and serves it.

The parents of a tree are backups of each other: the first that accepts us is kept until it is lost, then the next one
is dialled (`Uplink`). While we are registered, an `UpwardFront` serves the parent's requests. The node's aggregator_id
is its subserver_id, one identity for cycles and for split brain.

`ParentClaims` tells the parent which subservers are below us (13.4), and receives which of them others have. Only a
parent that knows mcpax/claim is asked. An answer that comes after the time to wait for it still counts.

`UpwardFront` serves the requests of the parent on the link that we opened like those of all clients (MCP-AX 5). Each
request is served in the era that it declares. A request that declares none is served in the session that the parent
opened with `initialize`, or, as the draft shows it, without a greeting at all. Names are dotted and without a root
segment: the parent puts our segment in front. Unasked, the front sends changes of lists, notices of the tree below and
logs. The number of requests under way is limited (RUNNING_MAX, LISTENS_MAX), because each keeps memory here until the
parent cancels it or hangs up.
"""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Raw
from msgspec.structs import replace

from interlock.ax.ownership import PARENT_ANSWER_S
from interlock.ax.parents.service import PARENT
from interlock.ax.protocol import messages
from interlock.ax.protocol.budget import BudgetLimits
from interlock.ax.protocol.messages import CONFIRM, HEARTBEAT_MS, Claimed, Claims, Register, Registered
from interlock.ax.protocol.notifications import REFUSED_MAX
from interlock.ax.protocol.registration.authority import maybe_authority
from interlock.ax.protocol.registration.codec import CLAIMS_MAX, encode_claims, read_held_untrusted
from interlock.ax.protocol.registration.registrant import FAREWELL_S, CycleReported, Failed, JoinedParent, Left
from interlock.ax.registrar import Registrar
from interlock.ax.uplink import Opener, Uplink, display_words
from interlock.config.plan import NameForm, ParentPlan, Plan
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.call import Call
from interlock.core.calls.caller import VIA_AX, Hop, Principal, principal_for
from interlock.core.calls.check import BUSY
from interlock.core.clock import rfc3339
from interlock.core.part import TlsInvalid
from interlock.core.tls import parent_context
from interlock.fronts.audience import Audience
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.modern import EVENTS, ListenStream, ModernFront
from interlock.fronts.sessions import CHANGED, ClientSession
from interlock.links.api import Parent
from interlock.mcp.methods import CANCELLED, INITIALIZE, LATEST_LEGACY, LISTEN, LOG_MESSAGE, META_VERSION
from interlock.mcp.modern_requests import ValidatedRequest, validate_plain_request, validate_request
from interlock.net.message_pipe import MessagePipe, MessageSink
from interlock.net.websocket import HUNG_UP, DialFailed, dial
from interlock.wire import refusal as codes
from interlock.wire.jsonrpc import codec as jsonrpc
from interlock.wire.refusal import INVALID_REQUEST, METHOD_NOT_FOUND, Refusal, unavailable

if TYPE_CHECKING:
    from interlock.crypto.signing import SigningKey

NAMES: Final[NameForm] = "qualified"
RUNNING_MAX: Final = 10_000  # calls and streams of one parent under way
LISTENS_MAX: Final = 16  # a parent needs one, and another one while it replaces it
AX_PREFIX: Final = "mcpax/"

_NO_GREETING: Final = Raw(jsonrpc.encode_value({"protocolVersion": LATEST_LEGACY}))
_STOPPING: Final = unavailable("node_stopping")


@dataclass(eq=False)
class UpwardFront:
    """Front that serves the requests of one parent (the aggregator above this node) like those of a client.

    It is the Tenant of the uplink, a Member of the audience, and the Sink of messages that belong to no request.
    """

    _legacy: LegacyFront
    _modern: ModernFront
    _audience: Audience
    _principal: Principal
    segment: str  # that the parent assigned to this node
    _send: Callable[[bytes], bool] | None
    _only: str | None = None  # the only link that the parent sees, with the names that the link itself uses

    def __post_init__(self) -> None:
        self._hop = Hop(self.segment)
        self._session: ClientSession | None = None
        self._plain: ClientSession | None = None  # for requests of a parent that sends no greeting
        self._running: dict[bytes, Call | ListenStream] = {}
        self._listens = 0
        self._closing = False
        self.caller = self._modern.caller(self._principal, VIA_AX, self._only, NAMES)
        self.caller.hop = self._hop
        self._audience.join(self)

    def close(self) -> None:
        """Accept no new requests, because the node stops. Requests under way are still answered."""
        self._closing = True

    # Tenant

    def take(self, data: bytes) -> bool:
        """Serve a request of the modern era. Return False, without serving it, if `data` is any other message.

        Return False also for a request of MCP-AX, and for every message once the node stops.
        """
        request = None if self._closing else validate_plain_request(data, None)
        if request is None or request.method.startswith(AX_PREFIX):
            return False
        self._serve_modern(request)
        return True

    def serve(self, request: jsonrpc.Request) -> None:
        if self._closing:
            self._refuse(request.id, _STOPPING)
            return
        if request.method.startswith(AX_PREFIX) and request.method != CONFIRM:
            refusal = Refusal(METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]})
            self._refuse(request.id, refusal)
            return
        validated = validate_request(request, None)
        if not isinstance(validated, Refusal):
            self._serve_modern(validated)
        elif self._session is not None:
            self._legacy.handle(self._session, request, self)
        elif request.method == INITIALIZE:
            if (session := self._open_session(request, request.params)) is not None:
                session.knows_tree = True
                self._session = session
                self._legacy.welcome(session, request, self)
        else:
            params = jsonrpc.decode_object(request.params) if request.params else {}
            meta = jsonrpc.decode_object(params.get("_meta", Raw(b"{}"))) if params is not None else None
            if meta is None or META_VERSION in meta:
                self._refuse(request.id, validated)
                return
            # It declares no era, as the draft shows: lists and calls without `initialize` (MCP-AX 5.1, 5.2).
            self._plain = self._plain or self._open_session(request, _NO_GREETING)
            if self._plain is not None:
                self._legacy.handle(self._plain, request, self)

    def hear(self, notification: jsonrpc.Notification) -> None:
        if notification.method == CANCELLED:
            params = jsonrpc.decode_object(notification.params) or {}
            running = self._running.pop(bytes(params.get("requestId", b"")), None)
            if running is not None:
                self._stop(running, jsonrpc.find_string(params.get("reason")))
                return
        session = self._session or self._plain
        if session is not None:
            self._legacy.handle(session, notification, self)

    def hear_answer(self, response: jsonrpc.Response) -> None:
        if self._session is not None:
            self._legacy.handle(self._session, response, self)

    def leave(self) -> None:
        self._send = None
        self._audience.leave(self)
        for session in (self._session, self._plain):
            if session is not None:
                self._legacy.sessions.close(session, "the parent went away")
        running, self._running = self._running, {}
        for request in running.values():
            self._stop(request, "the parent went away")

    # The eras

    def _open_session(self, request: jsonrpc.Request, greeting: Raw) -> ClientSession | None:
        """Open a session for a parent of the legacy era that sent its first request. `greeting` holds the params of
        `initialize`. Return None if the session was refused.
        """
        initialize = jsonrpc.Request(request.id, INITIALIZE, greeting)
        opened = self._legacy.initialize(initialize, self._principal, VIA_AX, self._only, NAMES)
        if isinstance(opened, Refusal):
            self._refuse(request.id, opened)
            return None
        opened.caller.hop = self._hop
        opened.attach(self)
        return opened

    def _serve_modern(self, request: ValidatedRequest) -> None:
        if request.id in self._running:
            self._refuse(request.id, Refusal(INVALID_REQUEST, "this id is in use by a request under way"))
            return
        is_listen = request.method == LISTEN
        if len(self._running) >= RUNNING_MAX or (is_listen and self._listens >= LISTENS_MAX):
            self._refuse(request.id, BUSY)
            return
        if is_listen and EVENTS in request.meta:  # this front sends the events already: not twice
            meta = {key: value for key, value in request.meta.items() if key != EVENTS}
            request = ValidatedRequest(request.id, request.method, request.params, meta)
        reply = _Reply(self, request.id)
        running = self._modern.handle(self.caller, request, reply, None, NAMES)
        if running is not None and not reply.is_over:
            self._running[request.id] = running
            self._listens += is_listen

    def _stop(self, running: Call | ListenStream, reason: str | None) -> None:
        if isinstance(running, ListenStream):
            self._listens -= 1
            self._modern.stop_listening(running)
        else:
            running.cancel(reason or "cancelled by the parent")

    def over(self, request_id: bytes) -> None:
        """Forget a request of the parent that was answered, or that will never be answered."""
        if isinstance(self._running.pop(request_id, None), ListenStream):
            self._listens -= 1

    # Sink

    def emit(self, message: bytes) -> None:
        if self._send is not None:
            self._send(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.emit(message)

    def drop(self) -> None:
        pass

    def _refuse(self, request_id: bytes, refusal: Refusal) -> None:
        self.emit(jsonrpc.encode_refusal(request_id, refusal, draft=True))

    # Member of the audience. A legacy session and a modern stream are members themselves, and get the events there.

    def on_lists_changed(self, kind: str) -> None:
        if self._session is None and not self._listens:
            self.emit(jsonrpc.encode_notification(CHANGED[kind].encode(), b""))

    def on_resource_updated(self, params: bytes) -> None:
        pass

    def on_log(self, params: Raw) -> None:
        if self._session is None:
            self.emit(jsonrpc.encode_notification(LOG_MESSAGE.encode(), bytes(params)))

    def tell_legacy(self, message: bytes) -> None:
        pass

    def on_vendor_notification(self, notification: jsonrpc.Notification) -> None:
        """Do nothing, because parents do not receive this notification.

        A parent receives vendor-specific notifications of registered subservers only (MCP-AX 12). Those of configured
        servers are meant for clients.
        """

    def on_notice(self, notice: jsonrpc.Notification) -> None:
        if self._session is None:
            self.emit(jsonrpc.encode_notification(notice.method.encode(), bytes(notice.params)))


@dataclass(eq=False, slots=True)
class _Reply:
    """Receiver of the answer to one request of the parent, which sends the answer to the parent."""

    _front: UpwardFront
    _id: bytes
    is_over: bool = False

    def emit(self, message: bytes) -> None:
        self._front.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self.drop()
        self._front.emit(message)

    def drop(self) -> None:
        self.is_over = True
        self._front.over(self._id)


ASKED_MAX: Final = 10_000  # unanswered claims; a parent that answers none must not make the table grow

Held = Mapping[str, str]  # subserver_id -> the aggregator that has it


class ParentClaims:
    """Claims to subservers that this node has sent to one parent, some of which the parent has not answered yet."""

    def __init__(self, on_held: Callable[[Held], None]) -> None:
        """Create the claims.

        `on_held` is called if the parent denies claims for which no caller waits: those of `begin`, and those whose
        answer came late. The subservers were already accepted here.
        """
        self._on_held = on_held
        self._send: Callable[[bytes], bool] | None = None
        self._asked: dict[bytes, asyncio.Future[Held] | None] = {}
        self._ids = itertools.count(1)

    def begin(self, registered: Registered, send: Callable[[bytes], bool], claims: Sequence[Claimed]) -> None:
        """Send all claims to the parent that has just registered this node, if that parent supports claims."""
        if registered.claims:
            self._send = send
            for start in range(0, len(claims), CLAIMS_MAX):
                self._ask(Claims(claims=tuple(claims[start : start + CLAIMS_MAX])), None)

    def end(self) -> None:
        """Stop waiting for answers to claims, because the link to the parent is lost."""
        self._send = None
        requests, self._asked = self._asked, {}
        for waiting in requests.values():
            if waiting is not None and not waiting.done():
                waiting.set_result({})

    async def claim(self, claims: Sequence[Claimed], released_session: str | None) -> Held:
        """Make claims at the parent and wait for its answer, for a limited time.

        Return the claims that the parent denied, as a map from subserver to the aggregator that has it. The map is
        empty if the parent does not support claims, refuses the request or does not answer in time.
        """
        if self._send is None:
            return {}
        waiting: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        self._ask(Claims(claims=tuple(claims), released_session=released_session), waiting)
        try:
            async with asyncio.timeout(PARENT_ANSWER_S):
                return await waiting
        except TimeoutError:
            return {}

    def release(self, subserver_ids: Sequence[str]) -> None:
        for start in range(0, len(subserver_ids), CLAIMS_MAX):
            self._ask(Claims(released=tuple(subserver_ids[start : start + CLAIMS_MAX])), None)

    def on_response(self, response: jsonrpc.Response) -> bool:
        """Handle an answer of the parent. Return False if it is not the answer to a claim."""
        if response.id not in self._asked:
            return False
        waiting = self._asked.pop(response.id)
        read = {} if response.error else read_held_untrusted(response.result)
        held = {} if isinstance(read, Refusal) else read
        if waiting is not None and not waiting.done():
            waiting.set_result(held)
        elif held:
            self._on_held(held)
        return True

    def _ask(self, claims: Claims, waiting: asyncio.Future[Held] | None) -> None:
        if self._send is None:
            return
        if len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        request_id = b'"claim-%d"' % next(self._ids)
        self._asked[request_id] = waiting
        self._send(jsonrpc.encode_request(request_id, messages.CLAIM.encode(), encode_claims(claims)))


log = logging.getLogger("interlock.ax")

TOTAL_DIGITS_MAX: Final = 9
STOP_S: Final = FAREWELL_S + 1.0  # for the farewell and the closing of the link

Fronts = tuple[LegacyFront, ModernFront, Audience]  # which serve the requests of parents
State = Literal["standby", "connecting", "registered", "waiting", "stopped"]


class Parents(Uplink):
    """Registration of this node in one tree. At any time it is with at most one of the configured parents (aggregators
    above this node).
    """

    def __init__(
        self, plan: Plan, registrar: Registrar, fronts: Fronts, on_above: Callable[[], None], key: "SigningKey | None"
    ) -> None:
        """Prepare the registration with the parents in `plan`. Raise TlsInvalid if a parent's TLS files cannot be used.

        `on_above` is called when `above` changes. `key` proves this node's authority, if it has one.
        """
        self._registrar = registrar
        self._fronts = fronts
        self._signer = key
        self._on_above = on_above
        self._is_own_tree = plan.ax.tree == registrar.engine.tree
        self.claims = ParentClaims(registrar.claims.disown)
        self._learnt: set[str] = set()  # ids of aggregators above us, learnt from a parent
        self.plans = plan.ax.parents
        self._tree = plan.ax.tree
        subtree_ids = registrar.engine.subtree_ids()
        register = Register(
            subserver_id=subtree_ids[0],
            segment=self.plans[0].segment,
            tools=True,
            resources=True,
            notifications=True,
            heartbeat_interval_ms=HEARTBEAT_MS,
            version=messages.VERSION,
            tree=plan.ax.tree,
            subtree_ids=subtree_ids,
        )
        super().__init__(register, parent_openers(plan), log)
        self._access = plan.access
        self._clock, self._budgets = registrar.clock, registrar.budgets
        self._task: asyncio.Task[None] | None = None
        since = rfc3339(self._clock.wall())
        # `reason` and `next_step` describe the last failure of a parent, until it accepts the registration.
        unknown: dict[str, Any] = {"tree": self._tree, "state": "standby", "since": since, **_UNKNOWN}
        self.states = [
            Parent(url=parent.url, segment=parent.segment, secure_by=parent.secure_by, **unknown)
            for parent in self.plans
        ]

    # Life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.run(), name="parents")

    def close(self) -> None:
        """Accept no new requests of the parent. Calls under way continue."""
        if isinstance(self._tenant, UpwardFront):
            self._tenant.close()

    async def leave(self) -> None:
        """Deregister at the parent and close the link, within a time limit (6.3)."""
        if self._task is None:
            return
        self.stop()
        await asyncio.wait((self._task,), timeout=STOP_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self.leave_tenant()
        self._budgets.receive(self._tree, None)
        self.states = [replace(state, state="stopped", assigned_segment=None) for state in self.states]

    def subtree_changed(self, subtree_ids: tuple[str, ...]) -> None:
        """Report changed ids of the aggregators below this node to the parent, with the next heartbeat (5.3)."""
        self._take(self._engine.subtree_changed(subtree_ids, asyncio.get_running_loop().time()))

    @property
    def above(self) -> frozenset[str]:
        """Return the ids of the aggregators that are known to be above this node.

        They include every configured parent that has accepted a registration, even if it is not connected now.
        """
        return frozenset((*self._learnt, *(state.aggregator_id for state in self.states if state.aggregator_id)))

    def receive(self, data: bytes) -> None:
        front = self._tenant
        if not (isinstance(front, UpwardFront) and front.take(data)):
            super().receive(data)

    # What happens to the registration

    def _register_message(self, parent: int, register: Register) -> Register:
        plan = self.plans[parent]
        return worded_for(register, plan, plan.segment, self._signer, self._clock.wall())

    def _begin(self, step: JoinedParent, send: Callable[[bytes], bool]) -> UpwardFront:
        scope = step.registered.auth_scope
        principal = principal_for(self._name(step.parent), scope.value if scope is not None else None, self._access)
        return UpwardFront(*self._fronts, principal, step.registered.assigned_segment, send)

    def _dial(self, parent: int) -> None:
        self._set_state(parent, "connecting")
        super()._dial(parent)

    def _handle_joined(self, step: JoinedParent) -> None:
        super()._handle_joined(step)
        registered = step.registered
        self._set_state(
            step.parent,
            "registered",
            assigned_segment=registered.assigned_segment,
            aggregator_id=registered.aggregator_id,
            scope=registered.auth_scope.value if registered.auth_scope is not None else None,
            **_NO_FAULT,
        )
        self._on_above()
        if self._is_own_tree and self._link is not None and self._link.pipe is not None:
            self.claims.begin(registered, self._link.pipe.send, self._registrar.claims.holders.all())
        self._budgets.receive(self._tree, BudgetLimits(**registered.budget))
        self._record(step.parent, messages.REGISTER, registered.assigned_segment, "ok", None)

    def _handle_cycle(self, step: CycleReported) -> None:
        log.warning("%s is above us, and a link claims to have it below: that link is closed", step.id)
        self._learnt.add(step.id)
        self._on_above()

    def _handle_left(self, step: Left) -> None:
        super()._handle_left(step)
        self._learnt.clear()
        self._on_above()
        self.claims.end()
        self._budgets.receive(self._tree, None)
        segment = self.states[step.parent].assigned_segment or self.plans[step.parent].segment
        self._set_state(step.parent, "standby", assigned_segment=None)
        outcome = "ok" if self._engine.done else "lost"
        self._record(step.parent, messages.DEREGISTER, segment, outcome, display_words(step.reason))

    def _handle_failed(self, step: Failed) -> None:
        super()._handle_failed(step)
        reason, plan = display_words(step.reason), self.plans[step.parent]
        is_new = self.states[step.parent].reason != reason
        next_step = None if step.mendable else _TOKEN
        if step.error is not None:
            next_step = _STEPS.get(step.error.code or "")
        if step.reason.endswith(HUNG_UP) and plan.tls_cert is not None:
            next_step = _CERTIFICATE  # a server that refuses a certificate closes the connection silently
        self._set_state(step.parent, "waiting", reason=reason, next_step=next_step)
        if step.error is not None and is_new:  # not again for every attempt
            self._record(step.parent, messages.REGISTER, plan.segment, "refused", display_words(step.error.message))

    def _handle_refused(self, message: jsonrpc.Notification) -> None:
        super()._handle_refused(message)
        if (parent := self._engine.parent) is None:
            return
        members = jsonrpc.decode_object(message.params) or {}
        reasons: Counter[str] = Counter()
        for each in (jsonrpc.decode_array(members.get("tools", Raw(b"[]"))) or [])[:REFUSED_MAX]:
            tool = jsonrpc.decode_object(each) or {}
            detail, reason = (jsonrpc.find_string(tool.get(key)) for key in ("detail", "reason"))
            reasons[display_words(detail or reason or "it gives no reason")] += 1
        total = bytes(members.get("total", b""))
        is_count = total.isdigit() and len(total) < TOTAL_DIGITS_MAX
        number = max(int(total) if is_count else 0, reasons.total())
        self.states[parent] = replace(self.states[parent], not_listed=number, not_listed_because=dict(reasons))

    def _handle_response(self, response: jsonrpc.Response) -> None:
        if not self.claims.on_response(response):
            super()._handle_response(response)

    def _handle_held(self, message: jsonrpc.Notification) -> None:
        held = read_held_untrusted(message.params)
        if not isinstance(held, Refusal):
            self._registrar.claims.disown(held)

    def _set_state(self, parent: int, state: State, **changes: object) -> None:
        was = self.states[parent]
        since = was.since if was.state == state else rfc3339(self._clock.wall())
        self.states[parent] = replace(was, state=state, since=since, **changes)

    def _name(self, parent: int) -> str:
        return f"{PARENT}{self.plans[parent].url}"

    def _record(self, parent: int, method: str, segment: str, outcome: str, reason: str | None) -> None:
        verdict = "refused" if outcome == "refused" else "admitted"
        name, at = self._name(parent), self._clock.wall()
        record = AuditRecord(at, name, "ax", method, segment, None, verdict, outcome, reason=reason)
        self._registrar.recorder.add(record)

    # For the operator

    def status(self) -> list[Parent]:
        budget = self._budgets.shown_received(self._tree)
        return [replace(state, budget=budget if state.state == "registered" else None) for state in self.states]


def parent_openers(plan: Plan) -> list[tuple[str, Opener]]:
    """Return each parent's address with a function that connects to it. Raise TlsInvalid if TLS files are unusable."""
    return [(parent.url, parent_opener(parent, plan.limits.message_bytes)) for parent in plan.ax.parents]


def parent_opener(parent: ParentPlan, max_bytes: int) -> Opener:
    """Return a function that connects to a parent with this node's credential.

    Raise TlsInvalid if the parent's TLS files cannot be used.
    """
    headers = {"Authorization": f"Bearer {parent.secret}"} if parent.secret is not None else {}
    is_tls = parent.url.startswith("wss:")
    if is_tls:
        parent_context(parent)

    async def opened(sink: MessageSink) -> MessagePipe:
        try:
            tls = parent_context(parent) if is_tls else None  # read again: a certificate may have been renewed
        except TlsInvalid as invalid:
            raise DialFailed(str(invalid)) from None
        subprotocol = messages.SUBPROTOCOL
        return await dial(parent.url, sink, subprotocol=subprotocol, headers=headers, tls=tls, max_bytes=max_bytes)

    return opened


def worded_for(
    register: Register, plan: ParentPlan, segment: str, signer: "SigningKey | None", wall: float
) -> Register:
    """Return the registration in the form for one parent: with the segment and the authority that are configured for
    this parent, and with a proof of the authority if there is a signing key.
    """
    authority = maybe_authority(plan.authority) if plan.authority is not None else None
    proof = signer.prove(authority, plan.url, wall) if authority is not None and signer is not None else None
    return replace(register, segment=segment, authority=authority, authority_proof=proof)


# Members of the state of a parent that has reported no fault, and of one that has not been dialled.
_NO_FAULT: Final[dict[str, Any]] = {"reason": None, "next_step": None, "not_listed": 0, "not_listed_because": {}}
_UNKNOWN: Final = {**_NO_FAULT, **dict.fromkeys(("assigned_segment", "aggregator_id", "scope", "budget"))}
_TOKEN: Final = (
    "let its operator run: interlock access token --for subserver --name NAME, and give the token as 'secret'"  # noqa: S105
)
_CERTIFICATE: Final = "if it wants certificates: is our tls_cert in date, for clients, of a CA in its node.client_ca?"
_STEPS: Final[dict[str, str]] = {
    codes.NAMESPACE_CONFLICT: "another has this segment there: choose another 'segment' in [[ax.parents]], or let its"
    " operator release it with interlock links release SEGMENT",
    codes.NAMESPACE_INVALID: "rename the tools it names, or hide them with [[tool]] hide = true",
    codes.REGISTRATION_CYCLE: "this parent is ourselves, or below us as one of our links says: remove it from"
    " [[ax.parents]], or that link",
    codes.SPLIT_BRAIN: "another aggregator of the tree has us: was the data folder copied? each node needs its own",
    codes.AUTHORITY_UNVERIFIED: "run interlock access anchor here and let its operator paste the lines there; on one"
    " machine an [[access]] entry may name our authority; or it changes ax.require_proof",
    codes.AUTHORITY_CONFLICT: "another authority owns this segment there: choose another 'segment'",
    codes.SCOPE_DENIED: "let its operator give us a wider scope in [[access]]",
    codes.LINK_INSECURE: "dial wss:// with TLS 1.3",
}
