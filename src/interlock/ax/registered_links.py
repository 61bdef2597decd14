"""Makes the links of subservers that register: what each offers, its budget, and the gate of its notices."""

from interlock.ax.membership_parts import RegistrationSource
from interlock.ax.protocol.budget import Limits
from interlock.ax.protocol.hop_metadata import Offer
from interlock.ax.protocol.notifications import Drops, NoticeGate
from interlock.ax.protocol.registration.sessions import Session
from interlock.config.plan import Plan
from interlock.core.calls.charge import Account
from interlock.core.clock import Clock
from interlock.links.link_events import LinkEvents
from interlock.links.registered import RegisteredLink, RegistrationEvents


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
