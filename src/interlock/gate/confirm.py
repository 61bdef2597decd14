"""mcpax/confirm: releases a held call when a proof arrives that a person agreed to the call (MCP-AX 11.3).

The proof decides, not the sender. The caller of the held call gets its result; every other sender only learns that the
call was confirmed. If an aggregator below this node holds the call, its proof is relayed to that aggregator unchanged.
This module sends nothing: the dispatcher makes the released call, which passes the guard like any other call, and sends
the relayed requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionService
from interlock.approvals.protocol.approval import UNKNOWN, Approval, Kind, Status, refusal_of
from interlock.ax.protocol.messages import CONFIRM
from interlock.ax.protocol.route import ROUTE
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call, Outcome
from interlock.gate.gate import Gate, GateHold, requester_of
from interlock.gate.protocol.held_call import Confirm, read_confirm_untrusted
from interlock.gate.rounds import Relayed, result_of
from interlock.links.link import Link
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import Era
from interlock.mcp.modern_requests import modern_head
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import CONFIRMATION_UNKNOWN, Refusal, ax_refusal

CONFIRMED: Final = b'{"status":"confirmed"}'
_CONFIRMED_MODERN: Final = b'{"resultType":"complete","status":"confirmed"}'


class ConfirmCall(Call, eq=False, kw_only=True):
    """A mcpax/confirm request, with which a client or a parent sends the proof that releases a held call. The result of
    the released call becomes the reply to this request.
    """

    released_call: Call | None = None

    def find_route_mismatch(self, rest: tuple[str, ...], onward: dict[str, Raw] | None = None) -> Refusal | None:
        """Return a refusal if a parent confirms the held call under another route than it was made with, otherwise None
        (MCP-AX 7.2).

        `rest` is the route of the held call from this node. `onward` holds the route members that the call carried to
        the aggregator below, if one holds it.
        """
        self.onward = onward
        followed = self.caller.hop.check(self.params, self.meta, rest) if self.caller.hop is not None else None
        if isinstance(followed, Refusal):
            return followed
        if followed is not None:
            self.meta, self.onward = {**self.meta, **followed.received}, followed.onward
        return None

    def cancel(self, reason: str) -> None:
        if self.released_call is not None:
            self.released_call.cancel(reason)
        else:
            super().cancel(reason)


class HeldHere(msgspec.Struct, frozen=True):
    """A call that this node itself holds, with the confirmation that refers to it."""

    confirm: Confirm
    approval: Approval


@dataclass(eq=False)
class Confirmations:
    """The service that handles mcpax/confirm: it finds the held call that a proof refers to, and decides whether the
    proof releases it.

    `find_route` returns the currently listed route of a qualified tool name.
    """

    gate: Gate
    decisions: DecisionService
    find_route: Callable[[str], Route | None]

    def find_held_call(self, call: ConfirmCall) -> HeldHere | Relayed | Refusal:
        """Return the held call that a confirmation refers to, at this node or at an aggregator below. Return a refusal
        if there is none.
        """
        confirm = read_confirm_untrusted(Raw(encode_value(call.params)))
        if isinstance(confirm, Refusal):
            return confirm
        call.target = confirm.confirmation_id
        approval = self.gate.inbox.get(confirm.confirmation_id)
        if approval is not None:
            return call.find_route_mismatch(approval.route) or HeldHere(confirm, approval)
        relayed = self.gate.rounds.find_relayed(confirm.confirmation_id)
        if relayed is None:  # AX-11.3-3: an unknown id
            return UNKNOWN
        if confirm.redeem and relayed.requester != requester_of(call):  # AX-11.3-3: only who made the call
            return UNKNOWN
        return call.find_route_mismatch((*relayed.route.below, relayed.route.local), relayed.onward) or relayed

    # Held here

    def redeem(self, call: ConfirmCall, approval: Approval) -> Approval | Refusal | bytes:
        """Find out whether the caller of a held call can get its result with the id of the confirmation alone, without
        a proof. Return the approval of the call, or a refusal.

        The approval may still be pending; the guard decides whether it releases the call. If a person denied the call
        and its tool is still listed, return the encoded result that says so.
        """
        # Never reveal another caller's approval: an unknown id and a foreign id look the same (AX-11.3-3).
        if approval.kind is not Kind.CALL or approval.requested_by != requester_of(call):
            return UNKNOWN
        route = self.find_route(approval.tool) if approval.status is Status.DENIED else None
        if route is not None:
            hold, redeem_s = self.gate.hold(call, route, None), self.gate.inbox.rules.redeem_s
            return self.gate.responses.undecided_result(call, hold, approval, redeem_s)
        return approval if approval.is_live else refusal_of(approval)

    async def decide(self, call: ConfirmCall, held: HeldHere) -> Approval | Refusal | bytes:
        """Check the proof of a confirmation, and decide the approval by it. Return the approval if the sender may now
        make the held call, a refusal, or the encoded result that only says that the proof was accepted.
        """
        confirm, approval = held.confirm, held.approval
        if approval.kind is not Kind.CALL:
            return ax_refusal(CONFIRMATION_UNKNOWN, f"an operator answers this one: interlock approve {approval.id}")
        if approval.status is not Status.PENDING:  # AX-11.3-15
            return refusal_of(approval)
        decided = await self.decisions.approve(approval.id, confirm.proof, by=call.caller.principal.name)
        if isinstance(decided, Refusal):
            return decided
        if confirm.dispatch and decided.requested_by == requester_of(call):  # AX-11.3-3
            return decided
        return _CONFIRMED_MODERN if call.caller.era is Era.MODERN else CONFIRMED

    def released_request(self, call: ConfirmCall, approval: Approval) -> tuple[dict[str, Any], dict[str, Raw]]:
        """Return the params and the `_meta` of the call that a confirmation has released."""
        arguments = approval.params if approval.params is not None else RAW_EMPTY
        params: dict[str, Any] = {"name": Raw(encode_value(approval.tool)), "arguments": arguments}
        if "_meta" in call.params:
            params["_meta"] = call.params["_meta"]
        meta = call.meta
        if call.caller.hop is not None and ROUTE not in meta:
            meta = {**meta, **self.gate.rounds.take_route(approval.id)}
        return params, meta

    # Held below

    def prepare_relay(self, call: ConfirmCall, relayed: Relayed) -> Link:
        """Prepare a confirmation for the aggregator below that holds the call. Return the link to that aggregator."""
        route = self.find_route(relayed.route.qualified) or relayed.route
        call.target = route.qualified
        call.timeout_s = route.timeout_s
        call.head = modern_head(CONFIRM)
        requester = requester_of(call)
        self.gate.mark_caller(call, requester)
        if call.caller.principal.stranger or relayed.requester != requester:
            call.params["dispatch"] = Raw(b"false")  # the result is for the caller of the call
        elif bytes(call.params.get("dispatch", b"true")) == b"true":
            # Only a proof is relayed: the arguments of the call are unknown here, and nothing waits at this node.
            gate, digest = self.gate, relayed.digest
            call.hold = _ConfirmedBelow(gate, route, requester, arguments=None, is_waiting=False, digest=digest)
        return route.link


class _ConfirmedBelow(GateHold, eq=False):
    """The gate's state of a confirmation that is passed on to the aggregator that holds the call. The aggregator
    replies with the result of the call or with a question.

    If this node has used an approval for the call, a question keeps the approval in use, a result finishes it, and an
    error leaves it unchanged.
    """

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        is_result = result_of(message) is not RAW_EMPTY
        before = self.gate.rounds.take_next_round(self.requester, self.digest) if is_result else None
        if before is not None:
            self.approval_id, self.rounds = before.approval_id, before.number
        return super().on_ended(call, outcome, message)
