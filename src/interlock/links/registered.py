"""The link of a subserver that registered with this node, and its keeper (MCP-AX 3.1, 6, 12).

The link differs from that of a configured server in three ways.

- Requests and notifications of MCP-AX go to the registrar (`RegistrationEvents`).
- Notifications pass a gate that limits their rate (`NoticeGate`). Progress and the state of tasks pass it as well,
  coalesced, because for one call or task only the latest counts.
- The route of a call is written into its metadata (7.2). Clients repeat their metadata with every call, so the encoded
  `_meta` is cached by the identity of what it was made of.

The keeper does not reconnect by itself: a subserver that returns registers again and gets another link.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.ax.protocol.hop_metadata import CALLER, Offer
from interlock.ax.protocol.messages import DEREGISTER, HEARTBEAT
from interlock.ax.protocol.notifications import NoticeGate, Overflow, Release, overflow, prefix
from interlock.ax.protocol.registration.registrations import Liveness, Session
from interlock.ax.protocol.route import CURSOR, ROUTE
from interlock.config.plan import Dial
from interlock.core.calls.call import Call, Pending
from interlock.core.calls.check import Account, Admitted
from interlock.core.clock import Clock, rfc3339
from interlock.core.link_state import LinkState
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import REDIRECTS, ConnectFailed, Connector, ConnectorParts
from interlock.links.keeper import ServerKeeper, StockCatalog
from interlock.links.link import LinkEvents, ServerFacts
from interlock.links.listing import LIST_S, Listing
from interlock.links.pipes import Pipe, Trouble, Undelivered
from interlock.links.server_messages import CHANGES, LostRefusal
from interlock.mcp import methods
from interlock.mcp.meta import PROGRESS_TOKEN, RAW_EMPTY, UNCHANGED_KEYS
from interlock.mcp.methods import CANCELLED, PROGRESS, Era
from interlock.net.message_pipe import GOING_AWAY, MessagePipe
from interlock.process.stderr import StderrRing
from interlock.wire.jsonrpc.codec import Notification, Request, Response, decode_object, encode_value

log = logging.getLogger("interlock.ax")

AX_PREFIX: Final = "mcpax/"
# There are no more of these than there are questions, so they pass no gate.
_OF_A_QUESTION: Final = frozenset((methods.ACKNOWLEDGED, CANCELLED))
# Notifications for one caller, of which the latest for each call or task counts.
_NEWS: Final = {PROGRESS: PROGRESS_TOKEN, methods.TASK_STATUS: "taskId", methods.TASK_NEWS: "taskId"}
_PLAIN: Final = frozenset((*CHANGES, methods.RESOURCE_UPDATED, methods.ELICITATION_COMPLETE))
GREET_S: Final = 10.0  # for the greeting of a subserver that has just registered
ROUTED_META_MAX: Final = 1024  # entries in the cache of `_meta` with a route
ROUTED_META_BYTES_MAX: Final = 2048  # of one entry
TOKEN_DIGITS_MAX: Final = 18  # of a progress token, which is the number of a request of ours
_PASSING: Final = UNCHANGED_KEYS | {ROUTE, CURSOR}  # the route of this hop replaces that of the client
_CAPABILITIES: Final = ("tools", "resources", "prompts", "completions")


class RegistrationEvents(Protocol):
    """Receiver of the events of a registered link and its keeper: the registrar."""

    def on_ax_request(self, link: "RegisteredLink", request: Request) -> None: ...

    def on_ax_notification(self, link: "RegisteredLink", message: Notification) -> None: ...

    def on_notice(self, link: "RegisteredLink", notice: Notification) -> None:
        """Pass on a notification that is not part of plain MCP. It is marked with its origin."""

    def on_link_lost(self, link: "RegisteredLink", reason: str) -> None:
        """React to a connection that is lost or unusable."""


class _RoutedMeta(msgspec.Struct, frozen=True):
    """Cached encoding of a request's `_meta`, which includes its MCP-AX route.

    It keeps the objects from which it was built alive, so that their identities are not reused while it is in the
    cache.
    """

    meta: dict[str, Raw]
    onward: dict[str, Raw]
    text: Raw
    unrouted: dict[str, Raw]  # `meta` without the route


class RegisteredLink(ConnectedLink):
    """Link of a subserver that registered with this node."""

    def __init__(
        self,
        session: Session,
        events: LinkEvents,
        registrar: RegistrationEvents,
        clock: Clock,
        *,
        transport: str,
        offer: Offer,
        gate: NoticeGate,
        vendor_meta: bool,
        account: Account | None = None,
    ) -> None:
        kind, endpoint = offer.kind, session.register.endpoint
        super().__init__(
            session.segment, events, clock, kind=kind, transport=transport, vendor_meta=vendor_meta, offer=offer
        )
        self.reach = Dial(url=endpoint) if endpoint is not None else None
        self.account = account
        self.registration = session
        self.registered_wall = clock.wall()
        self.retry_after_ms = Liveness(session.register.heartbeat_interval_ms, 0.0).retry_after_ms
        self.unwanted = 0  # notifications of a subserver that registered without notifications
        self._registrar = registrar
        self._routed_meta: dict[tuple[int, int], _RoutedMeta] = {}  # by the ids of `meta` and `onward`
        self._gate = gate
        self._gate_timer: asyncio.TimerHandle | None = None

    def send(self, admitted: Admitted[Call]) -> None:
        """Send a call with its MCP-AX route. The cached `_meta` is used if client and route have not changed."""
        call = admitted.command
        if (onward := call.onward) is not None:
            routed = self._routed_meta.get((id(call.meta), id(onward)))
            if routed is not None and self.modern:
                call.params["_meta"], call.meta = routed.text, routed.unrouted
            else:
                self._write_route(call, onward)
        super().send(admitted)

    def _write_route(self, call: Call, onward: dict[str, Raw]) -> None:
        """Write the MCP-AX route of a call into its metadata.

        The result is cached, because clients repeat their metadata with every call.
        """
        meta = call.meta
        if not (self.modern and call.caller.era is Era.MODERN and _PASSING.issuperset(meta)):
            call.params.setdefault("_meta", RAW_EMPTY)
            call.meta = {**meta, **onward}  # so that `send` writes `_meta` again, in every combination of eras
            return
        unrouted = {key: value for key, value in meta.items() if key not in (ROUTE, CURSOR)}
        text = Raw(encode_value({**unrouted, **onward}))
        if len(text) <= ROUTED_META_BYTES_MAX and CALLER not in onward:  # a mark is made for one call alone
            if len(self._routed_meta) >= ROUTED_META_MAX:
                self._routed_meta.clear()
            self._routed_meta[(id(meta), id(onward))] = _RoutedMeta(meta, onward, text, unrouted)
        call.params["_meta"], call.meta = text, unrouted

    def _rewrite_meta(self, call: Call, uid: int) -> None:
        super()._rewrite_meta(call, uid)
        if call.onward is not None:
            call.params["_meta"] = {**call.params.get("_meta", {}), **call.onward}

    def greeted(self, facts: ServerFacts) -> None:
        """Store the facts that the server reported in the handshake, without capabilities that its registration leaves
        out (MCP-AX 6.1).
        """
        register = self.registration.register
        left_out = [name for name in _CAPABILITIES if getattr(register, name) is False]
        capabilities = {name: raw for name, raw in facts.capabilities.items() if name not in left_out}
        super().greeted(msgspec.structs.replace(facts, capabilities=capabilities))

    def _on_request(self, request: Request, origin: Pending | None) -> None:
        if request.method.startswith(AX_PREFIX):
            self._registrar.on_ax_request(self, request)
        else:
            super()._on_request(request, origin)

    def _on_notification(self, message: Notification, origin: Pending | None) -> None:
        if message.method in _OF_A_QUESTION:
            super()._on_notification(message, origin)
            return
        if message.method in _NEWS:
            self._on_news(message)
            return
        if message.method in (HEARTBEAT, DEREGISTER):
            self._registrar.on_ax_notification(self, message)
            return
        self._count_unsolicited()
        if not self.registration.register.notifications and message.method not in CHANGES:
            self.unwanted += 1
            return
        self._let_through(self._gate.receive(message.method, message.params, self._clock.now()))
        self._start_release_timer()

    def _on_news(self, message: Notification) -> None:
        """Pass a notification about the progress of a call or the state of a task through the rate limit.

        Above the rate, only the latest one for each call or task is delivered.
        """
        self._count_unsolicited()
        if (named := (decode_object(message.params) or {}).get(_NEWS[message.method])) is None:
            self.stray += 1
            return
        subject = bytes(named)
        if message.method == PROGRESS:
            if isinstance(call := self._find_progressing(subject), Call):
                call.progressed = True  # its deadline moves now, although its caller may be notified later
            elif not self.tasks:
                self.stray += 1
                return
        now = self._clock.now()
        self._let_through(self._gate.receive(message.method, message.params, now, (message.method, subject)))
        self._start_release_timer()

    def _find_progressing(self, token: bytes) -> Pending | None:
        return self.in_flight.get(int(token)) if token.isdigit() and len(token) <= TOKEN_DIGITS_MAX else None

    def _has_progressing_call(self, notice: Notification) -> bool:
        token = (decode_object(notice.params) or {}).get(PROGRESS_TOKEN, b"")
        return self._find_progressing(bytes(token)) is not None

    def _let_through(self, released: Release) -> None:
        """Deliver notifications that the rate limit lets pass. They go to calls or to clients; those that are for
        parent nodes get the origin of the notification.
        """
        for event in released:
            if isinstance(event, Overflow):
                since = rfc3339(self._clock.wall() - (self._clock.now() - event.since))
                notice = overflow(self.segment, event.dropped, since, str(uuid.uuid4()))
                self._registrar.on_notice(self, notice)
            elif event.method == PROGRESS and not self.tasks and not self._has_progressing_call(event):
                self._gate.count_lost()  # the call was answered while its progress waited
            elif event.method in _NEWS or event.method in _PLAIN:
                self.notifications.deliver(event, None)
            elif (marked := prefix(event, self.segment, aggregator=self.offer.is_aggregator)) is None:
                self.stray += 1
            elif marked.method == methods.LOG_MESSAGE:
                self.notifications.deliver(marked, None)
            else:
                self._registrar.on_notice(self, marked)

    def _start_release_timer(self) -> None:
        """Start a timer for the time when the rate limit lets the next waiting notifications pass. Do nothing if a
        timer is running or nothing waits.
        """
        if (due := self._gate.next_deadline()) is not None and self._gate_timer is None:

            def release() -> None:
                self._gate_timer = None
                self._let_through(self._gate.on_deadline(self._clock.now()))
                self._start_release_timer()

            delay_s = max(0.0, due - self._clock.now())
            self._gate_timer = asyncio.get_running_loop().call_later(delay_s, release)

    def stop_notices(self) -> None:
        """Stop passing on the subserver's notifications."""
        if self._gate_timer is not None:
            self._gate_timer.cancel()
            self._gate_timer = None


