"""What a client is told of a call that waits, in the form that it can take (MCP-AX 11.3).

A 2026-07-28 client that opens pages is asked to open the one where the call is decided; everybody else, and every hop
above, gets a result that says so. A page is no proof and its answer no decision: it is a hint to look again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.protocol.approval import Approval, Kind, Status
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.catalog.routes import Route
from interlock.config.toml_text import toml_text
from interlock.core.calls.call import Call
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock, rfc3339
from interlock.gate.granted_calls import may_be_granted
from interlock.gate.protocol.held_call import ConfirmationDemand, held_result
from interlock.gate.protocol.refusals import denied_result, open_result
from interlock.gate.protocol.relay import DENIED, Carried
from interlock.gate.protocol.request_state import Visit, is_visit, seal, unseal_untrusted
from interlock.mcp.capabilities import declares
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import ELICIT, META_CAPABILITIES, Era
from interlock.mcp.mrtr import Question, encode_input_required
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, Refusal

if TYPE_CHECKING:
    from interlock.gate.hold import GateHold

VISIT_S: Final = 600.0  # a state for a question that has no expiry of its own
PAGE: Final = "confirmation"  # the one question in an input_required of ours
_SAYS: Final = {
    Kind.CALL: "This call waits for a person. Look at it on this page and decide; then go on here.",
    Kind.DEFINITION: "No operator has said yet what this tool does. One says it once on this page; then go on here.",
}


class Back(msgspec.Struct, frozen=True):
    """A client that came back with a state of ours."""

    visit: Visit
    declined: bool


class Answers:
    def __init__(
        self, clock: Clock, *, aggregator_id: str, operator_url: Callable[[], str], able: Callable[[str], bool]
    ) -> None:
        """`able`: whether anybody is configured whose proof would release calls of a tool."""
        self._key = b""
        self._clock = clock
        self._aggregator_id = aggregator_id
        self._operator_url = operator_url
        self._able = able

    # To the client

    def take_key(self, key: bytes) -> None:
        """What the states are sealed with."""
        self._key = key

    def of(self, call: Call, hold: "GateHold", approval: Approval, redeem_s: float, near: str = "") -> bytes:
        """The result for a call whose approval is not there yet, or was refused. `near`: why no grant covers it."""
        denied = approval.status is Status.DENIED
        call.reason = DENIED if denied else "confirmation_required"
        if not denied and sees_pages(call):
            expires_at = (approval.expires_at or self._clock.wall() + VISIT_S) + redeem_s
            return self._page(call, hold, approval.kind, self._url(approval.id), approval.id, expires_at)
        form = _form(call, hold)
        held = self._demand(hold, approval)
        if denied:
            return denied_result(held, approval.decision.reason if approval.decision is not None else None, **form)
        if approval.kind is Kind.DEFINITION:
            return open_result(held, **form)
        is_able = self._able(approval.tool)
        ways = fewer_questions(hold.route, approval.id) if is_able else ""
        more = "".join(f" {sentence}" for sentence in (near, ways) if sentence)
        return held_result(held, has_approvers=is_able, more=more, **form)

    def declined(self, call: Call, hold: "GateHold", approval: Approval) -> bytes:
        call.reason = DENIED
        held = msgspec.structs.replace(self._demand(hold, approval), expires_at=None)
        return denied_result(held, "declined at the client", **_form(call, hold))

    def from_below(self, call: Call, hold: "GateHold", carried: Carried) -> bytes:
        call.reason = carried.status
        if carried.status == DENIED or carried.approval_url is None or not sees_pages(call):
            return carried.result
        expires_at = self._clock.wall() + VISIT_S
        return self._page(call, hold, Kind.CALL, carried.approval_url, carried.confirmation_id, expires_at)

    def _url(self, approval_id: str) -> str:
        return f"{self._operator_url()}/approvals/{approval_id}"

    def _demand(self, hold: "GateHold", approval: Approval) -> ConfirmationDemand:
        route = hold.route
        return ConfirmationDemand(
            tool=route.qualified,
            arguments=hold.arguments or RAW_EMPTY,
            capability=route.meta.get(CAPABILITY),
            route=(*route.segments, route.local),
            caller=approval.requested_by,
            tool_digest=approval.tool_digest or "",
            confirmation_id=approval.id,
            expires_at=None if approval.expires_at is None else rfc3339(approval.expires_at),
            approval_url=self._url(approval.id),
            nonce=approval.nonce or "",
            call_digest=approval.digest,
            aggregator_id=self._aggregator_id,
        )

    def _page(
        self, call: Call, hold: "GateHold", kind: Kind, url: str, confirmation_id: str, expires_at: float
    ) -> bytes:
        visit = Visit(confirmation_id, hold.digest, call.caller.principal.name, expires_at)
        asked = Raw(encode_value({"mode": "url", "url": url, "message": _SAYS[kind]}))
        return encode_input_required({PAGE: Question(ELICIT, asked)}, seal(visit, self._key))

    # From the client

    def returned(self, caller: Caller, params: dict[str, Any]) -> Back | Refusal | None:
        """A request with a state: what it comes back for; the refusal; None where the state is not one of ours."""
        state = find_string(params.get("requestState")) if caller.era is Era.MODERN else None
        if state is None or not is_visit(state):
            return None
        visit = unseal_untrusted(state, self._key)
        if visit is None:
            return None  # another node's, that is reached as a plain server, or changed: see `Gate.identify`
        if visit.principal != caller.principal.name:
            return STATE_FOREIGN
        if self._clock.wall() >= visit.expires_at:
            return _state_refused("state_expired", "this requestState has expired; send the request anew")
        given = decode_object(params.get("inputResponses", RAW_EMPTY)) or {}
        answer = decode_object(given.get(PAGE, RAW_EMPTY)) or {}
        params.pop("requestState")
        params.pop("inputResponses", None)
        return Back(visit, find_string(answer.get("action")) == "decline")


def fewer_questions(route: Route, approval_id: str) -> str:
    ways = ways_out(route, approval_id)
    return f"To be asked less often, the person can {', or '.join(ways)}." if ways else ""


def ways_out(route: Route, approval_id: str) -> tuple[str, ...]:
    """What a person can do to be asked less often, as far as the route has it."""
    ways = []
    if may_be_granted(route):
        ways.append(f"sign a standing grant for calls like it (`interlock approve {approval_id} --standing`)")
    if (rule := maybe_class_rule(route)) is not None:
        ways.append(f"declare in the configuration that the tool can be undone: {rule}")
    return tuple(ways)


def maybe_class_rule(route: Route) -> str | None:
    """What a person would write so that calls of the tool run at once; None where nothing here can say that."""
    if not route.irreversible or not may_be_granted(route) or route.link.offer.is_aggregator or route.link.checks_input:
        return None
    if route.link.offer.kind == "adopted":
        return f"`tools = {toml_text({route.original: 'reversible'})}` in `[servers.{route.link.segment}]`"
    return f"`[[tool]]` with `match = {toml_text(route.qualified)}`, `mutable = true` and `reversible = true`"


def sees_pages(call: Call) -> bool:
    caller = call.caller
    if caller.era is not Era.MODERN or caller.hop is not None:  # between hops the form is always the plain one
        return False
    return declares(call.meta.get(META_CAPABILITIES, RAW_EMPTY), "elicitation", "url")


def _form(call: Call, hold: "GateHold") -> dict[str, bool]:
    return {"has_output_schema": "outputSchema" in hold.route.item, "modern": call.caller.era is Era.MODERN}


def _state_refused(reason: str, why: str) -> Refusal:
    return Refusal(INVALID_PARAMS, why, {"reason": reason})


STATE_INVALID: Final = _state_refused("state_invalid", "this requestState was not made here, or was changed")
STATE_FOREIGN: Final = _state_refused("state_foreign", "this requestState belongs to another request")
