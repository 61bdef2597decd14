"""The gate: a call that requires a person's approval is held until the person decides, and then sent once (MCP-AX
11.3).

Theory of operation. The dispatcher creates a `GateHold` for each call over a gated route. The hold passes the guard
together with its call: it computes the digest that identifies the call (check 7), refuses the call while no decision
exists (check 10), finds the approval that releases the call, and marks that approval as used on disk before anything is
sent (check 11). Then it reads the reply of the server on its way to the client. The gate itself sends nothing and
admits nothing.

The inbox stores only what a person is shown of the call; after the decision, the client makes the identical call again.
A confirmation that an aggregator below demands is relayed to the caller; this node never confirms on the caller's
behalf. Who may decide, and with which proof, is checked before an approval counts (`approvals.decisions`).
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import CLASSIFIED, Approval, Kind, Move, Source, Status
from interlock.approvals.standing_grants import StandingGrants, Uncovered, find_arguments, is_granted
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.ax.protocol.capability import as_object
from interlock.ax.protocol.hop_metadata import CALLER, CAPABILITY, DECLARED, caller_mark, requester
from interlock.ax.protocol.messages import CONFIRM
from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import DefinitionSnapshot, Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallLink, Outcome, answer_failures
from interlock.core.calls.caller import Principal
from interlock.core.calls.check import CONFIRMATION_REQUIRED, HELD, CheckNumber, CheckRefusal, Held, Release
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.gate.protocol.held_call import PREFIX, call_digest, redeeming_params
from interlock.gate.protocol.policy import Hold
from interlock.gate.protocol.relay import MARK, RelayedCall, RelayedDemand, find_claimed_demand, find_demand
from interlock.gate.protocol.reserved_claims import DIGEST_MARK, ESCAPE_MARK, without_claims
from interlock.gate.responses import STATE_FOREIGN, STATE_INVALID, Responses, ReturningClient, sees_pages
from interlock.gate.rounds import NextRound, Relayed, Rounds, result_of
from interlock.guard.budgets import Budgets
from interlock.links.link import Link
from interlock.mcp.meta import PROGRESS_TOKEN, RAW_EMPTY
from interlock.mcp.methods import META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, TOOLS_CALL, Era
from interlock.mcp.modern_requests import modern_head
from interlock.mcp.mrtr import read_input_required, request_digest
from interlock.store.ports import Conflict, KeyValue
from interlock.wire.jsonrpc.codec import decode_object, encode_result, find_string
from interlock.wire.refusal import Refusal, unavailable

KEY_BYTES: Final = 32
BUCKET: Final = "gate"
NONCE_BYTES: Final = 24
RELEASE_TRIES_MAX: Final = 3  # for an approval that other calls use up or operators change meanwhile

_INPUT_REQUIRED: Final = b'"input_required"'
_OWN_STATE: Final = b'"%b' % PREFIX.encode()
_CLAIM_MARKS: Final = (MARK, DIGEST_MARK, ESCAPE_MARK)
# The members and the `_meta` keys of a call that are sent once a person has approved it; see `_keep_only_approved`.
_SHOWN_MEMBERS: Final = ("name", "arguments")
_PROTOCOL_META: Final = frozenset((META_VERSION, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, PROGRESS_TOKEN))

# How an approval that was used ends, by the outcome of its call: the move in the inbox, and the word on record.
_ENDS: Final = {
    Outcome.OK: (Move.SUCCEED, "ok"),
    Outcome.TOOL_ERROR: (Move.SUCCEED, "tool_error"),
    Outcome.ERROR: (Move.FAIL, "error"),
    Outcome.REFUSED: (Move.FAIL, "not_sent"),
    Outcome.TIMEOUT: (Move.LOSE, "timeout"),
    Outcome.CANCELLED: (Move.LOSE, "cancelled"),
    Outcome.LOST: (Move.LOSE, "lost"),
    Outcome.NOT_SENT: (Move.FAIL, "not_sent"),
}
# The server has acted and replied, but its reply is lost: the approval did not simply fail.
_LOST_REPLIES: Final = ("result_too_large", "malformed_answer")


EXPIRED: Final = (
    "An earlier request for this call expired before it was decided or used, and nothing was executed;"
    " this is a new request."
)
_CONTENDED: Final = CheckRefusal(
    CheckNumber.GATE, unavailable("contended", "its approval keeps changing; make the call again")
)
_RELISTING: Final = CheckRefusal(
    CheckNumber.GATE, unavailable("relisting", "the tool was just classified; make the call again")
)


@dataclass(eq=False, kw_only=True)
class Gate:
    """The gate of a node: it holds calls that a person must approve first, and records how approved calls ended."""

    inbox: Inbox
    anchors: Anchors
    judge: ProofVerifier
    clock: Clock
    kv: KeyValue
    aggregator_id: str
    operator_url: Callable[[], str]
    find_ruling: Callable[[str, str], object | None]  # how an operator classified a tool, by its name and digest
    grants: StandingGrants
    key: bytes = field(default=b"", init=False)  # makes the marks of callers; set by `open`
    used_approvals: set[str] = field(default_factory=set, init=False)  # of calls that have not ended
    _work: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)

    def __post_init__(self) -> None:
        late = "the question it was answered with was not answered in time"
        self.rounds = Rounds(self.clock, lambda id: self.finish(id, Move.FAIL, late))
        self.responses = Responses(
            self.clock,
            aggregator_id=self.aggregator_id,
            operator_url=self.operator_url,
            has_approvers=lambda tool: bool(self.anchors.approver_names(tool)),
        )

    async def open(self) -> None:
        """Load the key that signs request states and computes caller marks, or create it. The key is stored because
        approvals outlive a restart. Raise StoreError if the store fails.
        """
        now, key = self.clock.wall(), secrets.token_bytes(KEY_BYTES)
        try:
            await self.kv.create(BUCKET, "key", key, now)
        except Conflict:
            stored = await self.kv.get(BUCKET, "key", now)
            key = key if stored is None else stored.value
        self.key = self.responses.key = key

    async def close(self) -> None:
        await self._work.finish()

    # Calls

    def hold(
        self, call: Call, route: Route, returning: ReturningClient | None, released_by: str | None = None
    ) -> "GateHold":
        """Return the gate's state for a call of a tool that may be held. If an aggregator below may hold the call too,
        add a mark to the call that identifies the caller.

        `released_by` is the id of the approval of a room proposal, if that proposal contains this call.
        """
        requester = requester_of(call)
        if route.gate is not None and route.gate.relays:
            self.mark_caller(call, requester)
        return GateHold(
            gate=self,
            route=route,
            requester=requester,
            digest=request_digest(TOOLS_CALL, call.params).hex() if not route.is_held and sees_pages(call) else "",
            arguments=call.params.get("arguments") or RAW_EMPTY,
            is_waiting=route.is_held,
            returning=returning,
            state=bytes(call.params.get("requestState", b"")),
            released_by=released_by,
        )

    def mark_caller(self, call: Call, requester: str) -> None:
        """Add a mark to the call by which the aggregator below tells this node's callers apart. All callers without a
        credential share one mark.
        """
        who = "" if call.caller.principal.stranger else requester
        call.tell_below({CALLER: caller_mark(who, self.key)})

    def decline(self, call: Call, hold: "GateHold", confirmation_id: str) -> None:
        """Answer a call that the client's user declined. The call is never sent to its server."""
        hold.is_waiting = hold.is_answered_here = True
        self._work.begin(answer_failures(call, self._decline(call, hold, confirmation_id)))

    async def _decline(self, call: Call, hold: "GateHold", confirmation_id: str) -> None:
        """Withdraw the approval of a call that the client's user declined, and answer the call. If an aggregator below
        holds the call, its approval stays there until it expires.
        """
        approval = self.inbox.get(confirmation_id)
        if approval is not None and approval.requested_by == hold.requester:
            await self.inbox.withdraw(confirmation_id)
        result = self.responses.declined_result(call, hold, approval or hold.draft_question(call))
        call.answer(encode_result(call.client_id, result), Outcome.REFUSED)

    # Approvals

    def is_still_good(self, approval: Approval) -> bool:
        """Return whether an approval has a person's proof, and that person is still allowed to approve calls of this
        tool.

        The answer is False for an approval without a proof or by a standing grant, and if the approver's anchor was
        removed or no longer covers the tool.
        """
        decision = approval.decision
        has_proof = decision is not None and decision.proof is not None
        return has_proof and self.judge.stands(approval) and not is_granted(approval)

    def finish(self, approval_id: str, move: Move, outcome: str) -> None:
        """Record in the inbox how the call that used an approval has ended."""
        self.used_approvals.discard(approval_id)
        self._work.begin(self.inbox.finish(approval_id, move, outcome))

    def definitions_changed(self, digests: Mapping[str, str]) -> None:
        """End the approvals of calls of tools whose definition has changed, because they were given for the old
        definition. `digests` has the digest of each tool's new definition.
        """
        voiding = self.inbox.void_where(
            "the definition of the tool has changed",
            lambda approval: (
                approval.kind is Kind.CALL
                and approval.tool in digests
                and approval.tool_digest != digests[approval.tool]
            ),
        )
        self._work.begin(voiding)  # AX-11.3-14


