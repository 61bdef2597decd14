"""The aggregator's side of MCP-AX: subservers that register become links of the node, for as long as they live.

Theory of operation. A connection (`RegistrationSource`) reads the messages of a subserver and calls the `Registrar`:

    register            may this subserver have this segment? (`Registrations`, proofs, owners, leases, claims)
      -> Joined         a link and its keeper are created; the connection sends the answer
    welcome             the keeper greets the subserver, reads its lists and puts them into the catalog
    answer              heartbeats and deregistrations of registered subservers
    handle_lost_connection, handle_events
                        what happens to a registration is done to its link

`Registrations` is pure: it decides, and returns an answer and events. `handle_events` carries the events out: links
that enter or leave the catalog, notices to the audience, audit records. One timer serves all registrations. Requests
of MCP-AX that come over a registered link arrive through `RegistrationEvents`.

A registration is answered in this order, and nothing is left behind when one step refuses (MCP-AX 4.2, 13.4): transport
class and security of the link, segment, proof of the authority, the rules of `Registrations`, single use of the proof,
and last whether another aggregator already has the subserver.
"""

import asyncio
import logging
import secrets
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

import msgspec

from interlock.access.tokens import find_access_rule
from interlock.approvals.trust.registrant import AuthorityProofs, RegistrantIdentity
from interlock.ax.ownership import OWN, Leases, Owners, TreeClaims, check_parent, split_brain
from interlock.ax.protocol import messages
from interlock.ax.protocol.budget import BudgetLimits
from interlock.ax.protocol.capability import TRANSPORT_CLASSES, LatencyClass
from interlock.ax.protocol.hop_metadata import Offer
from interlock.ax.protocol.messages import HEARTBEAT_MS, REGISTER, VERSION, Claims, Parent, Register, Registered
from interlock.ax.protocol.names import WithheldName
from interlock.ax.protocol.notifications import Drops, NoticeGate, lost_notice, refused_notice
from interlock.ax.protocol.registration import codec, registrations
from interlock.ax.protocol.registration.registrations import Event, Peer, Registrations, SegmentOwner, Session
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import local_items
from interlock.config.plan import AccessRule, Plan
from interlock.core.audit_record import AuditRecord
from interlock.core.background import BackgroundTasks
from interlock.core.calls.check import Account
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import Feed
from interlock.core.link_state import LinkState
from interlock.core.recorder import Recorder, Refusals
from interlock.fronts.audience import Audience
from interlock.guard.budgets import Budgets
from interlock.links.connected_link import ConnectedLink
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import STOP_S, Keeper
from interlock.links.link import Link, LinkEvents, LocalLink, LocalTool, ToolResult
from interlock.links.listing import Listing
from interlock.links.registered import RegisteredKeeper, RegisteredLink, RegistrationParts
from interlock.net.message_pipe import GOING_AWAY, NORMAL, POLICY
from interlock.store.ports import StoreError
from interlock.wire import refusal as codes
from interlock.wire.jsonrpc.codec import Notification, Request, encode_notification, encode_refusal, encode_result
from interlock.wire.refusal import Refusal, ax_refusal

log = logging.getLogger("interlock.ax")

SESSION_ID_BYTES: Final = 24  # MCP-AX 6.2: at least 128 random bits
CLAIMING_MAX: Final = 100  # claims of one registrant that wait for our parent at once
VERSIONS_NOTED_MAX: Final = 100  # unknown versions that the log tells apart
UNAUTHORISED: Final = 4401  # SURFACE 4
SUPERSEDED: Final = 4409  # SURFACE 4: another registration replaced this one
OWN_TOOL: Final = "notifications_dropped"  # AX-12-5

_OWN_TOOL_OUTPUT: Final = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "minimum": 0},
        "by_segment": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    },
    "required": ["total", "by_segment"],
}
_CLOSE_CODES: Final[Mapping[registrations.EndReason, int]] = {"deregistered": NORMAL, "superseded": SUPERSEDED}
_LOSSES: Final = {"heartbeat_timeout": "it missed three heartbeats", "connection_lost": "its connection ended"}
_BAD_NAMES: Final = "the name is not valid here"
_INVALID: Final = "namespace_invalid"  # AX-4.3-1


