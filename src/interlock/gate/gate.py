"""The gate: calls that a person has to agree to are held until then, and sent once (MCP-AX 11.3).

Theory of operation. The dispatcher gives a call over a route with a gate a `GateHold`. The guard asks the hold to name
the call (check 7), for the answer while no decision exists (check 10), for the approval that releases the call, and to
use that approval up, on disk (check 11). The gate itself sends nothing and admits nothing. Nothing of the call is
stored but what the inbox shows a person; the client makes the identical call again. What a hop below demands is carried
up and never answered for. Who may decide, and on what proof, is settled before an approval counts.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Move
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.catalog.routes import ChangedDefinition, Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome, answer_failures
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock
from interlock.gate.granted_calls import GrantedCalls
from interlock.gate.hold import GateHold, draft_question, requester_of
from interlock.gate.relays import Relays
from interlock.gate.responses import Answers, Back, sees_pages
from interlock.gate.rounds import Rounds
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import TOOLS_CALL
from interlock.mcp.mrtr import request_digest
from interlock.store.ports import Conflict, KeyValue
from interlock.wire.jsonrpc.codec import encode_result
from interlock.wire.refusal import Refusal

KEY_BYTES: Final = 32
BUCKET: Final = "gate"


class GateParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a node that its gate works with."""

    inbox: Inbox
    anchors: Anchors
    judge: ProofVerifier
    clock: Clock
    kv: KeyValue
    aggregator_id: str
    operator_url: Callable[[], str]
    find_ruling: Callable[[str, str], object | None]  # how an operator classified a tool, by its name and digest
    granted: GrantedCalls


class Gate:
    """The gate of a node: makes the holds of gated calls, and knows which approvals are used."""

    def __init__(self, parts: GateParts) -> None:
        self.inbox = parts.inbox
        self.aggregator_id = parts.aggregator_id
        self.find_ruling = parts.find_ruling
        self.granted = parts.granted
        self._judge = parts.judge
        self._clock = parts.clock
        self._kv = parts.kv
        self.rounds = Rounds(parts.clock, self._fail_unanswered)
        self.relays = Relays(parts.inbox, self.rounds, parts.aggregator_id)
        self.answers = Answers(
            parts.clock,
            aggregator_id=parts.aggregator_id,
            operator_url=parts.operator_url,
            able=lambda tool: bool(parts.anchors.approver_names(tool)),
        )
        self.used_approvals: set[str] = set()  # whose calls are not over
        self._work = BackgroundTasks()

    async def open(self) -> None:
        """Load or make the key that seals states. It outlives the node, as approvals do. Raises StoreError."""
        now, key = self._clock.wall(), secrets.token_bytes(KEY_BYTES)
        try:
            await self._kv.create(BUCKET, "key", key, now)
        except Conflict:
            stored = await self._kv.get(BUCKET, "key", now)
            key = key if stored is None else stored.value
        self.relays.take_key(key)
        self.answers.take_key(key)

    async def close(self) -> None:
        await self._work.finish()

    # A call comes in

    def returned(self, caller: Caller, params: dict[str, Any]) -> Back | Refusal | None:
        """Return what a request with a state comes back for, if it is for a confirmation of ours."""
        return self.answers.returned(caller, params)

    def hold(self, call: Call, route: Route, back: Back | None, released_by: str | None = None) -> GateHold:
        """Return the hold of a call over a route with a gate. A hop below that may hold the call is told its caller.

        `released_by`: the approval of a proposal of this very call.
        """
        requester = requester_of(call)
        if route.gate is not None and route.gate.relays:
            self.relays.mark_caller(call, requester)
        return GateHold(
            gate=self,
            route=route,
            requester=requester,
            digest=request_digest(TOOLS_CALL, call.params).hex() if not route.is_held and sees_pages(call) else "",
            arguments=call.params.get("arguments") or RAW_EMPTY,
            is_waiting=route.is_held,
            back=back,
            state=bytes(call.params.get("requestState", b"")),
            released_by=released_by,
        )

    def take_back(self, call: Call, hold: GateHold, back: Back) -> None:
        """Answer a call that the person at the client no longer wants. It is never sent."""
        hold.is_waiting = hold.answered_here = True
        self._work.begin(answer_failures(call, self._take_back(call, hold, back.visit.confirmation_id)))

    def denial_result(self, call: Call, route: Route, approval: Approval) -> bytes:
        """Return the result for the caller of a call that a person denied."""
        return self.answers.of(call, self.hold(call, route, None), approval, self.inbox.rules.redeem_s)

    async def _take_back(self, call: Call, hold: GateHold, confirmation_id: str) -> None:
        """Withdraw the approval, and answer the call. What a hop below holds is left there to expire."""
        approval = self.inbox.get(confirmation_id)
        if approval is not None and approval.requested_by == hold.requester:
            await self.inbox.withdraw(confirmation_id)
        result = self.answers.declined(call, hold, approval or draft_question(self.inbox, call, hold))
        call.answer(encode_result(call.client_id, result), Outcome.REFUSED)

    # Approvals

    def is_still_good(self, approval: Approval) -> bool:
        """Return whether its approver may still approve: an anchor may be gone or may have lost this tool."""
        decision = approval.decision
        has_proof = decision is not None and decision.proof is not None
        return has_proof and self._judge.stands(approval) and not self.granted.is_granted(approval)

    def finish(self, approval_id: str, move: Move, outcome: str) -> None:
        """Record how the call of a used approval ended."""
        self.used_approvals.discard(approval_id)
        self._work.begin(self.inbox.finish(approval_id, move, outcome))

    def _fail_unanswered(self, approval_id: str) -> None:
        self.finish(approval_id, Move.FAIL, "the question it was answered with was not answered in time")

    # Definitions that change

    def definitions_changed(self, changed: tuple[ChangedDefinition, ...]) -> None:
        """Void the approvals of calls of these tools: an approval holds only for the definition that was shown."""
        for definition in changed:
            self._work.begin(self._void(definition.name, definition.after.digest))  # AX-11.3-14

    async def _void(self, tool: str, digest: str) -> None:
        why = "the definition of the tool has changed"
        await self.inbox.void_where(
            why,
            lambda approval: approval.kind is Kind.CALL and approval.tool == tool and approval.tool_digest != digest,
        )