SentRequest = tuple[str, bytes, dict[str, Any], dict[str, Raw]]  # method, head, params, `_meta`


class GateHold(msgspec.Struct, eq=False):
    """The state of the gate for one call: the digest that identifies the call, whether it waits for a person, and which
    approval it used.

    A hold lives as long as its call: `identify`, then either `find_refusal` (a person has to decide, and the reply says
    so) or `find_release` and `use` (the call is sent), then `on_sent` and `on_ended`. If the server asks the client a
    question, the call ends too; the client continues with a new call, whose hold finds the approval in `gate.rounds`.
    """

    gate: Gate
    route: Route
    requester: str  # owner of the approval: the caller, or a parent and its mark of the caller
    arguments: Raw | None  # None: unknown here, because only a proof is relayed
    is_waiting: bool  # for a decision at this node; False if only a hop below may hold the call
    returning: ReturningClient | None = None
    state: bytes = b""  # the requestState that the client sent
    is_named: bool = False
    digest: str = ""  # of the call, once it is named; of the request if only a hop below may hold the call
    approval_id: str | None = None  # once it is used
    has_next_round: bool = False  # the reply was a question: the approval is not finished with this call
    word: RelayedDemand | None = None  # the demand of an aggregator below that has not proved its authority
    is_answered_here: bool = False  # by the gate, not by the server or a hop below
    rounds: int = 0  # earlier rounds in which the server asked something
    released_by: str | None = None  # the approval of a proposal of this very call
    request: SentRequest | None = None  # the call itself, while another request is sent for it

    @property
    def is_asked_first(self) -> bool:
        return self.is_waiting

    # Check 7: name the call

    def identify(self, call: Call) -> Refusal | None:
        if self.is_named:
            return None
        route = self.route
        if route.is_held:
            arguments, node, way = call.params.get("arguments"), self.gate.aggregator_id, (*route.segments, route.local)
            tool, caller, definition = route.qualified, self.requester, route.offered_digest
            digest = call_digest(
                arguments, aggregator_id=node, tool=tool, route=way, caller=caller, tool_digest=definition
            )
            if isinstance(digest, Refusal):
                return digest
            self.digest = digest
        if self.returning is not None and self.returning.visit.digest != self.digest:  # AX-11.3-12
            return STATE_FOREIGN
        if self.state.startswith(_OWN_STATE) and not self._is_next_round():
            return STATE_INVALID
        self.is_named = True
        return None

    # Check 10: find the decision

    def acknowledge(self, call: Call) -> CheckRefusal | None:
        """Return None. The caller need not acknowledge a call on which a person decides."""
        return None

    def find_refusal(self, call: Call) -> CheckRefusal | None:
        approval = self._find_approval()
        if approval is None or approval.status is Status.APPROVED or self._is_next_round():
            return None
        grant = self._find_grant(approval) if approval.status is Status.PENDING else ""
        return None if isinstance(grant, Release) else self._refuse_until_decided(call, approval, grant)

    async def find_release(self, call: Call) -> Release | CheckRefusal:
        """Return the approval or standing grant that releases this call, or a refusal that tells the client to wait. If
        there is neither, request an approval.
        """
        gate, route = self.gate, self.route
        if self._is_next_round():
            return Release(gate.rounds.find_approval(self.requester, self.digest) or "", is_used=True)
        proposal = gate.inbox.get(self.released_by) if self.released_by is not None else None
        # An approved proposal releases this call only with the present definition of the tool (X-10.2-3).
        if (
            proposal is not None
            and (proposal.kind, proposal.status) == (Kind.PROPOSAL, Status.APPROVED)
            and (proposal.tool, proposal.tool_digest) == (route.qualified, route.offered_digest)
            and not is_unclassified(route)
            and gate.is_still_good(proposal)
        ):
            return Release(proposal.id)
        if is_unclassified(route) and gate.find_ruling(route.qualified, route.digest) is not None:
            return _RELISTING  # classified meanwhile: no person is asked a second time
        for _ in range(RELEASE_TRIES_MAX):
            present = self._find_approval()
            may_use_grant = present is None or present.status is Status.PENDING
            if present is not None and present.status is Status.APPROVED:
                may_use_grant = is_granted(present)
            grant = self._find_grant(present) if may_use_grant else ""
            if isinstance(grant, Release):
                return grant
            has_expired = present is None and gate.inbox.has_expired(self.requester, self.digest)
            approval = present or await gate.inbox.raise_(self.draft_question(call))
            if call.done:
                return CONFIRMATION_REQUIRED
            if isinstance(approval, Refusal):
                return CheckRefusal(CheckNumber.GATE, approval)
            if approval.status is not Status.APPROVED:  # AX-11.3-3, AX-11.3-10
                # AX-11.N-10: a caller that came too late learns why it is asked again
                expired = " ".join(filter(None, (EXPIRED if has_expired else "", grant)))
                return self._refuse_until_decided(call, approval, expired)
            if approval.kind is Kind.DEFINITION:  # classified, and about to be listed with its class
                return _RELISTING
            if gate.is_still_good(approval):  # AX-11.3-9: a removed anchor
                return Release(approval.id)
            await gate.inbox.void(approval.id, "who released it may no longer do so")
        return _CONTENDED

    def _find_approval(self) -> Approval | None:
        if is_unclassified(self.route):
            return self.gate.inbox.find_definition(self.route.qualified, self.route.digest)
        return self.gate.inbox.find(self.requester, self.digest)

    def _find_grant(self, waiting: Approval | None) -> Release | str:
        """Return the release of the call by a standing grant that covers it. If no grant covers the call, return a
        sentence that says why.

        The sentence is empty if the caller has no grant for the tool, or no grant can cover its calls. `waiting` is the
        existing approval of the call, if there is one: pending, or approved by a grant.
        """
        route, grants = self.route, self.gate.grants
        if not route.may_be_granted or not grants.has_any(route.qualified, self.requester):
            return ""
        arguments = find_arguments(self.arguments)
        grant = grants.find(route.qualified, route.offered_digest, self.requester, arguments)
        if isinstance(grant, Uncovered):
            return f"The standing grant {grant.grant_id} {grant.why}."
        return "" if grant is None else Release(waiting.id if waiting is not None else "", grant_id=grant.grant.id)

    def _refuse_until_decided(self, call: Call, approval: Approval, uncovered: str = "") -> CheckRefusal:
        """Return the refusal of an undecided or denied call. `uncovered` says why no standing grant covers the call."""
        self.is_answered_here = True
        if call.caller.hop is not None:
            self.gate.rounds.remember_route(approval.id, call.meta)
        redeem_s = self.gate.inbox.rules.redeem_s
        result = self.gate.responses.undecided_result(call, self, approval, redeem_s, uncovered)
        return CheckRefusal(CheckNumber.GATE, CONFIRMATION_REQUIRED.refusal, result)

    def draft_question(self, call: Call) -> Approval:
        """Return the approval that a person would be asked to give for this call. Nothing is stored yet."""
        route = self.route
        is_definition = is_unclassified(route)
        client = call.meta.get(META_CLIENT, call.caller.client)
        declared = route.meta.get(DECLARED, {})
        snapshot = DefinitionSnapshot(route.qualified, route.original, route.item, route.stated, declared)
        return self.gate.inbox.draft(
            Kind.DEFINITION if is_definition else Kind.CALL,
            Source.DRIVERS if route.gate is not None and route.gate.by_contract else Source.AX,
            requested_by=self.requester,
            tool=route.qualified,
            digest=route.digest if is_definition else self.digest,
            agent=find_string((decode_object(client) or {}).get("name")) if client is not None else None,
            target=route.link.segment,
            method=TOOLS_CALL,
            params=Raw(b'{"definition":%b}' % snapshot.definition()) if is_definition else self.arguments,
            route=(*route.segments, route.local),
            capability=as_object(route.capability) if route.capability is not None else None,
            tool_digest=route.digest if is_definition else route.offered_digest,
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            reason=hold_reason(route),
            factors=(CLASSIFIED,) if route.is_classified and not is_definition else (),
        )

    # Check 11: use the decision up

    async def use(self, call: Call, release: Release) -> Refusal | None:
        """Use up the approval that releases this call. It is marked as used on disk, so that it releases no other call.
        Return a refusal if another call was first.
        """
        gate, approval_id = self.gate, release.approval_id
        before: NextRound | None = None
        if release.is_used:
            before = gate.rounds.take_next_round(self.requester, self.digest)
            if before is None or before.approval_id != approval_id or approval_id not in gate.used_approvals:
                return CONFIRMATION_REQUIRED.refusal  # another call continued it first
        else:
            if release.grant_id is None:
                used = await gate.inbox.use(approval_id)
            else:
                question = self.draft_question(call)
                used = await gate.grants.release(release.grant_id, approval_id, question, gate.inbox)
            if isinstance(used, Refusal):  # AX-11.3-11: exactly one
                return used
            approval_id = used.id
            gate.used_approvals.add(approval_id)
        self.approval_id = approval_id
        self.is_waiting = False
        _keep_only_approved(call, self.route.link, before)
        if before is not None:
            self.rounds = before.number + (before.held_below is None)
            if before.held_below is not None:
                # A hop below has the call already. It is released there by its id, and not sent a second time.
                self.request = call.method, call.head, call.params, call.meta
                call.send_as(CONFIRM, modern_head(CONFIRM), redeeming_params(before.held_below, call.params), call.meta)
        if call.done:  # its client left while the approval was being used
            gate.finish(approval_id, Move.FAIL, "its caller left before anything was sent")
        return None

    # After the guard

    def on_sent(self, call: Call) -> None:
        if self.request is not None:
            call.send_as(*self.request)
            self.request = None

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        if not self.is_answered_here:
            message = self._read_reply(call, message)
        if self.approval_id is not None and not self.has_next_round:
            is_lost = outcome is Outcome.ERROR and call.reason in _LOST_REPLIES
            self.gate.finish(self.approval_id, *((Move.LOSE, str(call.reason)) if is_lost else _ENDS[outcome]))
        return message

    def _read_reply(self, call: Call, message: bytes) -> bytes:
        """Return the server's reply as the client may see it. If the reply contains a question, note that the client
        may continue the call with the same approval.

        A demand of a proved aggregator below is translated to the names of this node. Claims about held calls that
        the aggregator may not make are removed from its reply. A demand of any other aggregator is replaced by one that
        is marked as its word.
        """
        if self.word is not None:
            call.reason = self.word.status
            return encode_result(call.client_id, self.word.result)
        offer, result = self.route.link.offer, RAW_EMPTY
        if offer.is_aggregator and offer.proved and any(mark in message for mark in _CLAIM_MARKS):
            result = result_of(message)
        if result is not RAW_EMPTY:
            demand = self._find_demand(call, result)
            if demand is not None:
                if not demand.is_definition:
                    self._allow_next_round(held_below=demand.confirmation_id)
                return encode_result(call.client_id, self.gate.responses.relayed_result(call, self, demand))
            message = encode_result(call.client_id, without_claims(result, is_aggregator=True))
        if self.approval_id is not None and _INPUT_REQUIRED in message and call.caller.era is Era.MODERN:
            wanted = read_input_required(result_of(message))
            if wanted is not None and not isinstance(wanted, str):
                self._allow_next_round(bytes(wanted.state or b""), questions=frozenset(wanted.questions))
        return message

    def _find_demand(self, call: Call, result: Raw) -> RelayedDemand | None:
        """Return the demand for a person's confirmation that an aggregator below put into its result, or None if there
        is none to relay. Remember the confirmation, so that its proof can be sent to that aggregator later.
        """
        route, gate = self.route, self.gate
        if route.gate is None or not route.gate.relays:
            return None
        answered = self._relayed_call(call, shows_holder=call.caller.hop is not None or route.gate.shows_holder)
        demand = find_demand(result, answered)
        if demand is None and (claimed := find_claimed_demand(result, answered)) is not None:
            return claimed
        # An aggregator that shows a call which is held here tries to have that call approved as its own.
        if demand is None or demand.aggregator_id == gate.aggregator_id or gate.inbox.get(demand.confirmation_id):
            return None
        relayed = Relayed(route=route, requester=self.requester, digest=self.digest, onward=call.onward)
        return demand if gate.rounds.remember_relayed(demand.confirmation_id, relayed) else None

    def note_claims(self, call: Call, result: bytes) -> None:
        if self.route.gate is not None and self.route.gate.relays:
            self.word = find_claimed_demand(result, self._relayed_call(call, shows_holder=False), is_direct=True)

    def _relayed_call(self, call: Call, *, shows_holder: bool) -> RelayedCall:
        route = self.route
        return RelayedCall(
            tool=route.qualified,
            arguments=self.arguments,
            segments=route.segments,
            child=len(route.segments) - len(route.below) + 1,
            local=route.local,
            authority=route.link.offer.authority,
            shows_holder=shows_holder,
            capability=route.meta.get(CAPABILITY),
        )

    def _is_next_round(self) -> bool:
        return self.gate.rounds.has_next_round(self.requester, self.digest, self.state)

    def _allow_next_round(self, state: bytes = b"", **members: Any) -> None:
        if self.approval_id is not None:
            seconds = self.gate.inbox.rules.redeem_s
            self.has_next_round = self.gate.rounds.allow_next_round(
                self.requester, self.digest, self.approval_id, state, seconds, number=self.rounds, **members
            )