class SocketPipe(Pipe):
    """Pipe over a connection that the subserver opened."""

    def __init__(self, owner: ConnectedLink, pipe: MessagePipe) -> None:
        self._owner = owner
        self._pipe = pipe
        self._is_throttled = False

    def send(self, message: bytes, head: bytes, origin: Pending | None) -> object:
        if not self._pipe.send(message):
            self._owner.on_undelivered(origin, Undelivered(Trouble.BUSY, "it does not read fast enough"))
        return None

    def throttle(self, seconds: float) -> None:
        if not self._is_throttled:  # messages that were received before still arrive here
            self._is_throttled = True
            self._pipe.pause_reading()

            def read_on() -> None:
                self._is_throttled = False
                self._pipe.resume_reading()

            asyncio.get_running_loop().call_later(seconds, read_on)

    async def close(self) -> None:
        self._pipe.close(GOING_AWAY, "the node is stopping")


class RegisteredConnector(Connector):
    """Connector of a subserver, which is a server that registered with this node by itself.

    A subserver that does not answer the handshake is still used if it answers tools/list.
    """

    _link: RegisteredLink

    async def _greet_or_lose(self, remembered: Era | None) -> ServerFacts:
        try:
            async with asyncio.timeout(GREET_S):
                return await super()._greet_or_lose(remembered)
        except TimeoutError:
            failed = ConnectFailed(f"no answer to a greeting within {GREET_S:g} s")
        except ConnectFailed as error:
            failed = error
        what = failed.what
        answers = what is None or (what.trouble is Trouble.REFUSED and what.status not in REDIRECTS)
        if not answers or failed.code is not None or self._loss.is_set():
            raise failed
        reply = await self._link.request(methods.TOOLS_LIST, {}, LIST_S)
        if isinstance(reply, Response) and not reply.error and "tools" in (decode_object(reply.result) or {}):
            register = self._link.registration.register
            declared = {name: RAW_EMPTY for name in _CAPABILITIES if getattr(register, name)}
            version = methods.LATEST_LEGACY
            return ServerFacts(era=Era.LEGACY, version=version, capabilities=declared, greeted=False)
        raise failed


