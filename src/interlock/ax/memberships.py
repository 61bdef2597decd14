"""Registrations and their links: what happens to the one is done to the other.

Comes in: events of `Registrations`, and what the links say of their own accord. Goes out: links that stand in the
catalog or leave it, notices to the audience, records. One timer serves all registrations. What subservers ask is
answered by the registrar, which is built upon this.
"""

import asyncio
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, assert_never

import msgspec

from interlock.access.tokens import find_access_rule
from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.ownership import Leases
from interlock.ax.protocol.budget import Limits
from interlock.ax.protocol.capability import LatencyClass
from interlock.ax.protocol.hop_metadata import Offer
from interlock.ax.protocol.messages import (
    DEREGISTER,
    HEARTBEAT_MS,
    HELD_ELSEWHERE,
    REGISTER,
    SUBSERVER_LOST,
    Claimed,
    Parent,
    Register,
)
from interlock.ax.protocol.names import Withheld
from interlock.ax.protocol.notifications import Drops, Notice, NoticeGate, lost_notice, refused_notice
from interlock.ax.protocol.registration.codec import encode_held
from interlock.ax.protocol.registration.leases import OWN, Holders, lease_of
from interlock.ax.protocol.registration.registrations import (
    CycleClaimed,
    Ended,
    EndReason,
    Event,
    Joined,
    LivenessState,
    Lost,
    Policy,
    Recovered,
    Registrations,
    Session,
    SubtreeChanged,
    Suspected,
    Vanished,
)
from interlock.catalog.catalog import Catalog
from interlock.catalog.local_items import local_items
from interlock.catalog.routes import LinkItems
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
from interlock.links.link import Link, LinkEvents
from interlock.links.listing import Listing
from interlock.links.local_link import LocalLink, LocalTool, ToolResult
from interlock.links.registered import RegisteredKeeper, RegisteredLink, RegistrationEvents, RegistrationParts
from interlock.net.message_pipe import GOING_AWAY, NORMAL, POLICY
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc.codec import Notification, Request, encode_notification
from interlock.wire.refusal import Refusal

# Subservers claimed at the parent (MCP-AX 13.4): what is registered here, and what registrants say is below them.
#
# A claim is entered here at once, so that of two that come together one is first; then the parent is asked, and so on
# up
# the tree. Where there is no parent, or it does not answer, what is known here decides.


class ClaimsAbove(Protocol):
    """The parent in our own tree, where there is one."""

    async def claim(self, claims: Sequence[Claimed], released_session: str | None) -> Mapping[str, str]:
        """Claim subservers at the parent. Return those that another aggregator has: subserver_id -> aggregator_id."""

    def release(self, subserver_ids: Sequence[str]) -> None: ...