def requester_of(call: Call) -> str:
    """Return the owner of a call's approval. It is the caller or, if a parent sent the call, the parent together with
    its mark for the original caller.
    """
    caller = call.caller
    return caller.principal.name if caller.hop is None else requester(caller.principal.name, call.meta)


def _keep_only_approved(call: Call, link: Link, before: NextRound | None) -> None:
    """Remove the members from a released call that the person who approved it has not seen. `before` is the earlier
    round of questions that the call continues, or None.

    A person was shown and signed the name of the tool and the arguments. `_meta` keeps the keys that the protocol
    needs, and answers are sent only to questions that the server asked in the previous round. Members that MCP does not
    define, other keys of `_meta` (including traces) and task parameters are removed, because no person approved them.
    """
    request_params = call.params
    if call.wished is not None:  # a parked call is resumed by a request that repeats the whole
        call.open_dialogue().request_digest = request_digest(call.method, call.as_wished())
    params: dict[str, Any] = {member: request_params[member] for member in _SHOWN_MEMBERS if member in request_params}
    if before is not None and before.state:
        responses = decode_object(request_params.get("inputResponses", RAW_EMPTY)) or {}
        params["inputResponses"] = {key: answer for key, answer in responses.items() if key in before.questions}
        params["requestState"] = request_params["requestState"]
    if "task" in request_params and call.caller.era is Era.LEGACY and link.tasks and not link.modern:
        params["task"] = RAW_EMPTY  # a task, but its lifetime is for the server to choose
    meta = {key: value for key, value in call.meta.items() if key in _PROTOCOL_META}
    if "_meta" in request_params:
        params["_meta"] = meta
    call.send_only(params, meta)


