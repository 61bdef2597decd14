"""Trust requests: a person accepts an untrusted driver folder in the inbox and proves the decision (SURFACE 7).

There is one request for each state of a folder. A request becomes void when its folder was deleted, changed or trusted
in another way. The inbox shows the files with their digests, and the proof covers the digest of these files.
"""

import logging
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Move, Source, Status, What
from interlock.approvals.protocol.digests import UNTRUSTED
from interlock.core.feed import AsyncFeed
from interlock.drivers.workspace.declaration import Declaration, Declared
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refusal, Refused

if TYPE_CHECKING:
    from interlock.drivers.registry.operations import DriverService

log = logging.getLogger("interlock.drivers")

PREFIX: Final = "drivers."  # before the driver's key, so that an anchor can be for drivers alone
WAITING_MAX: Final = 100  # folders asked about at one time; the others are when some of these are decided
SHOWN_BYTES_MAX: Final = 256 * 1024  # of one
NODE: Final = "node"

_NEW: Final = "this driver has not been accepted yet"
_CHANGED: Final = "the files of this driver changed since they were accepted"


class TrustRequests(DecisionReceiver):
    """Requests in the inbox to trust drivers."""

    def __init__(self, inbox: Inbox, service: "DriverService", declared: AsyncFeed[Declaration]) -> None:
        self._inbox = inbox
        self._service = service
        declared.subscribe(self.ask)

    async def ask(self, declaration: Declaration) -> None:
        """Cancel outdated requests, and create one for each driver that waits only for a person's decision.

        At most WAITING_MAX requests wait at a time. A decision that the node recorded but did not apply is applied.
        """
        open_ = {
            (_tool(declared), declared.digest): declared
            for declared in declaration.drivers
            if declared.is_fit and not declared.trusted
        }

        def settled(approval: Approval) -> bool:
            is_ours = approval.source is Source.DRIVERS and approval.status is Status.PENDING
            is_open = (approval.tool, approval.digest) in open_
            return is_ours and not is_open and not self._inbox.is_elsewhere(approval.id)

        try:
            await self._inbox.void_where("superseded: the driver is another by now, or trusted, or gone", settled)
            for approval in self._inbox.listed((Status.APPROVED,), Kind.DEFINITION):
                # The node stopped before it applied the decision.
                if approval.source is Source.DRIVERS and not self._inbox.is_elsewhere(approval.id):
                    await self.settle(approval)
            waiting = sum(declared.source is Source.DRIVERS for declared in self._inbox.waiting(Kind.DEFINITION))
            for (tool, digest), declared in open_.items():
                if waiting < WAITING_MAX and self._inbox.find_definition(tool, digest) is None:
                    try:
                        await self._raise(tool, declared)
                    except Refused as error:  # it is changing: the next scan asks about it
                        log.info("driver %s cannot be put into the inbox: %s", declared.segment, error)
                        continue
                    waiting += 1
        except (StoreError, Refused) as error:
            log.error("untrusted drivers cannot be put into the inbox: %s", error)

    async def _raise(self, tool: str, declared: Declared) -> None:
        compared = await self._service.comparison(declared)
        encoded = msgspec.json.encode(compared)
        if len(encoded) > SHOWN_BYTES_MAX:
            message = "driver %s is too long for the inbox: interlock drivers trust %s shows it"
            log.warning(message, declared.segment, declared.segment)
            return
        raised = await self._inbox.raise_(
            self._inbox.draft(
                Kind.DEFINITION,
                Source.DRIVERS,
                requested_by=NODE,
                tool=tool,
                digest=declared.digest,
                tool_digest=declared.digest,
                params=Raw(encoded),
                reason=_CHANGED if "before" in compared else _NEW,
                factors=(UNTRUSTED,),
            )
        )
        if isinstance(raised, Refusal):
            log.error("driver %s cannot be put into the inbox: %s", declared.segment, raised.message)

    async def refresh(self) -> None:
        """Read the drivers on disk again. Raise StoreError if a record cannot be stored."""
        await self._service.registry.refresh()

    def is_current(self, approval: Approval) -> bool:
        """Return whether the request still matches the current state of its folder."""
        drivers = self._service.registry.declaration.drivers
        return any((_tool(declared), declared.digest) == (approval.tool, approval.digest) for declared in drivers)

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Apply a person's decision: trust the folder if it was accepted, and start its server.

        Return the request after that, or a refusal if the decision cannot be used. A request that was not accepted is
        returned unchanged.
        """
        decision = approval.decision
        if decision is None or decision.what is not What.APPROVED:
            return approval
        used = await self._inbox.use(approval.id)
        if isinstance(used, Refusal):
            return used
        key = approval.tool.removeprefix(PREFIX)
        try:
            await self._service.accept(key, approval.digest, decision.by)
        except (Refused, StoreError) as refused:
            log.error("driver %s was accepted and cannot be trusted: %s", key, refused)
            return await self._inbox.finish(approval.id, Move.FAIL, str(refused))
        return await self._inbox.finish(approval.id, Move.SUCCEED)


def _tool(declared: Declared) -> str:
    return f"{PREFIX}{declared.key}"
