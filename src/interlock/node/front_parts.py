"""What clients connect to: sessions, both eras, surfaces, and the public endpoint."""

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import msgspec

from interlock.aql.adapter import LoopAdapter
from interlock.aql.client_lists import AqlLists
from interlock.aql.surface import AqlSurface
from interlock.config.plan import Plan
from interlock.core.calls.caller import Caller, Principal, principal_for
from interlock.core.current_plan import CurrentPlan
from interlock.core.feed import Feed
from interlock.credentials.protocol.resource import resource_of
from interlock.dispatch.client_notifications import ClientNotifications
from interlock.dispatch.task_methods import TaskMethods
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.lists import ListCache
from interlock.fronts.modern import ModernFront
from interlock.fronts.public import PublicEndpoint
from interlock.fronts.sessions import GRACEFUL, Session, Sessions
from interlock.fronts.stdio import LineFront
from interlock.fronts.surfaces import FrontPair, ServedSurface, Surfaces
from interlock.node.call_parts import CallParts
from interlock.node.link_parts import LinkParts
from interlock.node.store_parts import StoreParts

if TYPE_CHECKING:
    from interlock.access.oauth import AccessTokens
    from interlock.approvals.trust.client_certificates import Certificates


class LineFronts:
    """A factory of fronts for clients that speak over lines: standard input, or the socket beside it."""

    def __init__(self, current: CurrentPlan, surfaces: Surfaces) -> None:
        self._current = current
        self._surfaces = surfaces
        self._made: WeakSet[LineFront] = WeakSet()

    def replan(self) -> None:
        """Apply changed [[access]] rules, also to clients that are connected."""
        for front in list(self._made):
            front.act_as(self._principal())

    def _principal(self) -> Principal:
        return principal_for("local", None, self._current.plan.access)

    def make(self, only: str | None, surface: str | None = None) -> LineFront:
        """Return a front for one client. `surface`: the surface that the client wants."""
        plan = self._current.plan
        principal = self._principal()
        front = LineFront(
            partial(self._surfaces.choose, surface, principal, only),
            partial(self._surfaces.maybe_wait, surface, principal, only),
            principal,
            only=only,
            names=plan.mcp.names,
            max_bytes=plan.limits.message_bytes,
        )
        self._made.add(front)
        return front


class EndedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A client that went away."""

    caller: Caller
    reason: str
    is_graceful: bool  # the client said so itself


class FrontParts(msgspec.Struct, frozen=True, kw_only=True):
    sessions: Sessions
    lists: ListCache
    legacy: LegacyFront
    modern: ModernFront
    bearers: "AccessTokens | None"
    certificates: "Certificates | None"
    public: PublicEndpoint
    lines: LineFronts
    session_ended: Feed[EndedSession]
    credentials_changed: Feed[None]  # tokens or certificates may no longer be valid: who is connected is checked again


def make_front_parts(plan: Plan, stores: StoreParts, calls: CallParts, links: LinkParts, *, listen: bool) -> FrontParts:
    """Construct the fronts. Raise StoreError or CertificatesInvalid. `listen`: clients connect over the network."""
    clock, tokens, refusals = stores.clock, stores.tokens, stores.refusals

    session_ended = Feed[EndedSession]()
    credentials_changed = Feed[None]()

    def on_session_ended(caller: Caller, session: Session | None, reason: str) -> None:
        session_ended.publish(EndedSession(caller=caller, reason=reason, is_graceful=reason in GRACEFUL))
        if session is not None:
            calls.audience.leave(session)
            calls.client_tasks.forget(caller)
            links.servers.end_session(caller)

    sessions = Sessions(clock, plan.mcp.session_idle_s, on_session_ended)
    lists = ListCache(calls.catalog, calls.keepers, calls.dispatch.arrivals, clock, plan.ax.list_ttl_s)
    tasks = TaskMethods(calls.dispatch, calls.task_updates, calls.keepers, clock)
    notifications = ClientNotifications(calls.dispatch.view, stores.recorder, clock, calls.safety.watch.may_notify)
    legacy = LegacyFront(calls.dispatch, lists, sessions, calls.audience, tasks, calls.client_tasks, notifications)
    modern = ModernFront(calls.dispatch, lists, calls.audience, tasks, notifications=notifications)
    surfaces = _surfaces(calls, stores, lists, sessions, tasks, FrontPair("flat", legacy, modern))
    certificates = _certificates(plan, stores) if listen else None

    bearers = _bearers(plan, stores, calls) if listen else None
    return FrontParts(
        sessions=sessions,
        lists=lists,
        legacy=legacy,
        modern=modern,
        bearers=bearers,
        certificates=certificates,
        public=PublicEndpoint(
            plan,
            tokens,
            legacy,
            modern,
            surfaces,
            refusals,
            bearers,
            also_dismiss=lambda: credentials_changed.publish(None),
            has_segment=calls.catalog.has_segment,
        ),
        lines=LineFronts(stores.current, surfaces),
        session_ended=session_ended,
        credentials_changed=credentials_changed,
    )


def _surfaces(
    calls: CallParts, stores: StoreParts, lists: ListCache, sessions: Sessions, tasks: TaskMethods, flat: FrontPair
) -> Surfaces:
    def pair(name: ServedSurface, surface: AqlSurface) -> FrontPair:
        own = AqlLists(lists, surface)
        return FrontPair(
            name,
            LegacyFront(surface, own, sessions, calls.audience, tasks, calls.client_tasks),
            ModernFront(surface, own, calls.audience, tasks, flat.modern.listeners),
        )

    mode = stores.current.plan.aql.mode
    aql = AqlSurface(calls.dispatch, calls.aql, mode)
    single = AqlSurface(calls.dispatch, calls.aql, "single")
    alone = LoopAdapter(calls.catalog, calls.operation_names, stores.recorder, stores.clock, calls.loop_operations)
    safety = AqlSurface(calls.dispatch, alone, mode)
    return Surfaces(
        flat,
        pair("aql", aql),
        pair("aql-single", single),
        pair("safety", safety),
        stores.current,
        calls.catalog,
        calls.dispatch.arrivals,
    )


def _certificates(plan: Plan, stores: StoreParts) -> "Certificates | None":
    """Return what checks client certificates of subservers and participants. Raise CertificatesInvalid."""
    if plan.node.client_ca is None:
        return None
    from interlock.approvals.trust.client_certificates import Certificates

    return Certificates(plan.node.client_ca, plan.node.crl, stores.clock)


def _bearers(plan: Plan, stores: StoreParts, calls: CallParts) -> "AccessTokens | None":
    """Access tokens, where an authorization server is configured."""
    if not plan.auth.issuers:
        return None
    from interlock.access.oauth import AccessTokens  # here, because `cryptography` takes 10 MiB

    return AccessTokens(
        plan.auth.issuers,
        plan.access,
        resource=lambda: resource_of(stores.addresses.public),
        node_name=plan.node.name,
        known_tokens=stores.tokens,
        view=calls.dispatch.view,
        recorder=stores.recorder,
        clock=stores.clock,
    )