def is_unclassified(route: Route) -> bool:
    """Return whether calls of the tool wait until an operator has said what the tool does."""
    return route.gate is not None and route.gate.hold is Hold.DEFINITION


def hold_reason(route: Route) -> str:
    """Return the reason why calls over this route need approval, as a text for people. Approvals and `interlock tools
    show` display it.
    """
    is_by_contract = route.gate is not None and route.gate.by_contract
    if route.is_unaccepted and (route.irreversible or is_unclassified(route)):
        reason = "its server says by now that it changes less, and no operator has accepted that"
    elif is_unclassified(route):
        reason = "its server does not say whether the tool changes anything"
    elif route.irreversible:
        reason = "it cannot be undone" if route.is_classified else "the server says: irreversible"
    else:
        reason = "its contract asks for every call" if is_by_contract else "gate.also names it"
    if route.gate is None or not route.gate.relays:
        return reason
    return f'{reason}; the node below may ask as well: gate.mode = "defer" leaves it to that'


@dataclass(eq=False)
class GateCheck:
    """Check 10 of the guard: holds or refuses a call that a person must approve first.

    A held call can continue only through `Guard.release`. In a room, a call of a restricted participant becomes a
    proposal or is refused (MCPx 3.1).
    """

    number = CheckNumber.GATE
    name = "gate"
    is_common = False

    inbox: Inbox
    anchors: Anchors
    current: CurrentPlan

    def applies_to(self, route: Route) -> bool:
        return route.is_held or route.link.members is not None

    def check(self, call: Call, link: CallLink) -> CheckRefusal | Held | None:
        restricted = link.members.find_refusal(call.caller.principal.name) if link.members is not None else None
        hold = call.hold
        # A hold of another type belongs to a call that became a proposal already.
        if restricted is not None and (hold is None or isinstance(hold, GateHold)):
            return CheckRefusal(self.number, restricted)
        if hold is None:  # no person can be asked about a held call that has no hold
            return CONFIRMATION_REQUIRED if call.route is not None and call.route.is_held else None
        return (hold.find_refusal(call) or HELD) if hold.is_waiting else None

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        members = route.link.members
        if members is not None and members.find_refusal(caller.name) is not None:
            reason = f"{caller.name} is restricted in the room {members.name}: the call becomes a proposal there"
            return CheckVerdict(number=self.number, name=self.name, verdict="hold", reason=reason)
        verdict = "hold" if route.is_held else "pass"
        if route.is_held:
            reason = self._why_held(route, caller)
        elif route.gate is not None:
            reason = "a hop below asks" if route.gated else "nothing is held here; a hop below may ask"
        elif route.irreversible:
            mode = self.current.plan.gate.mode
            reason = 'gate.unannotated is "allow"' if route.is_open and mode != "open" else f'gate.mode is "{mode}"'
        else:
            is_mutable = route.capability is not None and route.capability.mutable
            reason = "it can be undone" if is_mutable else "it changes nothing"
        return CheckVerdict(number=self.number, name=self.name, verdict=verdict, reason=reason)

    def _why_held(self, route: Route, caller: Principal) -> str:
        if is_unclassified(route):
            definition = self.inbox.find_definition(route.qualified, route.digest)
            how = f"interlock approve {definition.id}" if definition is not None else "the first call asks"
            return f"no operator has said yet what it does: {how}"
        names = self.anchors.approver_names(route.qualified)
        by = f"proof by {', '.join(names)}" if names else "no one may approve it yet: interlock status says what to do"
        waiting = [
            f"{approval.id} {approval.status.value}"
            for approval in self.inbox.listed((Status.PENDING, Status.APPROVED))
            if approval.requested_by == caller.name and approval.tool == route.qualified
        ]
        return "; ".join([hold_reason(route), by, *([", ".join(waiting)] if waiting else [])])


@dataclass(eq=False)
class CommitCheck:
    """Check 11 of the guard: charges the call to its budgets and marks its approval as used on disk, before the call is
    sent.

    `on_committed` is called for the committed call, to use up other permissions such as the grant of an agent's step.
    """

    number = CheckNumber.COMMIT
    name = "commit"

    budgets: Budgets
    on_committed: Callable[[Call], None]

    async def check(self, call: Call, link: CallLink, release: Release) -> CheckRefusal | None:
        refusal = self.budgets.charge(call, link)
        if refusal is not None:
            return CheckRefusal(CheckNumber.BUDGET, refusal)
        hold = call.hold
        refusal = await hold.use(call, release) if isinstance(hold, GateHold) else CONFIRMATION_REQUIRED.refusal
        if refusal is not None:
            call.refund()
            return CheckRefusal(self.number, refusal)
        self.on_committed(call)
        return None

    def explain(self, route: Route, caller: Principal) -> CheckVerdict:
        reason = "the approval is used up, on disk, before the first byte" if route.is_held else "nothing to use up"
        verdict = "later" if route.is_held else "pass"
        return CheckVerdict(number=self.number, name=self.name, verdict=verdict, reason=reason)
