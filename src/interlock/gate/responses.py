"""Replies to a call that waits for a decision, in the form that its client supports (MCP-AX 11.3).

A 2026-07-28 client that can open pages is asked to open the page on which a person decides. Every other client, and
every parent, gets a result that says the call is held. A client's return from the page is neither a proof nor a
decision: the client only makes the call again. Its requestState identifies the confirmation.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
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
from interlock.gate.protocol import held_call
from interlock.gate.protocol.relay import RelayedDemand
from interlock.mcp.meta import RAW_EMPTY, declares
from interlock.mcp.methods import ELICIT, META_CAPABILITIES, Era
from interlock.mcp.mrtr import Question, encode_input_required
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, Refusal

if TYPE_CHECKING:
    from interlock.gate.gate import GateHold

VISIT_S: Final = 600.0  # lifetime of a state for a question that does not expire
PAGE: Final = "confirmation"  # the name of the only question in an input_required of the gate
_PAGE_TEXTS: Final = {
    Kind.CALL: "This call waits for a person. Look at it on this page and decide; then go on here.",
    Kind.DEFINITION: "No operator has said yet what this tool does. One says it once on this page; then go on here.",
}


def _state_refusal(reason: str, why: str) -> Refusal:
    return Refusal(INVALID_PARAMS, why, {"reason": reason})


STATE_INVALID: Final = _state_refusal("state_invalid", "this requestState was not made here, or was changed")
STATE_FOREIGN: Final = _state_refusal("state_foreign", "this requestState belongs to another request")
_STATE_EXPIRED: Final = _state_refusal("state_expired", "this requestState has expired; send the request again")


class ReturningClient(msgspec.Struct, frozen=True):
    """A client that returned from an approval page with a requestState that this gate made."""

    visit: held_call.Visit
    has_declined: bool


@dataclass(eq=False)
class Responses:
    """The writer of the gate's replies to clients. It also reads the `requestState` that a client sends back after it
    was shown an approval page.

    `has_approvers` returns whether any approver may release calls of a tool.
    """

    clock: Clock
    _: KW_ONLY
    aggregator_id: str
    operator_url: Callable[[], str]
    has_approvers: Callable[[str], bool]
    key: bytes = field(default=b"", init=False)  # seals the states; the gate sets it when it opens

    # To the client

    def undecided_result(
        self, call: Call, hold: "GateHold", approval: Approval, redeem_s: float, uncovered: str = ""
    ) -> bytes:
        """Return the encoded result for a call that waits for its approval or was denied.

        `uncovered` is a sentence that explains why no standing grant covers the call, or an empty string.
        """
        is_denied = approval.status is Status.DENIED
        call.reason = held_call.DENIED if is_denied else "confirmation_required"
        if not is_denied and sees_pages(call):
            expires_at = (approval.expires_at or self.clock.wall() + VISIT_S) + redeem_s
            return self._page_result(call, hold, approval.kind, self._url(approval.id), approval.id, expires_at)
        form = _result_form(call, hold)
        demand = self._demand(hold, approval)
        if is_denied:
            reason = approval.decision.reason if approval.decision is not None else None
            return held_call.denied_result(demand, reason, **form)
        if approval.kind is Kind.DEFINITION:
            return held_call.unclassified_result(demand, **form)
        has_approvers = self.has_approvers(approval.tool)
        # AX-11.N-9: no line of the configuration, which a model could write; the inbox has it, for people
        can_be_granted = has_approvers and hold.route.may_be_granted
        advice = f"To be asked less often, the person can {grant_way(approval.id)}." if can_be_granted else ""
        more = "".join(f" {sentence}" for sentence in (uncovered, advice) if sentence)
        return held_call.held_result(demand, has_approvers=has_approvers, more=more, **form)

    def declined_result(self, call: Call, hold: "GateHold", approval: Approval) -> bytes:
        """Return the encoded result for a call that the client's user declined."""
        call.reason = held_call.DENIED
        demand = msgspec.structs.replace(self._demand(hold, approval), expires_at=None)
        return held_call.denied_result(demand, "declined at the client", **_result_form(call, hold))

    def relayed_result(self, call: Call, hold: "GateHold", demand: RelayedDemand) -> bytes:
        """Return the encoded result that tells the client that an aggregator below holds or has denied its call."""
        call.reason = demand.status
        if demand.status == held_call.DENIED or demand.approval_url is None or not sees_pages(call):
            return demand.result
        expires_at = self.clock.wall() + VISIT_S
        return self._page_result(call, hold, Kind.CALL, demand.approval_url, demand.confirmation_id, expires_at)

    def _url(self, approval_id: str) -> str:
        return f"{self.operator_url()}/approvals/{approval_id}"

    def _demand(self, hold: "GateHold", approval: Approval) -> held_call.ConfirmationDemand:
        route = hold.route
        return held_call.ConfirmationDemand(
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
            aggregator_id=self.aggregator_id,
        )

    def _page_result(
        self, call: Call, hold: "GateHold", kind: Kind, url: str, confirmation_id: str, expires_at: float
    ) -> bytes:
        visit = held_call.Visit(confirmation_id, hold.digest, call.caller.principal.name, expires_at)
        params = Raw(encode_value({"mode": "url", "url": url, "message": _PAGE_TEXTS[kind]}))
        return encode_input_required({PAGE: Question(ELICIT, params)}, held_call.seal(visit, self.key))

    # From the client

    def read_state(self, caller: Caller, params: dict[str, Any]) -> ReturningClient | Refusal | None:
        """Read the `requestState` that a client sent. If this gate made it, remove it and the inputResponses from
        `params`. Return a refusal if it was made for another principal or has expired.

        Return None for a state that this gate did not make, such as the state of a server. An altered state of this
        gate cannot be recognised, so None is returned for it too; `GateHold.identify` refuses it.
        """
        state = find_string(params.get("requestState")) if caller.era is Era.MODERN else None
        visit = held_call.unseal_untrusted(state, self.key) if state is not None and held_call.is_visit(state) else None
        if visit is None:
            return None
        if visit.principal != caller.principal.name:
            return STATE_FOREIGN
        if self.clock.wall() >= visit.expires_at:
            return _STATE_EXPIRED
        responses = decode_object(params.get("inputResponses", RAW_EMPTY)) or {}
        answer = decode_object(responses.get(PAGE, RAW_EMPTY)) or {}
        params.pop("requestState")
        params.pop("inputResponses", None)
        return ReturningClient(visit, find_string(answer.get("action")) == "decline")