class _AcceptedConnector(RegisteredConnector):
    """Connector of a subserver that is already connected, so that only the handshake remains."""

    async def connect(self, start: AsyncExitStack) -> None:
        self._welcome(await self._greet_or_lose(None))


class RegistrationParts(msgspec.Struct, frozen=True, kw_only=True):
    """Functions and objects of the node that the keeper of a registered link uses."""

    make_link: Callable[[LinkEvents], RegisteredLink]
    connector_parts: ConnectorParts
    stock: StockCatalog
    events: LinkEvents
    registrar: RegistrationEvents


class RegisteredKeeper(ServerKeeper):
    """Keeper of a link that the subserver opened. The link exists for as long as the registration."""

    link: RegisteredLink

    def __init__(self, parts: RegistrationParts, stderr: StderrRing | None = None) -> None:
        """Create the keeper. `stderr` has the error output if this node started the subserver as a process."""
        super().__init__(parts.make_link, parts.connector_parts, parts.stock, parts.events, stderr=stderr)
        self._registrar = parts.registrar
        self._connector: Any = _AcceptedConnector(self.link, parts.connector_parts, self.stderr, self._loss)
        self.hanging_up: asyncio.Task[None] | None = None  # after `cut`, where the node has something to close

    @property
    def may_return_soon(self) -> bool:
        return False  # MCP-AX 13.1: no call waits for it

    async def restart(self) -> None:
        """Disconnect the subserver. It may register again."""
        self.link.on_pipe_lost("restarted by the operator")

    def on_pipe_lost(self, link: ConnectedLink, reason: str) -> None:
        self._registrar.on_link_lost(self.link, reason)

    def on_unauthorised(self, link: ConnectedLink, what: Undelivered) -> None:
        """Log that the subserver refused a request of the node as unauthorised.

        There is no credential to renew: a subserver authenticates to the node, not the node to it.
        """
        log.warning("link %s: %s", link.name, what.detail)

    async def answers(self, within_s: float) -> bool:
        """Return whether the subserver answers a test request within the time. An error counts as an answer."""
        reply = await self._test_connection(within_s)
        return reply is not None and not isinstance(reply, LostRefusal)

    def recover(self) -> None:
        """Mark the link as ready again, because a subserver that was marked as degraded has answered."""
        if self._usable.is_set() and self.link.pipe is not None:
            self._set_listed_state()

    def cut(self, state: LinkState, reason: str) -> None:
        """End the link for good, and every call that waits for its server."""
        self._stopping = True
        self._usable.clear()
        self.settled.set()
        self.subscriptions.hang_up()
        self.link.stop_notices()
        for task in (self._task, *self._relists.values(), self._probing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._relists.clear()
        self.link.pipe = None
        self.link.fail_all(reason)
        self.link.set_state(state, reason)
        self.link.events = self._events  # the last events do not concern this keeper

    async def _live(self) -> None:
        """Perform the handshake with the subserver and read its lists, once.

        If the handshake fails, the subserver stays registered but has no tools.
        """
        try:
            await self._connect()
            self._usable.set()
        except ConnectFailed as failed:
            if not self._stopping:  # it stays registered, without tools (MCP-AX 4.2)
                await self._publish(Listing(), self.listed_at)
                self.link.set_state(LinkState.FAILED, failed.reason)
        finally:
            self.settled.set()
