"""The approval that a proposal becomes, before it is in the inbox: who asks for what, of whom, why, and until when."""

import secrets
from collections.abc import Callable
from typing import Final, Protocol

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Source
from interlock.approvals.protocol.digests import proposal_digest
from interlock.core.clock import Clock
from interlock.rooms.protocol.envelope import Envelope
from interlock.rooms.protocol.participants import OWN
from interlock.rooms.protocol.proposals import Proposed
from interlock.rooms.room import Room

NONCE_BYTES: Final = 24


class HeldTool(Protocol):
    """A tool of this node, as far as a proposal of a call needs it; `catalog.routes.Route`."""

    @property
    def qualified(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def is_held(self) -> bool: ...


class ProposalDrafts:
    def __init__(self, inbox: Inbox, clock: Clock, tool: Callable[[str], HeldTool | None]) -> None:
        """`tool`: one of this node's, by its name."""
        self._inbox = inbox
        self._clock = clock
        self._tool = tool

    def make(
        self, room: Room, envelope: Envelope, proposed: Proposed, principal: str, received_at: float | None
    ) -> Approval:
        to = envelope.to or ()
        target = to[0] if len(to) == 1 else None
        name, params = proposed.tool, proposed.params
        own = self._tool(name) if target == OWN and name is not None else None
        place = f"rooms.{room.topic}.{target or '*'}"
        began = self._clock.wall() if received_at is None else received_at
        shown = b"null" if params is None else bytes(params)
        return self._inbox.draft(
            Kind.PROPOSAL,
            Source.ROOMS,
            requested_by=principal,
            tool=own.qualified if own is not None else f"{place}.{name}" if name is not None else place,
            digest=proposal_digest(room.topic, envelope.id, envelope.sender, target, proposed.method, shown),
            agent=envelope.sender,
            room=room.topic,
            proposal_id=envelope.id,
            target=target,
            method=proposed.method,
            params=params,
            tool_digest=own.digest if own is not None else None,
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            reason=proposed.reason,
            expires_at=began + room.settings.proposal_ttl_s,
        )

    def is_held(self, approval: Approval) -> bool:
        """Whether what is proposed is a call of this node's that the gate holds."""
        tool = self._tool(approval.tool) if approval.target == OWN else None
        return tool is not None and tool.is_held