class RegistrationSource(Protocol):
    """Connection over which a subserver registers: a WebSocket, the stdio of a child process, or one that this node
    opens.
    """

    transport: str
    guest: RegistrantIdentity

    @property
    def is_open(self) -> bool:
        """Return whether the connection is still open, after the registration was checked."""

    async def ask_parent(self) -> Parent | Refusal | None:
        """Ask the subserver which parent it has.

        Return None if it was not asked, does not answer in time or answers with an error, for example because it does
        not support the request. Return a refusal if its answer is invalid or the connection was closed.
        """

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        """Create the keeper and the link of the registration. The link uses the pipe of this connection."""

    def close(self, code: int, reason: str) -> None: ...


@dataclass(eq=False)
class _Member:
    """Registered subserver: its keeper and the connection over which it registered."""

    keeper: RegisteredKeeper
    source: RegistrationSource
    told_refused: tuple[WithheldName, ...] = ()
    renewing: bool = False


@dataclass(eq=False, kw_only=True)
class Registrar:
    """Registrar of subservers. It creates a link for each registration and handles the events of these links."""

    plan: Plan
    aggregator_id: str
    clock: Clock
    connector_parts: ConnectorParts
    catalog: Catalog
    keepers: dict[str, Keeper]
    audience: Audience
    link_events: LinkEvents
    recorder: Recorder
    budgets: Budgets
    refusals: Refusals
    owners: Owners
    proofs: AuthorityProofs
    leases: Leases | None = None  # only in a store that aggregators share (13.4)
    # Publishes the aggregators below us, which our own parents must know (5.3).
    subtree: Feed[tuple[str, ...]] = field(default_factory=Feed)

    def __post_init__(self) -> None:
        ax, degraded, grace_s = self.plan.ax, self.plan.degraded.enabled, self.plan.degraded.grace_s
        policy = registrations.Policy(require_proof=ax.require_proof, degraded=degraded, grace_s=grace_s)
        self.engine = Registrations(self.aggregator_id, ax.tree, policy)
        self.drops = Drops()
        self.claims = TreeClaims(self.aggregator_id, self._give_up_subservers)
        self._members: dict[str, _Member] = {}  # by session id; a lost one stays while its names are listed
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._hanging_up = BackgroundTasks()
        self._own_tool_shown = False
        self._stopping = False
        self._versions_noted: set[str | None] = {VERSION}
        self._children: dict[str, str] = {}  # segment -> the only principal that may register it
        self._of_contracts: tuple[str, ...] = ()
        self._claiming: Counter[str] = Counter()  # requests of registrants that wait for our parent
        self.keep_segments(self.plan)

    async def open(self) -> None:
        """Do nothing: subservers connect by themselves."""

    def keep_segments(self, plan: Plan) -> None:
        """Reserve the segments that the configuration uses, so that no subserver can register them.

        The segment of a child that the node starts can be registered by that child only.
        """
        devices = (device.segment for device in plan.devices.described)
        self._configured = (*(server.segment for server in plan.servers), *devices)
        self._children = {child.segment: f"child:{child.segment}" for child in plan.ax.children}
        self.keep_contracts(self._of_contracts)

    def keep_contracts(self, segments: Iterable[str]) -> None:
        """Reserve the segments of drivers' contracts, so that no subserver can register them."""
        self._of_contracts = tuple(segments)
        self.engine.keep((OWN_TOOL, *self._configured, *self._of_contracts))

    # Registering

    async def register(self, request: Register, link_id: str, source: RegistrationSource) -> Registered | Refusal:
        """Check a registration, begin its session, and return the answer. Call `welcome` after the answer has been
        sent.
        """
        began = self.clock.now()
        try:
            answer = await self._register(request, link_id, source)
        except StoreError as away:
            log.warning("registration of %s: the store cannot answer: %s", request.segment, away)
            answer = codes.unavailable("store")
        principal = source.guest.principal
        if isinstance(answer, Refusal):
            self._note_refused(principal, request.segment, answer)
            return answer
        self._record(principal, REGISTER, request.segment, seconds=self.clock.now() - began)
        # Another version of MCP-AX is logged once and accepted (6.1).
        if request.version not in self._versions_noted and len(self._versions_noted) <= VERSIONS_NOTED_MAX:
            self._versions_noted.add(request.version)
            named = "names no version" if request.version is None else f"names the version {request.version!a}"
            log.info("link %s: its registration %s of MCP-AX; we speak %s", request.segment, named, VERSION)
        return answer

    async def _register(self, request: Register, link_id: str, source: RegistrationSource) -> Registered | Refusal:
        guest = source.guest
        classes = [*(standard.id for standard in TRANSPORT_CLASSES), *self.plan.ax.transport_classes]
        if request.transport_class not in classes:  # AX-6.1-6
            why = f"transport_class must be one of {', '.join(classes)}; ax.transport_classes names private ones"
            return Refusal(codes.INVALID_PARAMS, why, {"member": "transport_class", "known": classes})
        if not guest.encrypted:  # AX-10.4-1
            return ax_refusal(codes.LINK_INSECURE, "from beyond this machine a subserver registers over TLS")
        if self._children.get(request.segment, guest.principal) != guest.principal:
            why = "the segment is taken by this aggregator's configuration; choose another"
            return ax_refusal(codes.NAMESPACE_CONFLICT, why, segment=request.segment)
        if guest.segment is not None and request.segment != guest.segment:
            why = f"the configuration gives this child the segment {guest.segment}"
            return ax_refusal(codes.NAMESPACE_CONFLICT, why, segment=request.segment)
        proved = await self.proofs.judge(request)
        if isinstance(proved, Refusal):
            return proved
        if isinstance(guest.certificate, Refusal):  # whatever it claims: its key may be in other hands
            return guest.certificate
        shown = proved is None and guest.shows(request)
        if isinstance(shown, Refusal):
            return shown
        peer = guest.peer(request, link_id, proved=proved is not None or shown)
        owner = await self.owners.find_owner(request.segment)
        if refusal := self.engine.check(request, peer, owner):
            return refusal
        if proved is not None and (refusal := await self.proofs.spend(proved)):  # AX-4.2-8: seen before
            return refusal
        session_id = secrets.token_urlsafe(SESSION_ID_BYTES)
        if refusal := await self._check_holder(request, session_id, source):
            return refusal
        answer = await self._begin_session(request, peer, owner, session_id, source)
        if isinstance(answer, Refusal):
            await self._give_up(request, session_id)
            self.claims.release_own(request.subserver_id, session_id)
        return answer

    async def _check_holder(self, request: Register, session_id: str, source: RegistrationSource) -> Refusal | None:
        """Refuse a registration if another aggregator already has the subserver (13.4).

        This is decided by the shared store, or by asking the subserver and this node's parent.
        """
        if self.leases is not None:
            return await self.leases.claim(request, session_id)
        # A registration that names its parent, or none, needs no question (AX-13.4-4).
        answer = await source.ask_parent() if request.parent_id is msgspec.UNSET else None
        if isinstance(answer, Refusal):
            return answer
        if refusal := check_parent(request, answer, self.engine.aggregator_id):  # AX-13.4-2, AX-13.4-4
            return refusal
        holder = await self.claims.claim_own(request.subserver_id, session_id, request.released_session)
        return None if holder is None else split_brain(holder)  # AX-13.4-2

    async def _begin_session(
        self, request: Register, peer: Peer, owner: SegmentOwner | None, session_id: str, source: RegistrationSource
    ) -> Registered | Refusal:
        """Begin the session of a registration that has passed all other checks.

        `Registrations` checks the request again, because much time may have passed since the first check.
        """
        if self._stopping or not source.is_open:
            return codes.unavailable("stopping" if self._stopping else "gone")
        # The budget of a registration holds as long as its session (11.4).
        rule = source.guest.rule
        limits = self.budgets.for_registration(rule.budget if rule is not None else None)
        peer = msgspec.structs.replace(peer, budget=limits.as_object())
        step = self.engine.register(request, peer, session_id=session_id, owner=owner, now=self.clock.now())
        self.handle_events(step.events, source=source)
        joined = next((event for event in step.events if isinstance(event, registrations.Joined)), None)
        if joined is not None and joined.owner is not None:
            try:
                await self.owners.keep(joined.owner)
            except StoreError:
                # In a later turn of the loop: ending the session closes the link, and the answer must be sent before.
                asyncio.get_running_loop().call_soon(self._end_session, session_id, "removed")
                raise
        return step.answer

    def welcome(self, session_id: str) -> None:
        """Start to use the link of a new session. Call this after the answer to its registration was sent."""
        if (member := self._members.get(session_id)) is not None:
            member.keeper.start()
            if self.leases is not None and not member.keeper.link.registration.register.heartbeat_interval_ms:
                self._tasks.begin(self._renew_while_connected(session_id))

    # What happens to registrations

    def handle_lost_connection(self, session_id: str, reason: str) -> None:
        """End a session because its connection was lost.

        Its names stay listed as degraded for the grace period, unless the configuration disables that.
        """
        self.handle_events(self.engine.link_closed(session_id, now=self.clock.now()), detail=reason)

    def _end_session(self, session_id: str, reason: registrations.EndReason) -> None:
        self.handle_events(self.engine.end(session_id, reason, now=self.clock.now()))

    def handle_events(
        self, events: Iterable[Event], *, source: RegistrationSource | None = None, detail: str = ""
    ) -> None:
        """Carry out the events of registrations on their links, and set the timer for the next deadline.

        `source` is the connection of a registration that begins. `detail` says why a connection was lost, as text for
        people.
        """
        for event in events:
            match event:
                case registrations.Joined():
                    if source is None:
                        raise RuntimeError("a session begins only with a registration")
                    self._join(event.session, source)
                case registrations.Suspected():
                    self._tasks.begin(self._probe(self._members[event.session.session_id].keeper))
                case registrations.Recovered():
                    keeper = self._members[event.session.session_id].keeper
                    keeper.recover()
                    if keeper.listing is not None:
                        self._tasks.begin(self._update_catalog(keeper.link, keeper.listing))
                case registrations.Lost():
                    self._lose(event, detail)
                case registrations.Ended():
                    self._end(event)
                case registrations.Vanished():
                    lost = self.keepers.get(event.segment)
                    if isinstance(lost, RegisteredKeeper):
                        del self.keepers[event.segment]
                        self._members.pop(lost.link.registration.session_id, None)
                        self.catalog.drop(lost.link)
                case registrations.SubtreeChanged():
                    self.subtree.publish(event.subtree_ids)
                case registrations.CycleClaimed():
                    # One interval to correct the claim: the registrant may be an aggregator that repeats a claim, and
                    # learns of the error with its next heartbeat.
                    interval_s = (event.session.register.heartbeat_interval_ms or HEARTBEAT_MS) / 1000
                    asyncio.get_running_loop().call_later(interval_s, self._end_cycle, event.session.session_id)
                case _:
                    assert_never(event)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := self.engine.next_deadline()) is not None and not self._stopping:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self.clock.now()), self._on_due)

    def _on_due(self) -> None:
        self.handle_events(self.engine.on_deadline(self.clock.now()))

    def _end_cycle(self, session_id: str) -> None:
        if not self._stopping:
            self.handle_events(self.engine.end_cycle(session_id, now=self.clock.now()))

    def set_above(self, ids: frozenset[str]) -> None:
        """Set the ids of the aggregators that are known to be above this node.

        A registrant that says one of them is below it is removed if it has not corrected this after one heartbeat
        interval (5.3).
        """
        self.handle_events(self.engine.set_above(ids))

    def _join(self, session: Session, source: RegistrationSource) -> None:
        """Create the link and the keeper for a session that begins."""
        former = self.keepers.get(session.segment)
        if isinstance(former, RegisteredKeeper):  # what it listed is refused until the new one has listed (13.2)
            self._members.pop(former.link.registration.session_id, None)
            former.link.set_state(LinkState.CONNECTING, "its subserver is back and lists its tools")
        if not self._own_tool_shown:  # without a subserver there is nothing to count
            self._own_tool_shown = True
            self._list_own_tool()
        keeper = source.keeper_for(
            RegistrationParts(
                make_link=lambda events: self._make_link(session, source, events),
                connector_parts=self.connector_parts,
                stock=self._update_catalog,
                events=self.link_events,
                registrar=self,
            )
        )
        self._members[session.session_id] = _Member(keeper, source)
        self.keepers[session.segment] = keeper
        log.info("link %s: registered by %s", session.segment, session.peer.principal)

    def _make_link(self, session: Session, source: RegistrationSource, events: LinkEvents) -> RegisteredLink:
        """Create the link of a session, with its capabilities, its budget and the rate limit for its notifications."""
        register, peer, ax = session.register, session.peer, self.plan.ax
        rule = source.guest.rule
        declared = BudgetLimits(**peer.budget)
        return RegisteredLink(
            session,
            events,
            self,
            self.clock,
            transport=source.transport,
            offer=Offer(
                kind="aggregator" if register.is_aggregator else "leaf",
                proved=peer.proved,
                authority=register.authority if peer.proved else None,
                scope=session.auth_scope,
                link_latency_ms=rule.link_latency_ms if rule is not None else 0.0,
                transport=register.transport_class,
                session=session.session_id,
            ),
            gate=NoticeGate(session.segment, self.drops, per_s=ax.notify_per_s, buffer_max=ax.notify_buffer),
            vendor_meta=self.plan.mcp.meta_pass == "vendor",  # noqa: S105  (a choice, not a password)
            account=None if declared.is_unlimited else Account("subserver", declared, self.clock.now()),
        )

    def _list_own_tool(self) -> None:
        """List this aggregator's own tool, which returns how many notifications were dropped (MCP-AX 12)."""

        async def count_drops(principal: str, arguments: bytes) -> ToolResult:
            # AX-12-5
            drops = self.drops
            return ToolResult(content={"total": drops.total, "by_segment": dict(sorted(drops.by_segment.items()))})

        tool = LocalTool(
            name=OWN_TOOL,
            description="How many notifications of subservers this aggregator dropped since it started, and whose.",
            input_schema={"type": "object", "properties": {}},
            output_schema=_OWN_TOOL_OUTPUT,
            handler=count_drops,
            # AX-12-5
            has_effect=False,
            latency_class=LatencyClass.REALTIME,
            timeout_s=0.5,
        )
        link = LocalLink((OWN_TOOL,), self.link_events, self.clock, tools=(tool,), is_root=True)
        self.catalog.place(local_items(link, self.plan.ax.root_segment))

    async def _probe(self, keeper: RegisteredKeeper) -> None:
        """Ask a subserver that missed two heartbeats for an answer. If none comes, mark its link as degraded, so that
        its calls are refused.

        The third missed heartbeat ends its session (6.3). To refuse calls earlier lets the tree settle in less than
        three intervals (13.3).
        """
        session = keeper.link.registration
        if await keeper.answers(session.register.heartbeat_interval_ms / 4000):
            return
        registration = self.engine.find(session.segment)
        if registration is None or registration.session.session_id != session.session_id:
            return
        if registration.state is registrations.LivenessState.SUSPECT:
            keeper.link.set_state(LinkState.DEGRADED, "it missed two heartbeats and does not answer")
            self._degrade(keeper.link)

    def _degrade(self, link: ConnectedLink) -> None:
        if self.plan.degraded.enabled:
            self.catalog.degrade(link)

    def _lose(self, event: registrations.Lost, detail: str) -> None:
        session = event.session
        member = self._members[session.session_id]
        why = detail or _LOSSES[event.reason]
        self.claims.end(session)
        self._cut(member, LinkState.DEGRADED, why)
        self._degrade(member.keeper.link)
        member.source.close(POLICY, event.reason)
        log.warning("link %s: lost: %s", session.segment, why)
        self._record(session.peer.principal, messages.SUBSERVER_LOST, session.segment, "lost", event.reason)
        # AX-13.1-1: since is the time of the loss
        since = rfc3339(self.clock.wall() - (self.clock.now() - event.since))
        self.audience.notice(lost_notice(session.segment, event.reason, since, str(uuid.uuid4())))

    def _end(self, event: registrations.Ended) -> None:
        session = event.session
        member = self._members[session.session_id]
        self.claims.end(session)
        self._cut(member, LinkState.STOPPED, event.reason)
        member.source.close(_CLOSE_CODES.get(event.reason, POLICY), event.reason)
        log.info("link %s: its registration ended: %s", session.segment, event.reason)
        self._record(session.peer.principal, messages.DEREGISTER, session.segment, "ok", event.reason)
        if self.leases is not None and event.reason != "split_brain":
            self._tasks.begin(self._give_up(session.register, session.session_id))

    def _cut(self, member: _Member, state: LinkState, reason: str) -> None:
        member.keeper.cut(state, reason)
        if (hanging_up := member.keeper.hanging_up) is not None:
            self._hanging_up.hold(hanging_up)

    # The shared store

    def _renew(self, session_id: str) -> None:
        member = self._members.get(session_id)
        if self.leases is not None and member is not None and not member.renewing:
            member.renewing = True
            self._tasks.begin(self._renew_lease(self.leases, member))

    async def _renew_while_connected(self, session_id: str) -> None:
        """Renew the lease of a subserver that sends no heartbeats, at intervals until its session ends (6.3)."""
        while self.engine.has_session(session_id):
            self._renew(session_id)
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def _renew_lease(self, leases: Leases, member: _Member) -> None:
        session = member.keeper.link.registration
        try:
            if not await leases.renew(session):
                self._end_session(session.session_id, "split_brain")
        except StoreError as away:  # 13.4: existing registrations go on
            log.warning("link %s: its lease could not be renewed: %s", session.segment, away)
        finally:
            member.renewing = False

    async def _give_up(self, register: Register, session_id: str) -> None:
        try:
            if self.leases is not None:
                await self.leases.give_up(register.subserver_id, session_id)
        except StoreError as away:
            log.warning("link %s: its lease is left to lapse: %s", register.segment, away)

    def _give_up_subservers(self, via: str, held: Mapping[str, str]) -> None:
        """Handle that other aggregators have some subservers (13.4): end this node's own registrations of them, or
        notify the aggregator below that claimed them.

        `via` is the session through which they were claimed, or OWN. A registrant is notified of the subservers below
        it. `held` maps each subserver to the aggregator that has it.
        """
        if (member := self._members.get(via)) is not None and member.keeper.link.pipe is not None:
            notification = encode_notification(messages.HELD_ELSEWHERE.encode(), codec.encode_held(held))
            member.keeper.link.pipe.send(notification, b"", None)
        for subserver_id, holder in held.items() if via == OWN else ():
            if (session_id := self.engine.find_session_id(subserver_id)) is not None:
                log.warning("subserver %s is registered with %s in this tree", subserver_id, holder)
                self._end_session(session_id, "split_brain")

    # Lists of subservers

    async def _update_catalog(self, link: Link, listing: Listing | None) -> None:
        """Put the listed tools of a subserver into the catalog. If the list contains an invalid name, end the
        registration (4.3).
        """
        keeper = self.keepers.get(link.segment)
        if listing is None or not isinstance(keeper, RegisteredKeeper) or keeper.link is not link:
            return  # another link has replaced this one
        session = keeper.link.registration
        if (member := self._members.get(session.session_id)) is None:
            return
        stocked = await self.catalog.stock(link, listing)
        if stocked.refused is not None:
            log.warning("link %s: refused: %s", link.segment, stocked.refused.message)
            names = (stocked.refused.details or {}).get("names", [])
            unlisted = tuple(WithheldName(name=name, reason=_BAD_NAMES, code=_INVALID) for name in names)
            self._report_unlisted(keeper.link, unlisted)
            self._note_refused(session.peer.principal, link.segment, stocked.refused)
            member.source.close(POLICY, ascii(f"{_INVALID}: {', '.join(names)}")[1:-1])  # AX-4.3-1
            # AX-4.3-1: the reason
            self._end_session(session.session_id, "namespace_invalid")
        elif stocked.items is not None:
            withheld = tuple(item for item in stocked.items.withheld if item.code is not None)
            if withheld != member.told_refused:
                member.told_refused = withheld
                self._report_unlisted(keeper.link, withheld)
            for changed in stocked.changed:
                log.warning("link %s: the definition of %s changed", link.segment, changed.name)

    def _report_unlisted(self, link: ConnectedLink, withheld: tuple[WithheldName, ...]) -> None:
        """Notify a subserver of its tools that are not listed, with the reasons (4.2)."""
        if link.pipe is not None and withheld:
            notice = refused_notice(withheld)
            link.pipe.send(encode_notification(notice.method.encode(), bytes(notice.params)), b"", None)

    # Messages of MCP-AX on registered links (RegistrationEvents)

    def on_ax_request(self, link: RegisteredLink, request: Request) -> None:
        pipe = link.pipe
        if request.method == messages.CLAIM and link.offer.is_aggregator:
            self._tasks.begin(self._answer_claims(link, request))
            return
        answer, events = self.answer(request, link.registration.peer, link.registration.session_id)
        if pipe is not None:
            pipe.send(answer, b"", None)
        self.handle_events(events)  # which may close the link: the answer goes first

    def on_ax_notification(self, link: RegisteredLink, message: Notification) -> None:
        """Handle a message of MCP-AX that was sent as a notification. No answer is sent (6.3)."""
        request, session = Request(b"0", message.method, message.params), link.registration
        self.handle_events(self.answer(request, session.peer, session.session_id)[1])

    def on_link_lost(self, link: RegisteredLink, reason: str) -> None:
        if (member := self._members.get(link.registration.session_id)) is not None:
            member.source.close(POLICY, reason)
            self.handle_lost_connection(link.registration.session_id, reason)

    def on_notice(self, link: RegisteredLink, notice: Notification) -> None:
        self.audience.notice(notice)

    def answer(self, request: Request, peer: Peer, own: str | None = None) -> tuple[bytes, tuple[Event, ...]]:
        """Answer a heartbeat or a deregistration of a subserver. Refuse any other request.

        Return the encoded answer, and the events to handle after it has been sent. `own` is the session of the link on
        which the request arrived, or None if it arrived without a link.
        """
        if request.method == messages.HEARTBEAT:
            beat = codec.read_heartbeat_untrusted(request.params, own)
            if isinstance(beat, Refusal):
                return encode_refusal(request.id, beat), ()
            alive = self.engine.heartbeat(beat, peer, now=self.clock.now())
            if isinstance(alive.answer, Refusal):
                return encode_refusal(request.id, alive.answer), alive.events
            self._renew(beat.session_id)
            return encode_result(request.id, codec.encode_heartbeat_answer(alive.answer)), alive.events
        if request.method == messages.DEREGISTER:
            leaving = codec.read_deregister_untrusted(request.params, own)
            if isinstance(leaving, Refusal):
                return encode_refusal(request.id, leaving), ()
            step = self.engine.deregister(leaving, peer, now=self.clock.now())
            if isinstance(step.answer, Refusal):
                return encode_refusal(request.id, step.answer), step.events
            return encode_result(request.id, codec.DEREGISTERED), step.events
        # AX-1-1, AX-14-1
        refusal = Refusal(codes.METHOD_NOT_FOUND, "Method not found", {"method": request.method[:100]})
        if request.method == REGISTER:
            refusal = Refusal(codes.INVALID_REQUEST, "this link has its registration; open another for another")
        return encode_refusal(request.id, refusal), ()

    async def _answer_claims(self, link: RegisteredLink, request: Request) -> None:
        """Answer the request mcpax/claim of an aggregator. This node may first have to send the claims to its own
        parent (13.4).
        """
        session_id = link.registration.session_id
        read = codec.read_claims_untrusted(request.params)
        is_busy = self._claiming[session_id] >= CLAIMING_MAX
        if is_busy or (isinstance(read, Claims) and not self.claims.holders.has_room(session_id, len(read.claims))):
            read = codes.unavailable("too_many_claims")
        if isinstance(read, Refusal):
            message = encode_refusal(request.id, read)
        else:
            self.claims.release(read.released, session_id)
            self._claiming[session_id] += 1
            held = await self.claims.claim(read.claims, session_id, read.released_session)
            self._claiming -= Counter((session_id,))  # which leaves nothing behind at zero
            if not self.engine.has_session(session_id):  # it left meanwhile, and its claims went before these came
                self.claims.end(link.registration)
            message = encode_result(request.id, codec.encode_held(held))
        if link.pipe is not None:
            link.pipe.send(message, b"", None)

    # The operator

    async def release(self, segment: str) -> bool:
        """Forget which authority owns a segment, and remove the names that a lost subserver left there.

        Return False if there was neither.
        """
        was_taken = self.engine.find(segment) is not None
        forgotten = await self.owners.release(segment)
        self.handle_events(self.engine.release(segment, now=self.clock.now()))
        return forgotten or (was_taken and self.engine.find(segment) is None)

    def find_rule(self, session_id: str) -> AccessRule | None:
        """Return the [[access]] entry that admitted the session, or None if there is no such entry or session."""
        member = self._members.get(session_id)
        return None if member is None else member.source.guest.rule

    def dismiss_unwelcome(self, is_welcome: Callable[[RegistrantIdentity], bool]) -> None:
        """Close the connections of subservers for which `is_welcome` returns False, because their credential is no
        longer accepted (MCP-AX 1.1).
        """
        for session_id, member in list(self._members.items()):
            if not is_welcome(member.source.guest):
                member.source.close(UNAUTHORISED, "the credential was revoked or has expired")
                self._end_session(session_id, "removed")

    def dismiss_changed(self, rules: tuple[AccessRule, ...]) -> None:
        """Close the connections of subservers whose [[access]] entry has changed, so that they register again."""
        for member in list(self._members.values()):
            guest = member.source.guest
            if find_access_rule(guest.principal, rules) != guest.rule:
                member.keeper.link.on_pipe_lost("its [[access]] entry changed")

    # The end

    def hang_up(self) -> None:
        """Close all connections because the node stops, so that subservers look for another parent.

        Calls under way must have ended before.
        """
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for member in self._members.values():
            member.source.close(GOING_AWAY, "the aggregator is stopping")

    async def close(self) -> None:
        self.hang_up()
        for member in list(self._members.values()):
            self._cut(member, LinkState.STOPPED, "the node is stopping")
            session = member.keeper.link.registration
            await self._give_up(session.register, session.session_id)
        await self._tasks.close()
        await self._hanging_up.finish(STOP_S)

    def _record(
        self, who: str, method: str, segment: str, outcome: str = "ok", reason: str | None = None, seconds: float = 0.0
    ) -> None:
        at = self.clock.wall() - seconds
        record = AuditRecord(at, who, "ax", method, segment, None, "admitted", outcome, seconds, reason)
        self.recorder.add(record)

    def _note_refused(self, who: str, segment: str, refusal: Refusal) -> None:
        """Record that a registration was refused. Repeated refusals are only counted, because a refused subserver tries
        again and again.
        """
        self.refusals.note(who, "ax", REGISTER, refusal.message, segment)
