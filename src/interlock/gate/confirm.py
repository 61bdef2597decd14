"""mcpax/confirm: a proof arrives, and the held call that it is for is released (MCP-AX 11.3).

The proof decides, not the sender. The caller of the held call gets its result; every other sender only learns that the
call was confirmed. A call that a hop below holds is confirmed there: its proof is relayed down unchanged. Nothing here
sends: the dispatcher makes the released call, which passes the guard like any other, and sends what is relayed.
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
from interlock.links.handshake import modern_head
from interlock.links.link import Link
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import encode_value
from interlock.wire.refusal import CONFIRMATION_UNKNOWN, Refusal, ax_refusal

CONFIRMED: Final = b'{"status":"confirmed"}'
_CONFIRMED_MODERN: Final = b'{"resultType":"complete","status":"confirmed"}'


class ConfirmCall(Call, eq=False, kw_only=True):
    """A mcpax/confirm request. Once it is granted, the released call sends its reply."""

    released_call: Call | None = None

    def find_route_mismatch(self, rest: tuple[str, ...], onward: dict[str, Raw] | None = None) -> Refusal | None:
        """Refuse a parent that confirms a call under a route that is not the call's own (MCP-AX 7.2).

        `rest` is the route of that call from here; `onward` is the route that the call to a hop below carried.
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
    """A confirmation of a call that this node holds."""

    confirm: Confirm
    approval: Approval


@dataclass(eq=False)
class Confirmations:
    """The confirmations of held calls: finds the call that a proof is for, and decides about it.

    `find_route` returns the route that is listed now for a qualified name.
    """

    gate: Gate
    decisions: DecisionService
    find_route: Callable[[str], Route | None]

    def find_held_call(self, call: ConfirmCall) -> HeldHere | Relayed | Refusal:
        """Return the held call that a request is for: held here, or relayed by a hop below."""
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
        """Return the approval of a held call for a parent that asks for it by its id alone, or why it is not released.

        The parent has sent the call itself before. Bytes are the result of a call that a person denied.
        """
        # Never reveal another caller's approval: an unknown id and a foreign id look the same (AX-11.3-3).
        if approval.kind is not Kind.CALL or approval.requested_by != requester_of(call):
            return UNKNOWN
        route = self.find_route(approval.tool) if approval.status is Status.DENIED else None
        if route is not None:
            return self.gate.denial_result(call, route, approval)
        return approval if approval.is_live else refusal_of(approval)

    async def decide(self, call: ConfirmCall, held: HeldHere) -> Approval | Refusal | bytes:
        """Check the proof. Return the approval if the released call is to be made, or the result for its sender."""
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
        """Return the params and `_meta` of the very call that was approved."""
        params: dict[str, Any] = {
            "name": Raw(encode_value(approval.tool)),
            "arguments": approval.params if approval.params is not None else RAW_EMPTY,
        }
        if "_meta" in call.params:
            params["_meta"] = call.params["_meta"]
        meta = call.meta
        if call.caller.hop is not None and ROUTE not in meta:
            meta = {**meta, **self.gate.rounds.take_route(approval.id)}
        return params, meta

    # Held below

    def prepare_relay(self, call: ConfirmCall, relayed: Relayed) -> Link:
        """Prepare a confirmation for the hop below that holds its call, and return the link to that hop."""
        route = self.find_route(relayed.route.qualified) or relayed.route
        call.target = route.qualified
        call.timeout_s = route.timeout_s
        call.head = modern_head(CONFIRM)
        requester = requester_of(call)
        self.gate.relays.mark_caller(call, requester)
        if call.caller.principal.stranger or relayed.requester != requester:
            call.params["dispatch"] = Raw(b"false")  # the result is for the caller of the call
        elif bytes(call.params.get("dispatch", b"true")) == b"true":
            call.hold = _ConfirmedBelow(
                gate=self.gate,
                route=route,
                requester=requester,
                arguments=None,
                is_waiting=False,
                digest=relayed.digest,
            )
        return route.link


class _ConfirmedBelow(GateHold, eq=False, kw_only=True):
    """The hold of a confirmation that is relayed down: its reply is the result of the call, or a question of the next
    hop.

    An approval that this node used for the call continues with the question or ends with the result; an error leaves it
    unchanged.
    """

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        is_result = result_of(message) is not RAW_EMPTY
        before = self.gate.rounds.take_next_round(self.requester, self.digest) if is_result else None
        if before is not None:
            self.approval_id, self.rounds = before.approval_id, before.number
        return super().on_ended(call, outcome, message)
