"""What a person is asked about a held call: the approval that is raised for it, and why it is."""

import secrets
from typing import Final

from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import CLASSIFIED, Approval, Kind, Source
from interlock.ax.protocol.capability import as_object
from interlock.ax.protocol.hop_metadata import DECLARED
from interlock.catalog.definition import DefinitionSnapshot
from interlock.catalog.routes import Route
from interlock.core.calls.call import Call
from interlock.gate.hold import GateHold
from interlock.gate.protocol.policy import Hold
from interlock.mcp.methods import META_CLIENT, TOOLS_CALL
from interlock.wire.jsonrpc.codec import decode_object, find_string

NONCE_BYTES: Final = 24


def draft_question(inbox: Inbox, call: Call, hold: GateHold) -> Approval:
    """What a person is to decide; nothing is kept of it yet."""
    route = hold.route
    definition = is_open(route)
    client = call.meta.get(META_CLIENT, call.caller.client)
    sight = DefinitionSnapshot(route.qualified, route.original, route.item, route.said, route.meta.get(DECLARED, {}))
    return inbox.draft(
        Kind.DEFINITION if definition else Kind.CALL,
        Source.DRIVERS if route.gate is not None and route.gate.by_contract else Source.AX,
        requested_by=hold.requester,
        tool=route.qualified,
        digest=route.digest if definition else hold.digest,
        agent=find_string((decode_object(client) or {}).get("name")) if client is not None else None,
        target=route.link.segment,
        method=TOOLS_CALL,
        params=Raw(b'{"definition":%b}' % sight.definition()) if definition else hold.arguments,
        route=(*route.segments, route.local),
        capability=as_object(route.capability) if route.capability is not None else None,
        tool_digest=route.digest,
        nonce=secrets.token_urlsafe(NONCE_BYTES),
        reason=hold_reason(route),
        factors=(CLASSIFIED,) if route.is_classified and not definition else (),
    )


def is_open(route: Route) -> bool:
    """Whether a call waits until an operator has said what the tool is."""
    return route.gate is not None and route.gate.hold is Hold.DEFINITION


def hold_reason(route: Route) -> str:
    """Why a person is asked, as the approval and `tools show` say it; also why perhaps twice."""
    said = _own_reason(route)
    is_asked_below = route.gate is not None and route.gate.relays
    return f'{said}; the node below may ask as well: gate.mode = "defer" leaves it to that' if is_asked_below else said


def _own_reason(route: Route) -> str:
    if route.is_unaccepted and (route.irreversible or is_open(route)):
        return "its server says by now that it changes less, and no operator has accepted that"
    if is_open(route):
        return "its server does not say whether the tool changes anything"
    if route.irreversible:
        return "it cannot be undone" if route.is_classified else "the server says: irreversible"
    return (
        "its contract asks for every call"
        if route.gate is not None and route.gate.by_contract
        else "gate.also names it"
    )
