"""The parts of the node that registrations use, and the source a registration comes from."""

from typing import Protocol

import msgspec

from interlock.approvals.trust.registrant import RegistrantIdentity
from interlock.ax.ownership import Leases
from interlock.ax.protocol.messages import Parent
from interlock.catalog.catalog import Catalog
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.core.recorder import Recorder
from interlock.core.refusal_log import Refusals
from interlock.fronts.audience import Audience
from interlock.guard.budgets import Budgets
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper
from interlock.links.link_events import LinkEvents
from interlock.links.registered import RegisteredKeeper, RegistrationParts
from interlock.wire.refusal import Refusal


class RegistrationSource(Protocol):
    """The connection a registrant came by."""

    transport: str
    guest: RegistrantIdentity

    @property
    def is_open(self) -> bool:
        """False: it ended while its registration was judged."""

    async def ask_parent(self) -> Parent | Refusal | None:
        """None: it has none, or knows no such question."""

    def keeper_for(self, parts: RegistrationParts) -> RegisteredKeeper:
        """The keeper, and with it the link, which has its pipe."""

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
