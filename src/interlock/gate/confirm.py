"""mcpax/confirm: a proof arrives, and the call it is for is released (MCP-AX 11.3).

Who sends it does not matter, the proof decides. The caller of the call gets its result; every other sender only hears
that it was confirmed. The proof of a call that a hop below holds is carried down to that hop as it came.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from msgspec import Raw

from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.approvals.protocol.errors import UNKNOWN, refusal_of
from interlock.ax.protocol.messages import CONFIRM
from interlock.ax.protocol.route import ROUTE
from interlock.catalog.routes import Route
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallHandler, Outcome
from interlock.core.calls.caller import Caller, Sink
from interlock.core.calls.failures import answer_failures
from interlock.core.clock import Clock
from interlock.gate.gate import Gate
from interlock.gate.hold import GateHold, requester_of
from interlock.gate.protocol.held_call import Confirm, Presented, read_confirm_untrusted
from interlock.gate.relays import result_of
from interlock.gate.rounds import Pass, Relayed
from interlock.links.handshake import modern_head
from interlock.links.link import Link
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import encode_result, encode_value
from interlock.wire.refusal import CONFIRMATION_UNKNOWN, Refusal, ax_refusal

CONFIRMED: Final = b'{"status":"confirmed"}'
_CONFIRMED_MODERN: Final = b'{"resultType":"complete","status":"confirmed"}'


class Deciding(Protocol):
    async def approve(self, id: str, proof: Presented | None, *, by: str) -> Approval | Refusal: ...


class Dispatcher(Protocol):
    """The dispatcher, as far as a confirmation needs it."""

    @property
    def under_way(self) -> CallHandler: ...

    def call_tool(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call: ...

    def send(self, call: Call, link: Link) -> Call: ...

    def refuse(self, call: Call, refusal: Refusal) -> Call: ...


class Confirming(Call, eq=False, kw_only=True):
    """A request to confirm. Once it is granted, the call that it released stands in its place."""

    made: Call | None = None

    def maybe_astray(self, rest: tuple[str, ...], onward: dict[str, Raw] | None = None) -> Refusal | None:
        """The refusal of a parent whose route is not that of the call it confirms (MCP-AX 7.2). `rest`: the way of that
        call from here; `onward`: what a hop below was told of it."""
        self.onward = onward
        way = self.caller.hop.check(self.params, self.meta, rest) if self.caller.hop is not None else None
        if isinstance(way, Refusal):
            return way
        if way is not None:
            self.meta, self.onward = {**self.meta, **way.said}, way.onward
        return None

    def cancel(self, reason: str) -> None:
        if self.made is not None:
            self.made.cancel(reason)
        else:
            super().cancel(reason)


class Confirmations:
    def __init__(
        self, gate: Gate, deciding: Deciding, dispatcher: Dispatcher, clock: Clock, find: Callable[[str], Route | None]
    ) -> None:
        """`find` gives the route that is now listed for a qualified name."""
        self._gate = gate
        self._deciding = deciding
        self._dispatcher = dispatcher
        self._clock = clock
        self._find = find
        self._work = BackgroundTasks()

    def confirm(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call:
        call = Confirming(caller, client_id, CONFIRM, params, meta, sink, self._clock.now(), self._dispatcher.under_way)
        read = read_confirm_untrusted(Raw(encode_value(params)))
        if isinstance(read, Refusal):
            return self._dispatcher.refuse(call, read)
        call.target = read.confirmation_id
        approval = self._gate.inbox.get(read.confirmation_id)
        if approval is None:
            relayed = self._gate.rounds.maybe_relayed(read.confirmation_id)
            if relayed is None:  # AX-11.3-3: an unknown id
                return self._dispatcher.refuse(call, UNKNOWN)
            if read.redeem and relayed.requester != requester_of(call):  # AX-11.3-3: only who made the call
                return self._dispatcher.refuse(call, UNKNOWN)
            astray = call.maybe_astray((*relayed.route.below, relayed.route.local), relayed.onward)
            return self._carry_down(call, relayed) if astray is None else self._dispatcher.refuse(call, astray)
        astray = call.maybe_astray(approval.route)
        if astray is not None:
            return self._dispatcher.refuse(call, astray)
        if read.redeem:
            return self._redeem(call, approval)
        if caller.calls is not None:
            caller.calls[client_id] = call
        self._work.begin(answer_failures(call, self._confirm(call, read, approval)))
        return call

    async def open(self) -> None:
        """There is nothing to begin."""

    async def close(self) -> None:
        await self._work.finish()

    # Held here

    def _redeem(self, call: Confirming, approval: Approval) -> Call:
        """The caller above asks for the call that is held here, by its id alone: the call itself has passed before."""
        # AX-11.3-3: only who made the call
        if approval.kind is not Kind.CALL or approval.requested_by != requester_of(call):
            return self._dispatcher.refuse(call, UNKNOWN)
        route = self._find(approval.tool) if approval.status is Status.DENIED else None
        if route is not None:
            call.answer(encode_result(call.client_id, self._gate.denial(call, route, approval)), Outcome.REFUSED)
        elif not approval.is_live:
            return self._dispatcher.refuse(call, refusal_of(approval))
        else:
            self._make(call, approval)
        return call

    async def _confirm(self, call: Confirming, read: Confirm, approval: Approval) -> None:
        decided = await self._decide(read, approval, call.caller.principal.name)
        if call.done:
            return
        if isinstance(decided, Refusal):
            call.on_failed(decided, Outcome.REFUSED)
        elif read.dispatch and decided.requested_by == requester_of(call):  # AX-11.3-3
            self._make(call, decided)
        else:
            modern = call.caller.era is Era.MODERN
            call.answer(encode_result(call.client_id, _CONFIRMED_MODERN if modern else CONFIRMED), Outcome.OK)

    async def _decide(self, read: Confirm, approval: Approval, by: str) -> Approval | Refusal:
        if approval.kind is not Kind.CALL:
            return ax_refusal(CONFIRMATION_UNKNOWN, f"an operator answers this one: interlock approve {approval.id}")
        if approval.status is not Status.PENDING:  # AX-11.3-15
            return refusal_of(approval)
        return await self._deciding.approve(approval.id, read.proof, by=by)

    def _make(self, call: Confirming, approval: Approval) -> None:
        """The very call, through every check; what it is answered answers the confirmation."""
        params: dict[str, Any] = {
            "name": Raw(encode_value(approval.tool)),
            "arguments": approval.params if approval.params is not None else RAW_EMPTY,
        }
        if "_meta" in call.params:
            params["_meta"] = call.params["_meta"]
        meta = call.meta
        if call.caller.hop is not None and ROUTE not in meta:
            meta = {**meta, **self._gate.rounds.take_route(approval.id)}
        self._dispatcher.under_way.finish(call, Outcome.OK)
        call.done = True
        call.made = self._dispatcher.call_tool(call.caller, call.client_id, params, meta, call.sink)

    # Held below

    def _carry_down(self, call: Call, relayed: Relayed) -> Call:
        route = self._find(relayed.route.qualified) or relayed.route
        call.target = route.qualified
        call.timeout_s = route.timeout_s
        call.head = modern_head(CONFIRM)
        requester = requester_of(call)
        self._gate.relays.mark_caller(call, requester)
        if call.caller.principal.stranger or relayed.requester != requester:
            call.params["dispatch"] = Raw(b"false")  # the result is for the caller of the call
        elif bytes(call.params.get("dispatch", b"true")) == b"true":
            call.hold = _ConfirmedBelow(
                gate=self._gate,
                route=route,
                requester=requester,
                arguments=None,
                is_waiting=False,
                digest=relayed.digest,
                take=self._gate.rounds.take,
            )
        return self._dispatcher.send(call, route.link)


class _ConfirmedBelow(GateHold, eq=False, kw_only=True):
    """The result comes from further down; or a question, or a demand of the next hop. What was agreed to here for the
    call goes on with it, or ends with it; an error leaves it as it was."""

    take: Callable[[str, str], Pass | None]

    def on_ended(self, call: Call, outcome: Outcome, message: bytes) -> bytes:
        before = self.take(self.requester, self.digest) if result_of(message) is not RAW_EMPTY else None
        if before is not None:
            self.approval_id, self.rounds = before.approval_id, before.number
        return super().on_ended(call, outcome, message)
