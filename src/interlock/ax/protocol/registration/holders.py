"""Who has which subserver below an aggregator (MCP-AX 13.4): the common parent of two aggregators sees it of both.

In come claims: of our own registrations, and of aggregators that registered here, for what is below them. Out comes who
had it first. An aggregator claims at its own parent what it is claimed itself, so that the first parent that two have
in common decides, whatever the subserver knows of parents. A claim lasts as long as the registration it came by.
"""

from typing import Final

import msgspec

from interlock.ax.protocol.messages import Claimed
from interlock.ax.protocol.registration.leases import Lease, releases

OWN: Final = ""  # came by no registration: the subserver registered here
HELD_MAX: Final = 10_000  # by one registration


class Held(msgspec.Struct, frozen=True):
    lease: Lease
    via: str  # the session of the registrant that claimed it; OWN


class Holders:
    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._by_via: dict[str, dict[str, None]] = {}

    def claim(self, claimed: Claimed, via: str, released_session: str | None = None) -> str | None:
        """None: it is entered for them. Else the aggregator that has the subserver.

        `via`: the session by which the claim came. By another one, an aggregator that moved claims the same sessions
        again; one that only says its name does not know them.
        """
        held = self._held.get(claimed.subserver_id)
        if held is not None:
            is_known = via == held.via or claimed.session_hash == held.lease.session_hash
            is_theirs = is_known and claimed.aggregator_id == held.lease.aggregator_id
            if not is_theirs and not releases(released_session, held.lease):  # AX-13.4-2
                return held.lease.aggregator_id
            self._forget(claimed.subserver_id, held.via)
        lease = Lease(aggregator_id=claimed.aggregator_id, session_hash=claimed.session_hash)
        self._held[claimed.subserver_id] = Held(lease, via)
        self._by_via.setdefault(via, {})[claimed.subserver_id] = None
        return None

    def has_room(self, via: str, more: int) -> bool:
        return len(self._by_via.get(via, ())) + more <= HELD_MAX

    def release(self, subserver_id: str, via: str, session_hash: str | None = None) -> bool:
        """Only what came the same way, and of that session where one is named. False: there was no such claim."""
        held = self._held.get(subserver_id)
        if held is None or held.via != via or session_hash not in (None, held.lease.session_hash):
            return False
        self._forget(subserver_id, via)
        return True

    def release_all(self, via: str) -> tuple[str, ...]:
        """The registration by which they came is over."""
        gone = tuple(self._by_via.get(via, ()))
        for one in gone:
            self._forget(one, via)
        return gone

    def maybe_held(self, subserver_id: str) -> Held | None:
        return self._held.get(subserver_id)

    def all(self) -> tuple[Claimed, ...]:
        """As they are claimed further up."""
        return tuple(
            Claimed(subserver_id=one, aggregator_id=held.lease.aggregator_id, session_hash=held.lease.session_hash)
            for one, held in self._held.items()
        )

    def _forget(self, subserver_id: str, via: str) -> None:
        del self._held[subserver_id]
        known = self._by_via[via]
        del known[subserver_id]
        if not known:
            del self._by_via[via]
