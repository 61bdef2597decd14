"""What passes between this gate and those of hops below: down, whose call it is; up, what they demand."""

from typing import TYPE_CHECKING, Final

from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.ax.protocol.hop_metadata import CALLER, caller_mark
from interlock.core.calls.call import Call
from interlock.gate.protocol.relay import MARK, Carried, RelayedCall, maybe_carried
from interlock.gate.protocol.reserved_claims import DIGEST_MARK, ESCAPE_MARK, without_claims
from interlock.gate.rounds import Relayed, Rounds
from interlock.mcp.meta import RAW_EMPTY
from interlock.wire.jsonrpc.codec import Response, decode_untrusted, encode_result
from interlock.wire.jsonrpc.errors import CodecError

if TYPE_CHECKING:
    from interlock.gate.hold import GateHold

_CLAIM_MARKS: Final = (MARK, DIGEST_MARK, ESCAPE_MARK)


class Relays:
    def __init__(self, inbox: Inbox, rounds: Rounds, aggregator_id: str) -> None:
        self._inbox = inbox
        self._rounds = rounds
        self._aggregator_id = aggregator_id
        self._key = b""

    def take_key(self, key: bytes) -> None:
        """What callers' marks are made with."""
        self._key = key

    def mark_caller(self, call: Call, requester: str) -> None:
        """Tell the hop below which of our callers asks; those without a credential are one, and like no other."""
        who = "" if call.caller.principal.stranger else requester
        call.tell_below({CALLER: caller_mark(who, self._key)})

    def read_answer(self, call: Call, hold: "GateHold", message: bytes) -> Carried | bytes:
        """What the hop below demands, in our terms; else the answer, without what is not its own to demand."""
        offer = hold.route.link.offer
        if not (offer.is_aggregator and offer.proved and any(mark in message for mark in _CLAIM_MARKS)):
            return message
        result = result_of(message)
        if result is RAW_EMPTY:
            return message
        return self._maybe_carried(call, hold, result) or encode_result(
            call.client_id, without_claims(result, is_aggregator=True)
        )

    def _maybe_carried(self, call: Call, hold: "GateHold", result: Raw) -> Carried | None:
        route = hold.route
        if route.gate is None or not route.gate.relays:
            return None
        answered = RelayedCall(
            tool=route.qualified,
            arguments=hold.arguments,
            segments=route.segments,
            child=len(route.segments) - len(route.below) + 1,
            local=route.local,
            authority=route.link.offer.authority,
            shows_holder=call.caller.hop is not None or route.gate.shows_holder,
        )
        carried = maybe_carried(result, answered)
        if carried is None or carried.aggregator_id == self._aggregator_id or self._inbox.get(carried.confirmation_id):
            return None  # the last two: it shows a call that is held here
        relayed = Relayed(route=route, requester=hold.requester, digest=hold.digest, onward=call.onward)
        return carried if self._rounds.remember(carried.confirmation_id, relayed) else None


def result_of(message: bytes) -> Raw:
    """The result in a whole answer; empty where it is an error."""
    try:
        response = decode_untrusted(message)
    except CodecError:
        return RAW_EMPTY
    return response.result if isinstance(response, Response) and not response.error else RAW_EMPTY