def grant_way(approval_id: str) -> str:
    """Return the phrase that suggests signing a standing grant."""
    return f"sign a standing grant for calls like it (`interlock approve {approval_id} --standing`)"


def ways_out(route: Route, approval_id: str) -> tuple[str, ...]:
    """Return suggestions how an operator can avoid further questions about calls of a tool, as phrases. They name lines
    of the configuration, and therefore are not shown to clients.
    """
    ways = []
    if route.may_be_granted:
        ways.append(grant_way(approval_id))
    offer, link = route.link.offer, route.link
    # The tool can be declared reversible if that is possible at this node and would end the approvals of its calls.
    if route.irreversible and route.may_be_granted and not offer.is_aggregator and not link.checks_input:
        rule = f"`[[tool]]` with `match = {toml_text(route.qualified)}`, `mutable = true` and `reversible = true`"
        if offer.kind == "adopted":
            rule = f"`tools = {toml_text({route.original: 'reversible'})}` in `[servers.{link.segment}]`"
        ways.append(f"declare in the configuration that the tool can be undone: {rule}")
    return tuple(ways)


def sees_pages(call: Call) -> bool:
    """Return whether the client of a call can show a web page to its user. A parent cannot, because it is an
    aggregator.
    """
    if call.caller.era is not Era.MODERN or call.caller.hop is not None:
        return False
    return declares(call.meta.get(META_CAPABILITIES, RAW_EMPTY), "elicitation", "url")


def _result_form(call: Call, hold: "GateHold") -> dict[str, bool]:
    return {"has_output_schema": "outputSchema" in hold.route.item, "modern": call.caller.era is Era.MODERN}