class TreeClaims:
    def __init__(self, aggregator_id: str, on_moved: Callable[[str, Mapping[str, str]], None]) -> None:
        """Create the claims. `on_moved` receives the registration through which subservers were claimed (OWN for our
        own), and who has them now.
        """
        self._own_id = aggregator_id
        self._on_moved = on_moved
        self._above: ClaimsAbove | None = None
        self.holders = Holders()

    def report_to(self, above: ClaimsAbove) -> None:
        self._above = above

    async def claim_own(self, subserver_id: str, session_id: str, released_session: str | None) -> str | None:
        """Claim a subserver that registers here. Return the aggregator that has it already, or None if it is ours."""
        lease = lease_of(self._own_id, session_id)
        claimed = Claimed(subserver_id=subserver_id, aggregator_id=lease.aggregator_id, session_hash=lease.session_hash)
        return (await self.claim((claimed,), OWN, released_session)).get(subserver_id)

    async def claim(self, claims: Iterable[Claimed], via: str, released_session: str | None = None) -> dict[str, str]:
        """Enter claims and ask the parent. Return those that another aggregator has. `via` is the session of the
        registrant that claims.
        """
        refused: dict[str, str] = {}
        entered = []
        moved: list[tuple[str, Claimed]] = []
        for claimed in claims:
            before = self.holders.maybe_held(claimed.subserver_id)
            holder = self.holders.claim(claimed, via, released_session)
            if holder is not None:
                refused[claimed.subserver_id] = holder
                continue
            entered.append(claimed)
            if before is not None and before.via != via and before.lease.aggregator_id != claimed.aggregator_id:
                moved.append((before.via, claimed))
        if entered and self._above is not None:
            for subserver_id, holder in (await self._above.claim(entered, released_session)).items():
                if self.holders.release(subserver_id, via):
                    refused[subserver_id] = holder
        for former, claimed in moved:
            if claimed.subserver_id not in refused:
                self._on_moved(former, {claimed.subserver_id: claimed.aggregator_id})
        return refused

    def disown(self, held: Mapping[str, str]) -> None:
        """Release subservers that other aggregators have, as the parent says."""
        for subserver_id, holder in held.items():
            before = self.holders.maybe_held(subserver_id)
            if before is not None:
                self.release((subserver_id,), before.via)
                self._on_moved(before.via, {subserver_id: holder})

    def release(self, subserver_ids: Iterable[str], via: str) -> None:
        self._tell([subserver_id for subserver_id in subserver_ids if self.holders.release(subserver_id, via)])

    def release_own(self, subserver_id: str, session_id: str) -> None:
        if self.holders.release(subserver_id, OWN, lease_of(self._own_id, session_id).session_hash):
            self._tell([subserver_id])

    def end(self, session: Session) -> None:
        """End the claim of a registration, and the claims that came through it."""
        self.release_own(session.register.subserver_id, session.session_id)
        self._tell(self.holders.release_all(session.session_id))

    def _tell(self, gone: Sequence[str]) -> None:
        if gone and self._above is not None:
            self._above.release(gone)


# The tool that an aggregator itself offers to the tree: how many notifications it had to drop (MCP-AX 12).

NAME: Final = "notifications_dropped"  # AX-12-5
_OUTPUT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "total": {"type": "integer", "minimum": 0},
        "by_segment": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    },
    "required": ["total", "by_segment"],
}


def own_items(drops: Drops, root_segment: str | None, events: LinkEvents, clock: Clock) -> LinkItems:
    """Return the catalog items of the tool that reports `drops`."""

    async def count_drops(principal: str, arguments: bytes) -> ToolResult:
        # AX-12-5
        return ToolResult(content={"total": drops.total, "by_segment": dict(sorted(drops.by_segment.items()))})

    tool = LocalTool(
        name=NAME,
        description="How many notifications of subservers this aggregator dropped since it started, and whose.",
        input_schema={"type": "object", "properties": {}},
        output_schema=_OUTPUT_SCHEMA,
        handler=count_drops,
        # AX-12-5
        has_effect=False,
        latency_class=LatencyClass.REALTIME,
        timeout_s=0.5,
    )
    return local_items(LocalLink((NAME,), events, clock, tools=(tool,), is_root=True), root_segment)


# The parts of the node that registrations use, and the source a registration comes from.


class RegistrationSource(Protocol):
    """The connection a registrant came by."""

    transport: str
    guest: RegistrantIdentity

    @property
    def is_open(self) -> bool:
        """Return False if the connection ended while its registration was checked."""

    async def ask_parent(self) -> Parent | Refusal | None:
        """Ask the subserver for its parent. Return None if it has none or does not know the request."""

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        """Create the keeper and its link, which has the pipe of this source."""

    def close(self, code: int, reason: str) -> None: ...


class MembershipParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the node that registrations use."""

    clock: Clock
    connector_parts: ConnectorParts
    catalog: Catalog
    keepers: dict[str, Keeper]
    audience: Audience
    link_events: LinkEvents
    recorder: Recorder
    budgets: Budgets
    refusals: Refusals
    subtree: Feed[tuple[str, ...]]  # the aggregators below us; our own parents are told (5.3)
    leases: Leases | None = None  # only in a store that aggregators share (13.4)


# Makes the links of subservers that register: what each offers, its budget, and the gate of its notices.


class RegisteredLinks:
    def __init__(self, plan: Plan, clock: Clock, drops: Drops) -> None:
        self._plan = plan
        self._clock = clock
        self._drops = drops

    def make(
        self, session: Session, source: RegistrationSource, events: LinkEvents, registrar: RegistrationEvents
    ) -> RegisteredLink:
        declared = Limits(**session.peer.budget)
        account = None if declared.is_unlimited else Account("subserver", declared, self._clock.now())
        return RegisteredLink(
            session,
            events,
            registrar,
            self._clock,
            transport=source.transport,
            offer=_offer(session, source),
            gate=NoticeGate(
                session.segment, self._drops, per_s=self._plan.ax.notify_per_s, buffer_max=self._plan.ax.notify_buffer
            ),
            vendor_meta=self._plan.mcp.meta_pass == "vendor",  # noqa: S105  (a choice, not a password)
            account=account,
        )


def _offer(session: Session, source: RegistrationSource) -> Offer:
    return Offer(
        kind="aggregator" if session.register.is_aggregator else "leaf",
        proved=session.peer.proved,
        authority=session.register.authority if session.peer.proved else None,
        scope=session.auth_scope,
        link_latency_ms=source.guest.rule.link_latency_ms if source.guest.rule is not None else 0.0,
        transport=session.register.transport_class,
        session=session.session_id,
    )


log = logging.getLogger("interlock.ax")


UNAUTHORISED: Final = 4401  # SURFACE 4
SUPERSEDED: Final = 4409  # SURFACE 4: another took its place
_CLOSE_CODES: Final[Mapping[EndReason, int]] = {"deregistered": NORMAL, "superseded": SUPERSEDED}


class _Member:
    """A segment that is taken, on this side."""

    def __init__(self, keeper: RegisteredKeeper, source: RegistrationSource) -> None:
        self.keeper = keeper
        self.source = source
        self.told_refused: tuple[Withheld, ...] = ()
        self.renewing = False


class Members(ABC):
    """The registered subservers; it is told what their links say of MCP-AX (RegistrationEvents)."""

    def __init__(self, plan: Plan, aggregator_id: str, parts: MembershipParts) -> None:
        self._link_events = parts.link_events
        policy = Policy(
            require_proof=plan.ax.require_proof, degraded=plan.degraded.enabled, grace_s=plan.degraded.grace_s
        )
        self.engine = Registrations(aggregator_id, plan.ax.tree, policy)
        self.drops = Drops()
        self._links = RegisteredLinks(plan, parts.clock, self.drops)
        self._subtree = parts.subtree
        self._plan = plan
        self._clock = parts.clock
        self._connector_parts = parts.connector_parts
        self._catalog = parts.catalog
        self._keepers = parts.keepers
        self._audience = parts.audience
        self._recorder = parts.recorder
        self._budgets = parts.budgets
        self._refusals = parts.refusals
        self._leases = parts.leases
        self.claims = TreeClaims(aggregator_id, self._take_away)
        self._members: dict[str, _Member] = {}  # by session id, also of a lost one while its names are listed
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._hanging_up = BackgroundTasks()
        self._own_tool_shown = False
        self._stopping = False

    @abstractmethod
    def on_ax_request(self, link: RegisteredLink, request: Request) -> None: ...

    @abstractmethod
    def on_ax_notification(self, link: RegisteredLink, message: Notification) -> None: ...

    def welcome(self, session_id: str) -> None:
        """Start to use the link, after the answer to the registration was sent."""
        member = self._members.get(session_id)
        if member is not None:
            member.keeper.start()
            if self._leases is not None and not member.keeper.link.registration.register.heartbeat_interval_ms:
                self._tasks.begin(self._renew_without_beats(session_id))

    def closed(self, session_id: str, reason: str) -> None:
        """Handle the loss of a member's connection."""
        self.happened(self.engine.link_closed(session_id, now=self._clock.now()), detail=reason)

    # What happens to registrations

    def happened(self, events: Iterable[Event], *, source: RegistrationSource | None = None, detail: str = "") -> None:
        for event in events:
            match event:
                case Joined():
                    self._join(event, source)
                case Suspected():
                    self._suspect(event)
                case Recovered():
                    self._recover(event)
                case Lost():
                    self._lose(event, detail)
                case Ended():
                    self._end(event)
                case Vanished():
                    self._vanish(event)
                case SubtreeChanged():
                    self._subtree.publish(event.subtree_ids)
                case CycleClaimed():
                    self._give_time(event)
                case _:
                    assert_never(event)
        self._arm()

    def _join(self, event: Joined, source: RegistrationSource | None) -> None:
        session = event.session
        if source is None:
            raise RuntimeError("a session begins only with a registration")
        former = self._keepers.get(session.segment)
        if isinstance(former, RegisteredKeeper):  # what it listed is refused until the new one has listed (13.2)
            self._members.pop(former.link.registration.session_id, None)
            former.link.set_state(LinkState.CONNECTING, "its subserver is back and lists its tools")
        if not self._members:
            self._show_own_tool()
        keeper = source.keeper_for(
            RegistrationParts(
                make_link=lambda events: self._links.make(session, source, events, self),
                connector_parts=self._connector_parts,
                stock=self._stock,
                events=self._link_events,
                registrar=self,
            )
        )
        self._members[session.session_id] = _Member(keeper, source)
        self._keepers[session.segment] = keeper
        log.info("link %s: registered by %s", session.segment, session.peer.principal)

    def _show_own_tool(self) -> None:
        """List the aggregator's own tool once there is a subserver; without one there is nothing to count."""
        if not self._own_tool_shown:
            self._own_tool_shown = True
            self._catalog.place(own_items(self.drops, self._plan.ax.root_segment, self._link_events, self._clock))

    def _suspect(self, event: Suspected) -> None:
        self._tasks.begin(self._probe(self._members[event.session.session_id].keeper))

    async def _probe(self, keeper: RegisteredKeeper) -> None:
        """Ping a subserver that missed two heartbeats, and refuse its calls if it does not answer.

        The third missed heartbeat ends its session (6.3). Refusing calls earlier lets the tree settle in less than
        three intervals (13.3).
        """
        session = keeper.link.registration
        answers = await keeper.answers(session.register.heartbeat_interval_ms / 4000)
        standing = self.engine.maybe_standing(session.segment)
        is_silent = not answers and standing is not None and standing.state is LivenessState.SUSPECT
        if is_silent and standing is not None and standing.session.session_id == session.session_id:
            keeper.link.set_state(LinkState.DEGRADED, "it missed two heartbeats and does not answer")
            self._degrade(keeper.link)

    def _degrade(self, link: ConnectedLink) -> None:
        if self._plan.degraded.enabled:
            self._catalog.degrade(link)

    def _recover(self, event: Recovered) -> None:
        keeper = self._members[event.session.session_id].keeper
        keeper.recover()
        if keeper.listing is not None:
            self._tasks.begin(self._stock(keeper.link, keeper.listing))

    def _lose(self, event: Lost, detail: str) -> None:
        session = event.session
        member = self._members[session.session_id]
        why = detail or _LOSSES[event.reason]
        self.claims.end(session)
        self._cut(member, LinkState.DEGRADED, why)
        self._degrade(member.keeper.link)
        member.source.close(POLICY, event.reason)
        log.warning("link %s: lost: %s", session.segment, why)
        self._record(session.peer.principal, SUBSERVER_LOST, session.segment, None, 0.0, "lost", event.reason)
        since = rfc3339(self._clock.wall() - (self._clock.now() - event.since))
        self._tell(lost_notice(session.segment, event.reason, since, str(uuid.uuid4())))

    def _end(self, event: Ended) -> None:
        session = event.session
        member = self._members[session.session_id]
        self.claims.end(session)
        self._cut(member, LinkState.STOPPED, event.reason)
        member.source.close(_CLOSE_CODES.get(event.reason, POLICY), event.reason)
        log.info("link %s: its registration ended: %s", session.segment, event.reason)
        self._record(session.peer.principal, DEREGISTER, session.segment, None, 0.0, "ok", event.reason)
        if self._leases is not None and event.reason != "split_brain":
            self._tasks.begin(self._give_up(self._leases, session.register, session.session_id))

    def _cut(self, member: _Member, state: LinkState, reason: str) -> None:
        member.keeper.cut(state, reason)
        hanging_up = member.keeper.hanging_up
        if hanging_up is not None:
            self._hanging_up.hold(hanging_up)

    def _vanish(self, event: Vanished) -> None:
        keeper = self._keepers.get(event.segment)
        if isinstance(keeper, RegisteredKeeper):
            del self._keepers[event.segment]
            self._members.pop(keeper.link.registration.session_id, None)
            self._catalog.drop(keeper.link)

    def set_above(self, ids: frozenset[str]) -> None:
        """Set the aggregators that are known to be above us. A registrant that names one of them as below it is
        removed (5.3).
        """
        self.happened(self.engine.set_above(ids))

    def _give_time(self, event: CycleClaimed) -> None:
        """Give a registrant one interval to correct its claim. It may be an aggregator that repeats a claim, and
        learns of the error with its next heartbeat.
        """
        interval_s = (event.session.register.heartbeat_interval_ms or HEARTBEAT_MS) / 1000
        asyncio.get_running_loop().call_later(interval_s, self._end_cycle, event.session.session_id)

    def _end_cycle(self, session_id: str) -> None:
        if not self._stopping:
            self.happened(self.engine.end_cycle(session_id, now=self._clock.now()))

    def _arm(self) -> None:
        due = self.engine.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None and not self._stopping:
            delay_s = max(0.0, due - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        self.happened(self.engine.on_deadline(self._clock.now()))

    # The shared store

    def _renew(self, session_id: str) -> None:
        member = self._members.get(session_id)
        if self._leases is not None and member is not None and not member.renewing:
            member.renewing = True
            self._tasks.begin(self._renew_lease(self._leases, member))

    async def _renew_without_beats(self, session_id: str) -> None:
        """Renew the lease of a subserver that promised no heartbeats, as long as its link is open (6.3)."""
        while self.engine.has_session(session_id):
            self._renew(session_id)
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def _renew_lease(self, leases: Leases, member: _Member) -> None:
        session = member.keeper.link.registration
        try:
            if not await leases.renew(session):
                self.happened(self.engine.end(session.session_id, "split_brain", now=self._clock.now()))
        except StoreError as away:  # 13.4: existing registrations go on
            log.warning("link %s: its lease could not be renewed: %s", session.segment, away)
        finally:
            member.renewing = False

    async def _give_up(self, leases: Leases, register: Register, session_id: str) -> None:
        try:
            await leases.give_up(register.subserver_id, session_id)
        except StoreError as away:
            log.warning("link %s: its lease is left to lapse: %s", register.segment, away)

    # Subservers that another aggregator has (13.4)

    def _take_away(self, via: str, held: Mapping[str, str]) -> None:
        """End registrations here that other aggregators hold, and notify a registrant of those below it."""
        member = self._members.get(via)
        if member is not None and member.keeper.link.pipe is not None:
            notification = encode_notification(HELD_ELSEWHERE.encode(), encode_held(held))
            member.keeper.link.pipe.send(notification, b"", None)
        for subserver_id, holder in held.items() if via == OWN else ():
            session_id = self.engine.maybe_session(subserver_id)
            if session_id is not None:
                log.warning("subserver %s is registered with %s in this tree", subserver_id, holder)
                self.happened(self.engine.end(session_id, "split_brain", now=self._clock.now()))

    # What it lists

    async def _stock(self, link: Link, listing: Listing | None) -> None:
        member = self._maybe_member(link)
        if member is None or listing is None:
            return
        stocked = await self._catalog.stock(link, listing)
        session_id = member.keeper.link.registration.session_id
        if stocked.refused is not None:
            log.warning("link %s: refused: %s", link.segment, stocked.refused.message)
            names = (stocked.refused.details or {}).get("names", [])
            self._say_refused(
                member.keeper.link, tuple(Withheld(name=name, reason=_BAD_NAMES, code=_INVALID) for name in names)
            )
            self._record(member.keeper.link.registration.peer.principal, REGISTER, link.segment, stocked.refused, 0.0)
            member.source.close(POLICY, ascii(f"{_INVALID}: {', '.join(names)}")[1:-1])  # AX-4.3-1
            # AX-4.3-1: the reason
            self.happened(self.engine.end(session_id, "namespace_invalid", now=self._clock.now()))
        elif stocked.items is not None:
            withheld = tuple(item for item in stocked.items.withheld if item.code is not None)
            if withheld != member.told_refused:
                member.told_refused = withheld
                self._say_refused(member.keeper.link, withheld)
            for changed in stocked.changed:
                log.warning("link %s: the definition of %s changed", link.segment, changed.name)

    def _say_refused(self, link: ConnectedLink, withheld: tuple[Withheld, ...]) -> None:
        if link.pipe is not None and withheld:
            notice = refused_notice(withheld)
            link.pipe.send(encode_notification(notice.method.encode(), bytes(notice.params)), b"", None)

    def _maybe_member(self, link: Link) -> _Member | None:
        """Return the member that has this link, unless another has replaced it."""
        keeper = self._keepers.get(link.segment)
        if not isinstance(keeper, RegisteredKeeper) or keeper.link is not link:
            return None
        return self._members.get(keeper.link.registration.session_id)

    # What the links say (RegistrationEvents)

    def on_link_lost(self, link: RegisteredLink, reason: str) -> None:
        member = self._members.get(link.registration.session_id)
        if member is not None:
            member.source.close(POLICY, reason)
            self.closed(link.registration.session_id, reason)

    def on_notice(self, link: RegisteredLink, notice: Notice) -> None:
        self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        self._audience.notice(notice)

    # The end

    def maybe_rule(self, session_id: str) -> AccessRule | None:
        """Return the [[access]] entry that admitted the session, or None."""
        member = self._members.get(session_id)
        return None if member is None else member.source.guest.rule

    def dismiss_unwelcome(self, stands: Callable[[RegistrantIdentity], bool]) -> None:
        """Close the connections of subservers whose credential is no longer accepted (MCP-AX 1.1)."""
        for session_id, member in list(self._members.items()):
            if not stands(member.source.guest):
                member.source.close(UNAUTHORISED, "the credential was revoked or has expired")
                self.happened(self.engine.end(session_id, "removed", now=self._clock.now()))

    def dismiss_changed(self, rules: tuple[AccessRule, ...]) -> None:
        """Close the connections of subservers whose [[access]] entry is another now: they register again."""
        for member in list(self._members.values()):
            guest = member.source.guest
            if find_access_rule(guest.principal, rules) != guest.rule:
                member.keeper.link.on_pipe_lost("its [[access]] entry changed")

    def hang_up(self) -> None:
        """Close all connections because the node stops, so that subservers look for another parent. Calls under way
        have ended.
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
            if self._leases is not None:
                session = member.keeper.link.registration
                await self._give_up(self._leases, session.register, session.session_id)
        await self._tasks.close()
        await self._hanging_up.finish(STOP_S)

    def _record(
        self,
        who: str,
        method: str,
        segment: str,
        refusal: Refusal | None,
        seconds: float,
        outcome: str = "ok",
        reason: str | None = None,
    ) -> None:
        if refusal is not None:  # one that is refused comes again and again
            self._refusals.note(who, "ax", method, refusal.message, segment)
            return
        at = self._clock.wall() - seconds
        self._recorder.add(AuditRecord(at, who, "ax", method, segment, None, "admitted", outcome, seconds, reason))


_LOSSES: Final = {"heartbeat_timeout": "it missed three heartbeats", "connection_lost": "its connection ended"}
_BAD_NAMES: Final = "the name is not valid here"
_INVALID: Final = "namespace_invalid"  # AX-4.3-1
