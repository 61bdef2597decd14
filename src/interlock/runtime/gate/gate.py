"""Rungs 10 to 12 for calls that a person has to agree to (MCP-AX 11.3).

In comes a call whose route has a gate. Out comes either its answer, confirmation_required, or the Admitted that lets it
through: after an approval of this very call was used up, on disk. Nothing of the call is kept but what the inbox shows
a person; the client makes the identical call again. What a hop below demands is carried up and never answered for. Who
may decide, and on what proof, is settled before an approval counts.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.protocol.approvals.approval import Approval, Kind, Source
from interlock.protocol.approvals.state import Move, Status
from interlock.protocol.ax.capability import as_object
from interlock.protocol.ax.confirmation.held_call import call_digest
from interlock.protocol.ax.confirmation.policy import Hold
from interlock.protocol.ax.confirmation.relay import MARK, maybe_carried
from interlock.protocol.ax.confirmation.request_state import PREFIX
from interlock.protocol.ax.errors import (
    CONFIRMATION_EXPIRED,
    CONFIRMATION_USED,
    CONFIRMATION_VOID,
    SCOPE_DENIED,
    refusal,
)
from interlock.protocol.ax.hop_metadata import DECLARED
from interlock.protocol.jsonrpc.codec import decode_object, decode_untrusted, encode_result, maybe_string
from interlock.protocol.jsonrpc.errors import UNAVAILABLE, CodecError, Fault
from interlock.protocol.jsonrpc.messages import Response
from interlock.protocol.mcp.eras import Era
from interlock.protocol.mcp.meta import RAW_EMPTY
from interlock.protocol.mcp.methods import META_CLIENT, TOOLS_CALL
from interlock.protocol.mcp.mrtr import read_input_required, request_digest
from interlock.runtime.approvals.inbox import Inbox
from interlock.runtime.base.clock import Clock
from interlock.runtime.calls.call import Call, Outcome
from interlock.runtime.calls.caller import Caller, Sink
from interlock.runtime.calls.guard import Admitted, Guard, Refuse, Rung
from interlock.runtime.catalog.definition import Sight
from interlock.runtime.catalog.routes import Changed, Route
from interlock.runtime.gate.call_observer import Witnessed
from interlock.runtime.gate.responses import STATE_FOREIGN, STATE_INVALID, Answers, Back, Waiting, sees_pages
from interlock.runtime.gate.rounds import Relayed, Rounds
from interlock.runtime.links.link import Link
from interlock.store.ports import Conflict, KeyValue

LOOKS_MAX: Final = 3  # at an approval that others use up or change meanwhile
NONCE_BYTES: Final = 24
KEY_BYTES: Final = 32
BUCKET: Final = "gate"
_AGAIN: Final = frozenset((CONFIRMATION_USED, CONFIRMATION_EXPIRED, CONFIRMATION_VOID))
_INPUT_REQUIRED: Final = b'"input_required"'
_VISIT: Final = b'"%b' % PREFIX.encode()


class Approvers(Protocol):
    """The anchors of the configuration."""

    def approving(self, tool: str) -> tuple[str, ...]:
        """The names of those whose proof may release a call of the tool."""


class Standing(Protocol):
    def stands(self, approval: Approval) -> bool:
        """Whether whoever approved it may still do so."""


class Gate:
    def __init__(
        self,
        inbox: Inbox,
        approvers: Approvers,
        judge: Standing,
        guard: Guard,
        clock: Clock,
        *,
        aggregator_id: str,
        operator_url: Callable[[], str],
    ) -> None:
        self.inbox = inbox
        self._judge = judge
        self.aggregator_id = aggregator_id
        self._guard = guard
        self._clock = clock
        self.rounds = Rounds(clock, self._not_taken_up)
        self.answers = Answers(
            clock,
            aggregator_id=aggregator_id,
            operator_url=operator_url,
            able=lambda tool: bool(approvers.approving(tool)),
        )
        self._work: set[asyncio.Task[Any]] = set()
        self.ruled: Callable[[str, str], object | None] = lambda tool, digest: None  # what was said of a definition

    async def open(self, kv: KeyValue) -> None:
        """The key of the states outlives the node, as approvals do. Raises StoreError."""
        now, key = self._clock.wall(), secrets.token_bytes(KEY_BYTES)
        try:
            await kv.create(BUCKET, "key", key, now)
        except Conflict:
            kept = await kv.get(BUCKET, "key", now)
            key = key if kept is None else kept.value
        self.answers.key = key

    async def close(self) -> None:
        while self._work:
            await asyncio.wait(list(self._work))

    # A call comes in: rungs 4 and 7

    def returned(self, caller: Caller, params: dict[str, Any]) -> Back | Fault | None:
        """What a request with a state comes back for, if it is for a confirmation of ours."""
        return self.answers.returned(caller, params)

    def enter(self, call: Call, route: Route, back: Back | None) -> Fault | None:
        """Before the link is looked at: who asks, and whether what is asked can be named. Sets what the call waits for.

        A call that its client takes back is answered here.
        """
        digest = self._digest(call, route)
        if isinstance(digest, Fault):
            return digest
        if back is not None and back.visit.digest != digest:
            return STATE_FOREIGN
        waiting = Waiting(route=route, digest=digest, arguments=call.params.get("arguments") or RAW_EMPTY)
        waiting.state = bytes(call.params.get("requestState", b""))
        if waiting.state.startswith(_VISIT) and not self._may_go_on(call, waiting):
            return STATE_INVALID
        call.sink = Heard(call.sink, self, call, waiting)
        if route.gate is not None and route.gate.hold is not None:
            call.gate = waiting
        if back is not None and back.declined:
            call.gate = waiting
            waiting.answered_here = True
            self._begin(self._take_back(call, waiting, back.visit.confirmation_id))
        return None

    def _digest(self, call: Call, route: Route) -> str | Fault:
        principal = call.caller.principal
        if principal.stranger and route.gated:  # here or by a hop below, which would take us for who asks
            return refusal(SCOPE_DENIED, "a person confirms calls of this tool; an unknown caller has nobody to ask")
        if route.gate is None or route.gate.hold is None:
            return request_digest(TOOLS_CALL, call.params).hex() if sees_pages(call) else ""
        return call_digest(
            call.params.get("arguments"),
            aggregator_id=self.aggregator_id,
            tool=route.qualified,
            route=(*route.segments, route.local),
            caller=principal.name,
            tool_digest=route.digest,
        )

    # Rung 10

    def answers_at_once(self, call: Call) -> bool:
        """Whether the call is answered from what is known without asking the store."""
        waiting: Waiting = call.gate
        if waiting.answered_here:
            return True
        found = self._find(call, waiting)
        if found is None or found.status is Status.APPROVED or self._may_go_on(call, waiting):
            return False
        self._tell(call, waiting, found)
        return True

    async def released(self, call: Call, link: Link) -> Admitted[Call] | None:
        """The call, admitted; None when it was answered."""
        waiting: Waiting = call.gate
        if self._may_go_on(call, waiting):
            return self._taken_up(call, waiting, link)
        route = waiting.route
        if _is_open(route) and self.ruled(route.qualified, route.digest) is not None:
            call.on_failed(_RELISTING, Outcome.REFUSED)  # said meanwhile: nobody is asked a second time
            return None
        for _ in range(LOOKS_MAX):
            found = self._find(call, waiting) or await self.inbox.raise_(self._asked(call, waiting))
            if call.done:
                return None
            if isinstance(found, Fault):
                call.on_failed(found, Outcome.REFUSED)
                return None
            if found.status is not Status.APPROVED:
                self._tell(call, waiting, found)
                return None
            if found.kind is Kind.DEFINITION:  # said, and about to be listed so
                call.on_failed(_RELISTING, Outcome.REFUSED)
                return None
            if not self._is_still_good(found):
                await self.inbox.void(found.id, "the anchor whose proof released it is gone")
                continue
            verdict = await self._guard.redeem(call, link, self.inbox, found.id)
            if isinstance(verdict, Admitted):
                return self._commit(call, waiting, found.id, verdict)
            if verdict.rung is Rung.COMMIT and verdict.fault.code in _AGAIN:
                continue  # another was first: this one waits for a confirmation of its own
            self._spent_in_vain(verdict, found.id)
            call.on_failed(verdict.fault, Outcome.REFUSED)
            return None
        call.on_failed(_CHANGING, Outcome.REFUSED)
        return None

    def _find(self, call: Call, waiting: Waiting) -> Approval | None:
        if _is_open(waiting.route):
            return self.inbox.find_definition(waiting.route.qualified, waiting.route.digest)
        return self.inbox.find(call.caller.principal.name, waiting.digest)

    def _asked(self, call: Call, waiting: Waiting) -> Approval:
        """What a person is to decide."""
        route = waiting.route
        definition = _is_open(route)
        client = call.meta.get(META_CLIENT, call.caller.client)
        sight = Sight(route.qualified, route.original, route.item, route.said, route.meta.get(DECLARED, {}))
        return self.inbox.draft(
            Kind.DEFINITION if definition else Kind.CALL,
            Source.DRIVERS if route.gate is not None and route.gate.by_contract else Source.AX,
            requested_by=call.caller.principal.name,
            tool=route.qualified,
            digest=route.digest if definition else waiting.digest,
            agent=maybe_string((decode_object(client) or {}).get("name")) if client is not None else None,
            target=route.link.segment,
            method=TOOLS_CALL,
            params=Raw(b'{"definition":%b}' % sight.definition()) if definition else waiting.arguments,
            route=(*route.segments, route.local),
            capability=as_object(route.capability) if route.capability is not None else None,
            tool_digest=route.digest,
            nonce=secrets.token_urlsafe(NONCE_BYTES),
            reason=_why(route),
        )

    def _is_still_good(self, approval: Approval) -> bool:
        """An anchor that is gone, or no longer answers for this tool, has released nothing."""
        decision = approval.decision
        return decision is not None and decision.proof is not None and self._judge.stands(approval)

    def _tell(self, call: Call, waiting: Waiting, approval: Approval) -> None:
        result = self.answers.of(call, waiting, approval, self.inbox.rules.redeem_s)
        self._answer(call, waiting, result)

    def _answer(self, call: Call, waiting: Waiting, result: bytes) -> None:
        waiting.answered_here = True
        call.answer(encode_result(call.client_id, result), Outcome.REFUSED)

    async def _take_back(self, call: Call, waiting: Waiting, confirmation_id: str) -> None:
        """The person at the client does not want it. What a hop below holds is left there to lapse."""
        approval = self.inbox.get(confirmation_id)
        if approval is not None and approval.requested_by == call.caller.principal.name:
            await self.inbox.withdraw(confirmation_id)
        draft = approval or self._asked(call, waiting)
        self._answer(call, waiting, self.answers.declined(call, waiting, draft))

    # Rung 11 and after

    def _commit(
        self, call: Call, waiting: Waiting, approval_id: str, admitted: Admitted[Call]
    ) -> Admitted[Call] | None:
        waiting.approval_id = approval_id
        if call.done:  # its client left while the approval was being used
            self.finish(approval_id, Move.FAIL, "its caller left before anything was sent")
            return None
        call.gate = None
        call.handler = Witnessed(call.handler, lambda _, outcome: self._over(waiting, outcome))
        return admitted

    def sent(self, call: Call, link: Link) -> None:
        """An approved call is never sent twice, whatever its server says of sessions and credentials."""
        if link.modern:
            call.renewed = True  # the ticket stays for the next round of a question
        else:
            call.ticket = None

    def _over(self, waiting: Waiting, outcome: Outcome) -> None:
        if waiting.approval_id is not None and not waiting.goes_on:
            self.finish(waiting.approval_id, *_END[outcome])

    def finish(self, approval_id: str, move: Move, outcome: str) -> None:
        self._guard.over(approval_id)
        self._begin(self.inbox.finish(approval_id, move, outcome))

    def _spent_in_vain(self, verdict: Refuse, approval_id: str) -> None:
        """The link went between the use of the approval and the sending."""
        approval = self.inbox.get(approval_id)
        if verdict.rung is Rung.AVAILABILITY and approval is not None and approval.status is Status.USED:
            self.finish(approval_id, Move.FAIL, "the link went away before anything was sent")

    # A released call whose answer is a question goes on with the same approval

    def _may_go_on(self, call: Call, waiting: Waiting) -> bool:
        return self.rounds.may_go_on(call.caller.principal.name, waiting.digest, waiting.state)

    def _taken_up(self, call: Call, waiting: Waiting, link: Link) -> Admitted[Call] | None:
        who = call.caller.principal.name
        approval_id = self.rounds.maybe_approval(who, waiting.digest) or ""
        verdict = self._guard.resume(call, link, approval_id)
        if isinstance(verdict, Admitted):
            self.rounds.take(who, waiting.digest)
            return self._commit(call, waiting, approval_id, verdict)
        call.on_failed(verdict.fault, Outcome.REFUSED)
        return None

    def _not_taken_up(self, approval_id: str) -> None:
        self.finish(approval_id, Move.FAIL, "the question it was answered with was not answered in time")

    def _let_go_on(self, call: Call, waiting: Waiting, state: bytes) -> None:
        if waiting.approval_id is not None:
            who, seconds = call.caller.principal.name, self.inbox.rules.redeem_s
            waiting.goes_on = self.rounds.let_go_on(who, waiting.digest, waiting.approval_id, state, seconds)

    def heard(self, call: Call, waiting: Waiting, message: bytes) -> bytes:
        """The answer on its way to the client."""
        route = waiting.route
        if waiting.answered_here or route.gate is None:
            return message
        if route.gate.relays and MARK in message:
            carried = maybe_carried(result_of(message), route.qualified, (*route.segments, route.local))
            if carried is not None:
                relayed = Relayed(route=route, principal=call.caller.principal.name, digest=waiting.digest)
                self.rounds.remember(carried.confirmation_id, relayed)
                self._let_go_on(call, waiting, b"")
                return encode_result(call.client_id, self.answers.from_below(call, waiting, carried))
        if waiting.approval_id is not None and _INPUT_REQUIRED in message and call.caller.era is Era.MODERN:
            wanted = read_input_required(result_of(message))
            if wanted is not None and not isinstance(wanted, str):
                self._let_go_on(call, waiting, bytes(wanted.state or b""))
        return message

    def made_below(self, relayed: Relayed) -> None:
        """The call was released, and made, further down: what was agreed to here is used up with it."""
        approval_id = self.rounds.take(relayed.principal, relayed.digest)
        if approval_id is not None:
            self.finish(approval_id, Move.SUCCEED, "made by a hop below")

    # Definitions that change

    def definitions_changed(self, changed: tuple[Changed, ...]) -> None:
        """A confirmation holds only for the definition that was shown."""
        for one in changed:
            self._begin(self._void(one.name, one.after.digest))

    async def _void(self, tool: str, digest: str) -> None:
        why = "the definition of the tool has changed"
        await self.inbox.void_where(
            why, lambda one: one.kind is Kind.CALL and one.tool == tool and one.tool_digest != digest
        )

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


class Heard:
    """The sink of a call that meets a gate: the answer is looked at on its way."""

    __slots__ = ("_call", "_gate", "_sink", "_waiting")

    def __init__(self, sink: Sink, gate: Gate, call: Call, waiting: Waiting) -> None:
        self._sink = sink
        self._gate = gate
        self._call = call
        self._waiting = waiting

    def emit(self, message: bytes) -> None:
        self._sink.emit(message)

    def answer(self, message: bytes, status: int = 200) -> None:
        self._sink.answer(self._gate.heard(self._call, self._waiting, message), status)

    def drop(self) -> None:
        self._sink.drop()


_END: Final = {
    Outcome.OK: (Move.SUCCEED, "ok"),
    Outcome.TOOL_ERROR: (Move.SUCCEED, "tool_error"),
    Outcome.ERROR: (Move.FAIL, "error"),
    Outcome.REFUSED: (Move.FAIL, "not_sent"),
    Outcome.TIMEOUT: (Move.LOSE, "timeout"),
    Outcome.CANCELLED: (Move.LOSE, "cancelled"),
    Outcome.LOST: (Move.LOSE, "lost"),
}
_CHANGING: Final = Fault(
    UNAVAILABLE, "unavailable", {"reason": "contended", "detail": "its approval keeps changing; make the call again"}
)
_RELISTING: Final = Fault(
    UNAVAILABLE, "unavailable", {"reason": "relisting", "detail": "the tool was just classified; make the call again"}
)


def _is_open(route: Route) -> bool:
    return route.gate is not None and route.gate.hold is Hold.DEFINITION


def _why(route: Route) -> str:
    if _is_open(route):
        return "its server does not say whether the tool changes anything"
    if route.irreversible:
        return "it cannot be undone"
    return (
        "its contract asks for every call"
        if route.gate is not None and route.gate.by_contract
        else "gate.also names it"
    )


def result_of(message: bytes) -> Raw:
    """Of a whole answer; empty where it is an error."""
    try:
        response = decode_untrusted(message)
    except CodecError:
        return RAW_EMPTY
    return response.result if isinstance(response, Response) and not response.error else RAW_EMPTY
