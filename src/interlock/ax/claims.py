"""Subservers claimed at the parent (MCP-AX 13.4): what is registered here, and what registrants say is below them.

A claim is entered here at once, so that of two that come together one is first; then the parent is asked, and so on up
the tree. Where there is no parent, or it does not answer, what is known here decides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from interlock.ax.protocol.messages import Claimed
from interlock.ax.protocol.registration.holders import OWN, Holders
from interlock.ax.protocol.registration.leases import lease_of
from interlock.ax.protocol.registration.sessions import Session


class ClaimsAbove(Protocol):
    """The parent in our own tree, where there is one."""

    async def claim(self, claims: Sequence[Claimed], released_session: str | None) -> Mapping[str, str]:
        """Those that another aggregator has: subserver_id -> its aggregator_id."""

    def release(self, subserver_ids: Sequence[str]) -> None: ...


class TreeClaims:
    def __init__(self, aggregator_id: str, on_moved: Callable[[str, Mapping[str, str]], None]) -> None:
        """`on_moved` is told by which registration subservers were claimed, OWN for our own, and who has them now."""
        self._own_id = aggregator_id
        self._on_moved = on_moved
        self._above: ClaimsAbove | None = None
        self.holders = Holders()

    def report_to(self, above: ClaimsAbove) -> None:
        self._above = above

    async def claim_own(self, subserver_id: str, session_id: str, released_session: str | None) -> str | None:
        """A subserver registers here. The aggregator that has it already; None: it is ours."""
        lease = lease_of(self._own_id, session_id)
        claimed = Claimed(subserver_id=subserver_id, aggregator_id=lease.aggregator_id, session_hash=lease.session_hash)
        return (await self.claim((claimed,), OWN, released_session)).get(subserver_id)

    async def claim(self, claims: Iterable[Claimed], via: str, released_session: str | None = None) -> dict[str, str]:
        """Those that another aggregator has. `via`: the session of the registrant that claims."""
        refused: dict[str, str] = {}
        entered = []
        moved: list[tuple[str, Claimed]] = []
        for one in claims:
            before = self.holders.maybe_held(one.subserver_id)
            holder = self.holders.claim(one, via, released_session)
            if holder is not None:
                refused[one.subserver_id] = holder
                continue
            entered.append(one)
            if before is not None and before.via != via and before.lease.aggregator_id != one.aggregator_id:
                moved.append((before.via, one))
        if entered and self._above is not None:
            for subserver_id, holder in (await self._above.claim(entered, released_session)).items():
                if self.holders.release(subserver_id, via):
                    refused[subserver_id] = holder
        for former, one in moved:
            if one.subserver_id not in refused:
                self._on_moved(former, {one.subserver_id: one.aggregator_id})
        return refused

    def disown(self, held: Mapping[str, str]) -> None:
        """The parent says that others have these."""
        for subserver_id, holder in held.items():
            before = self.holders.maybe_held(subserver_id)
            if before is not None:
                self.release((subserver_id,), before.via)
                self._on_moved(before.via, {subserver_id: holder})

    def release(self, subserver_ids: Iterable[str], via: str) -> None:
        self._tell([one for one in subserver_ids if self.holders.release(one, via)])

    def release_own(self, subserver_id: str, session_id: str) -> None:
        if self.holders.release(subserver_id, OWN, lease_of(self._own_id, session_id).session_hash):
            self._tell([subserver_id])

    def end(self, session: Session) -> None:
        """A registration is over: its own claim, and those that came by it."""
        self.release_own(session.register.subserver_id, session.session_id)
        self._tell(self.holders.release_all(session.session_id))

    def _tell(self, gone: Sequence[str]) -> None:
        if gone and self._above is not None:
            self._above.release(gone)
