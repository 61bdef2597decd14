"""The gate: what a call waits for that a person has to agree to (MCP-AX 11.3).

Theory of operation. The dispatcher gives a call over a route with a gate a `GateHold`. The guard asks the gate through
it: to name what is asked (`identify`, check 7), for the answer where one is known (`refusal`, check 10), for the
approval that releases the call (`approval`), and to use it up, on disk (`use`, check 11). The gate itself sends nothing
and admits nothing. The call tells its hold the answer and the end. Nothing of the call is kept but what the inbox shows
a person; the client makes the identical call again. What a hop below demands is carried up and never answered for. Who
may decide, and on what proof, is settled before an approval counts.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Move, Status
from interlock.catalog.routes import ChangedDefinition, Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, Outcome
from interlock.core.calls.caller import Caller
from interlock.core.calls.check import CheckNumber, Refuse, Release
from interlock.core.calls.failures import answer_failures
from interlock.core.calls.refusals import HELD
from interlock.core.clock import Clock
from interlock.gate.granted_calls import GrantedCalls
from interlock.gate.hold import Back, GateHold, requester_of
from interlock.gate.protocol.held_call import call_digest
from interlock.gate.protocol.relay import Carried
from interlock.gate.protocol.request_state import PREFIX
from interlock.gate.question import draft_question, is_open
from interlock.gate.relays import Relays, result_of
from interlock.gate.responses import STATE_FOREIGN, STATE_INVALID, Answers, sees_pages
from interlock.gate.rounds import Pass, Rounds
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import TOOLS_CALL, Era
from interlock.mcp.mrtr import read_input_required, request_digest
from interlock.store.ports import Conflict, KeyValue
from interlock.wire.jsonrpc.codec import encode_result
from interlock.wire.refusal import UNAVAILABLE, Refusal

LOOKS_MAX: Final = 3  # at an approval that others use up or change meanwhile
KEY_BYTES: Final = 32
BUCKET: Final = "gate"
_INPUT_REQUIRED: Final = b'"input_required"'
_VISIT: Final = b'"%b' % PREFIX.encode()


class Approvers(Protocol):
    """The anchors of the configuration."""

    def approver_names(self, tool: str) -> tuple[str, ...]:
        """The names of those whose proof may release a call of the tool."""


class ApprovalJudge(Protocol):
    def stands(self, approval: Approval) -> bool:
        """Whether its approver may still approve."""


class Gate:
    def __init__(
        self,
        inbox: Inbox,
        approvers: Approvers,
        judge: ApprovalJudge,
        clock: Clock,
        kv: KeyValue,
        *,
        aggregator_id: str,
        operator_url: Callable[[], str],
        ruled: Callable[[str, str], object | None],
        granted: GrantedCalls,
    ) -> None:
        """`ruled`: what was said of a tool's definition, by its name and digest."""
        self.inbox = inbox
        self._judge = judge
        self.aggregator_id = aggregator_id
        self._clock = clock
        self._kv = kv
        self.rounds = Rounds(clock, self._not_taken_up)
        self.relays = Relays(inbox, self.rounds, aggregator_id)
        self.answers = Answers(
            clock,
            aggregator_id=aggregator_id,
            operator_url=operator_url,
            able=lambda tool: bool(approvers.approver_names(tool)),
        )
        self._work = BackgroundTasks()
        self._ruled = ruled
        self._granted = granted
        self._underway: set[str] = set()  # approvals that were used and whose calls are not over

    async def open(self) -> None:
        """The key of the states outlives the node, as approvals do. Raises StoreError."""
        now, key = self._clock.wall(), secrets.token_bytes(KEY_BYTES)
        try:
            await self._kv.create(BUCKET, "key", key, now)
        except Conflict:
            kept = await self._kv.get(BUCKET, "key", now)
            key = key if kept is None else kept.value
        self.relays.take_key(key)
        self.answers.take_key(key)

    async def close(self) -> None:
        await self._work.finish()

    # A call comes in

    def returned(self, caller: Caller, params: dict[str, Any]) -> Back | Refusal | None:
        """What a request with a state comes back for, if it is for a confirmation of ours."""
        return self.answers.returned(caller, params)

    def hold(self, call: Call, route: Route, back: Back | None, released_by: str | None = None) -> GateHold:
        """What a call over a route with a gate waits for. A hop below that may hold it is told whose it is.
        `released_by`: the approval of a proposal of this very call."""
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
        """The person at the client does not want the call: it is answered so, and never sent."""
        hold.is_waiting = hold.answered_here = True
        self._work.begin(answer_failures(call, self._take_back(call, hold, back.visit.confirmation_id)))

    # Check 7

    def identify(self, call: Call, hold: GateHold) -> Refusal | None:
        if hold.route.is_held:
            digest = self._digest(call, hold)
            if isinstance(digest, Refusal):
                return digest
            hold.digest = digest
        if hold.back is not None and hold.back.visit.digest != hold.digest:  # AX-11.3-12
            return STATE_FOREIGN
        if hold.state.startswith(_VISIT) and not self._may_go_on(call, hold):
            return STATE_INVALID
        hold.is_named = True
        return None

    def _digest(self, call: Call, hold: GateHold) -> str | Refusal:
        route = hold.route
        return call_digest(
            call.params.get("arguments"),
            aggregator_id=self.aggregator_id,
            tool=route.qualified,
            route=(*route.segments, route.local),
            caller=hold.requester,
            tool_digest=route.digest,
        )

    # Check 10

    def refusal(self, call: Call, hold: GateHold) -> Refuse:
        """What the call is answered from what is known; HELD where the store has to be asked."""
        found = self._find(call, hold)
        if found is None or found.status is Status.APPROVED or self._may_go_on(call, hold):
            return HELD
        near = self._granted.release(hold, found) if found.status is Status.PENDING else ""
        return HELD if isinstance(near, Release) else self._wait_for(call, hold, found, near)

    async def approval(self, call: Call, hold: GateHold) -> Release | Refuse:
        """A person's yes to this call, looked for or asked for."""
        if self._may_go_on(call, hold):
            approval_id = self.rounds.maybe_approval(hold.requester, hold.digest) or ""
            return Release(approval_id, is_used=True)
        route = hold.route
        proposal = self.inbox.get(hold.released_by) if hold.released_by is not None else None
        if proposal is not None and self._releases(proposal, route):
            return Release(proposal.id)
        if is_open(route) and self._ruled(route.qualified, route.digest) is not None:
            return _RELISTING  # said meanwhile: no person is asked a second time
        for _ in range(LOOKS_MAX):
            known = self._find(call, hold)
            near = self._granted.release(hold, known) if self._may_be_granted(known) else ""
            if isinstance(near, Release):
                return near
            found = known or await self.inbox.raise_(draft_question(self.inbox, call, hold))
            if call.done:
                return HELD
            if isinstance(found, Refusal):
                return Refuse(CheckNumber.GATE, found)
            if found.status is not Status.APPROVED:  # AX-11.3-3, AX-11.3-10
                return self._wait_for(call, hold, found, near)
            if found.kind is Kind.DEFINITION:  # said, and about to be listed so
                return _RELISTING
            if self._is_still_good(found):  # AX-11.3-9: a removed anchor
                return Release(found.id)
            await self.inbox.void(found.id, "who released it may no longer do so")
        return _CHANGING

    def _find(self, call: Call, hold: GateHold) -> Approval | None:
        if is_open(hold.route):
            return self.inbox.find_definition(hold.route.qualified, hold.route.digest)
        return self.inbox.find(hold.requester, hold.digest)

    def _may_be_granted(self, known: Approval | None) -> bool:
        if known is None or known.status is Status.PENDING:
            return True
        return known.status is Status.APPROVED and self._granted.is_granted(known)

    def _is_still_good(self, approval: Approval) -> bool:
        """An anchor that is gone, or no longer answers for this tool, has released nothing."""
        decision = approval.decision
        has_proof = decision is not None and decision.proof is not None
        return has_proof and self._judge.stands(approval) and not self._granted.is_granted(approval)

    def _releases(self, proposal: Approval, route: Route) -> bool:
        """Whether the person who approved a proposal of this call agreed to the tool as it is (X-10.2-3)."""
        is_same = (proposal.tool, proposal.tool_digest) == (route.qualified, route.digest)
        is_approved = proposal.kind is Kind.PROPOSAL and proposal.status is Status.APPROVED
        return is_approved and is_same and not is_open(route) and self._is_still_good(proposal)

    def _wait_for(self, call: Call, hold: GateHold, approval: Approval, near: str = "") -> Refuse:
        hold.answered_here = True
        if call.caller.hop is not None:
            self.rounds.note_route(approval.id, call.meta)
        result = self.answers.of(call, hold, approval, self.inbox.rules.redeem_s, near)
        return Refuse(CheckNumber.GATE, HELD.refusal, result)

    def denial(self, call: Call, route: Route, approval: Approval) -> bytes:
        """What the caller of a call that was refused is told."""
        return self.answers.of(call, self.hold(call, route, None), approval, self.inbox.rules.redeem_s)

    async def _take_back(self, call: Call, hold: GateHold, confirmation_id: str) -> None:
        """What a hop below holds is left there to lapse."""
        approval = self.inbox.get(confirmation_id)
        if approval is not None and approval.requested_by == hold.requester:
            await self.inbox.withdraw(confirmation_id)
        result = self.answers.declined(call, hold, approval or draft_question(self.inbox, call, hold))
        call.answer(encode_result(call.client_id, result), Outcome.REFUSED)

    # Check 11 and after

    async def use(self, call: Call, release: Release) -> Refusal | None:
        """The approval is used, on disk, by this call and no other; or by an earlier round of it, while that lasts."""
        hold, approval_id = call.hold, release.approval_id
        before: Pass | None = None
        if not isinstance(hold, GateHold):
            return HELD.refusal
        if release.is_used:
            before = self.rounds.take(hold.requester, hold.digest)
            if before is None or before.approval_id != approval_id or approval_id not in self._underway:
                return HELD.refusal  # another round was first
        else:
            used = await (
                self.inbox.use(approval_id)
                if release.grant_id is None
                else self._granted.use(release, draft_question(self.inbox, call, hold))
            )
            if isinstance(used, Refusal):  # AX-11.3-11: exactly one
                return used
            approval_id = used.id
            self._underway.add(approval_id)
        hold.release(call, approval_id, before)
        if call.done:  # its client left while the approval was being used
            self.finish(approval_id, Move.FAIL, "its caller left before anything was sent")
        return None

    def end(self, hold: GateHold, outcome: Outcome, reason: str | None) -> None:
        if hold.approval_id is not None and not hold.goes_on:
            unread = outcome is Outcome.ERROR and reason in _UNREAD
            self.finish(hold.approval_id, *((Move.LOSE, str(reason)) if unread else _END[outcome]))

    def finish(self, approval_id: str, move: Move, outcome: str) -> None:
        self._underway.discard(approval_id)
        self._work.begin(self.inbox.finish(approval_id, move, outcome))

    # A released call whose answer is a question goes on with the same approval

    def _may_go_on(self, call: Call, hold: GateHold) -> bool:
        return self.rounds.may_go_on(hold.requester, hold.digest, hold.state)

    def _not_taken_up(self, approval_id: str) -> None:
        self.finish(approval_id, Move.FAIL, "the question it was answered with was not answered in time")

    def _let_go_on(
        self,
        hold: GateHold,
        state: bytes = b"",
        questions: frozenset[str] = frozenset(),
        held_below: str | None = None,
    ) -> None:
        if hold.approval_id is not None:
            hold.goes_on = self.rounds.let_go_on(
                hold.requester,
                hold.digest,
                hold.approval_id,
                state,
                self.inbox.rules.redeem_s,
                questions,
                held_below,
                hold.rounds,
            )

    def read_answer(self, call: Call, hold: GateHold, message: bytes) -> bytes:
        """The answer on its way to the client."""
        read = self.relays.read_answer(call, hold, message)
        if isinstance(read, Carried):
            if not read.is_definition:
                self._let_go_on(hold, held_below=read.confirmation_id)
            return encode_result(call.client_id, self.answers.from_below(call, hold, read))
        message = read
        if hold.approval_id is not None and _INPUT_REQUIRED in message and call.caller.era is Era.MODERN:
            wanted = read_input_required(result_of(message))
            if wanted is not None and not isinstance(wanted, str):
                self._let_go_on(hold, bytes(wanted.state or b""), frozenset(wanted.questions))
        return message

    # Definitions that change

    def definitions_changed(self, changed: tuple[ChangedDefinition, ...]) -> None:
        """A confirmation holds only for the definition that was shown."""
        for one in changed:
            self._work.begin(self._void(one.name, one.after.digest))  # AX-11.3-14

    async def _void(self, tool: str, digest: str) -> None:
        why = "the definition of the tool has changed"
        await self.inbox.void_where(
            why, lambda one: one.kind is Kind.CALL and one.tool == tool and one.tool_digest != digest
        )


_END: Final = {
    Outcome.OK: (Move.SUCCEED, "ok"),
    Outcome.TOOL_ERROR: (Move.SUCCEED, "tool_error"),
    Outcome.ERROR: (Move.FAIL, "error"),
    Outcome.REFUSED: (Move.FAIL, "not_sent"),
    Outcome.TIMEOUT: (Move.LOSE, "timeout"),
    Outcome.CANCELLED: (Move.LOSE, "cancelled"),
    Outcome.LOST: (Move.LOSE, "lost"),
    Outcome.NOT_SENT: (Move.FAIL, "not_sent"),
}
_UNREAD: Final = ("result_too_large", "malformed_answer")  # the server has answered, and what it said is lost
_CHANGING: Final = Refuse(
    CheckNumber.GATE,
    Refusal(
        UNAVAILABLE,
        "unavailable",
        {"reason": "contended", "detail": "its approval keeps changing; make the call again"},
    ),
)
_RELISTING: Final = Refuse(
    CheckNumber.GATE,
    Refusal(
        UNAVAILABLE,
        "unavailable",
        {"reason": "relisting", "detail": "the tool was just classified; make the call again"},
    ),
)
