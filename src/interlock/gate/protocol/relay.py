"""Relaying a confirmation that an aggregator below demands (MCP-AX 11.3, monotonicity).

The demand is passed on with the tool name, the route and the arguments that this node knows for the call. The tool name
that the holding aggregator uses stays in the demand, so that a signer can compute the digest. This node writes the text
for a model, and keeps the address of an approval page only if the child has proved its authority over the host. Every
other member is unchanged. Unless the operator allows more, clients learn only the place of the holding aggregator in
the namespace.
"""

import hashlib
import re
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.gate.protocol.held_call import CONFIRMATION, DENIED, ID_CHARS_MAX, REQUIRED
from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string
from interlock.wire.jsontext.canonical import AmbiguousJson, NotCanonical, canonical, read_untrusted

MARK: Final = b'"%b"' % CONFIRMATION.encode()
URL_CHARS_MAX: Final = 2048
REASON_CHARS_MAX: Final = 500
HELD_AS: Final = "held_as"  # name and route of the tool at the holding hop, which its digest is made of
HELD_BY: Final = "held_by"  # the holding hop, by its place in the namespace
WORD_OF: Final = "word_of"  # the hop without a proved authority whose word a demand is, by its place in the namespace
_HOLDER_MEMBERS: Final = ("aggregator_id", "caller")  # addresses inside the tree, which clients need not know
_match_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+/-]*").fullmatch  # nothing that a shell or a model could interpret
# Nothing that browsers read in different ways: no user, no backslash, no white space.
_match_page = re.compile(r"https://([A-Za-z0-9.-]+)(?::[0-9]{1,5})?(?:/[\x21-\x5b\x5d-\x7e]*)?").fullmatch


class RelayedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that an aggregator below has answered, with the names that this node uses for its tool and route."""

    tool: str
    arguments: Raw | None  # as they were sent; None: unknown here
    segments: tuple[str, ...]  # from the root to the tool's server
    child: int  # how many of the segments lead to the hop that answered
    local: str
    authority: str | None  # the DNS name that the hop has proved
    capability: object = None  # as this node lists it
    shows_holder: bool = True  # the caller is a hop above, or a client for which this is configured


class RelayedDemand(msgspec.Struct, frozen=True, kw_only=True):
    """A demand for confirmation, or a denial, from an aggregator below, translated to the names that this node uses."""

    result: bytes
    status: str
    confirmation_id: str
    approval_url: str | None
    is_definition: bool  # the hop holds no call that this node could redeem, for example until a tool is classified
    aggregator_id: str | None  # the id that the holding hop claims


def find_demand(result: Raw | bytes, call: RelayedCall) -> RelayedDemand | None:
    """Read the demand for a person's confirmation from the result of an aggregator below. Return None if the result
    contains no demand that this node can relay.
    """
    members: dict[str, Any] | None = decode_object(result)
    meta: dict[str, Any] | None = decode_object(members["_meta"]) if members and "_meta" in members else None
    demand: dict[str, Any] | None = decode_object(meta[CONFIRMATION]) if meta and CONFIRMATION in meta else None
    if members is None or meta is None or demand is None:
        return None
    status, confirmation_id = find_string(demand.get("status")), find_string(demand.get("confirmation_id"))
    if status not in (REQUIRED, DENIED) or not confirmation_id or len(confirmation_id) > ID_CHARS_MAX:  # AX-11.3-16
        return None
    url, holder = demand.pop("approval_url", None), find_string(demand.get("aggregator_id"))
    url = _find_page_url(url, call.authority) if call.shows_holder else None
    if not call.shows_holder:
        demand = {name: value for name, value in demand.items() if name not in _HOLDER_MEMBERS}
    # The call is held by the aggregator that answered, or by one further down the route that it names.
    claimed, named = find_string(demand.get(HELD_BY)), call.segments[: call.child]
    inner = tuple(claimed.split(".")) if claimed is not None and len(claimed) <= URL_CHARS_MAX else ()
    below = call.segments[call.child : call.child + len(inner)]
    held_by = ".".join((*named, *inner) if inner == below else named)
    demand.setdefault(HELD_AS, {name: demand[name] for name in ("tool", "route") if name in demand})
    # AX-11.3-16: in the root's terms
    demand |= {"tool": call.tool, "route": (*call.segments, call.local), HELD_BY: held_by}
    if call.arguments is not None:
        demand["arguments"] = call.arguments
    if url is not None:
        demand["approval_url"] = url
    text = _denied_text(demand, held_by) if status == DENIED else _held_text(demand, held_by, url)
    translated = Raw(encode_value(demand))
    members["_meta"] = {**meta, CONFIRMATION: translated}  # AX-11.3-16
    members["content"] = [{"type": "text", "text": text}]
    members["isError"] = True
    if "structuredContent" in members:
        members["structuredContent"] = translated
    return RelayedDemand(
        result=encode_value(members),
        status=status,
        confirmation_id=confirmation_id,
        approval_url=url,
        is_definition="kind" in demand,
        aggregator_id=holder,
    )


def find_claimed_demand(result: Raw | bytes, call: RelayedCall, *, is_direct: bool = False) -> RelayedDemand | None:
    """Return the demand of an aggregator that has not proved its authority, written by this node. Return None if the
    result contains no such demand. `is_direct` says whether the aggregator that answered is the one without a proof;
    otherwise it relays the word of a hop below it.

    The client learns that the call is held below, and of which call that is said. Only the status is taken from the
    aggregator, and the result says so. It has nothing that a program could sign or a person could open.
    """
    members: dict[str, Any] | None = decode_object(result)
    meta = decode_object(members["_meta"]) if members and "_meta" in members else None
    claimed = decode_object(meta[CONFIRMATION]) if meta and CONFIRMATION in meta else None
    status = find_string(claimed.get("status")) if claimed else None
    # AX-11.3-19: the status alone is the child's
    if members is None or claimed is None or status not in (REQUIRED, DENIED):
        return None
    inner = () if is_direct else tuple((find_string(claimed.get(WORD_OF)) or "").split("."))
    if not is_direct and call.segments[call.child : call.child + len(inner)] != inner:
        return None
    word_of = ".".join((*call.segments[: call.child], *inner))
    arguments = Raw(b"{}") if call.arguments is None else call.arguments
    try:
        digest = hashlib.sha256(canonical(read_untrusted(bytes(arguments)))).hexdigest()
    except (AmbiguousJson, NotCanonical):
        return None
    demand = {
        "status": status,
        "tool": call.tool,
        "arguments": arguments,
        "arguments_digest": digest,  # AX-11.3-19
        "capability": call.capability,
        "route": (*call.segments, call.local),  # AX-11.3-19
        WORD_OF: word_of,  # AX-11.3-19
    }
    action = "refused" if status == DENIED else "held until a person confirms it there"
    text = (
        f"{word_of}, a node below the one you called that has not proved its authority, says that nothing was executed "
        f"and that this call of {call.tool} is {action}. Ask the person you work for to look into the inbox of that "
        "node. If it is confirmed there, make exactly the same call again to run it and get its result."
    )
    written: dict[str, Any] = {"resultType": members["resultType"]} if "resultType" in members else {}
    written["content"] = [{"type": "text", "text": text}]
    if "structuredContent" in members:
        written["structuredContent"] = demand
    return RelayedDemand(
        result=encode_value({**written, "isError": True, "_meta": {CONFIRMATION: demand}}),
        status=status,
        confirmation_id="",
        approval_url=None,
        is_definition=True,
        aggregator_id=None,
    )


def _held_text(demand: dict[str, Any], held_by: str, url: str | None) -> str:
    confirmation_id = find_string(demand["confirmation_id"]) or ""
    is_plain = _match_id(confirmation_id) is not None
    named = f" (confirmation_id {confirmation_id})" if is_plain else ""
    command = f"`interlock approve {confirmation_id}`" if is_plain else "its inbox"
    return (
        f"Nothing was executed. This call of {demand['tool']} is held by {held_by}, a node below the one you called, "
        f"until a person confirms it there{named}. Ask the person you work for to decide: "
        f"{f'{url} or ' if url is not None else ''}{command} on that node. "
        "Once it is confirmed, make exactly the same call again to run it and get its result. "
        "You cannot confirm it yourself, and a changed call needs a confirmation of its own."
    )


def _denied_text(demand: dict[str, Any], held_by: str) -> str:
    reason = find_string(demand.get("reason"))
    why = f" The reason given: {reason[:REASON_CHARS_MAX].rstrip('.')}." if reason else ""
    return (
        f"Nothing was executed. At {held_by}, a node below the one you called, a person was asked about this call of "
        f"{demand['tool']} and refused it.{why} Do not try the same in another way."
    )


def _find_page_url(raw: Raw | None, authority: str | None) -> str | None:
    """Return the address of an approval page if its host belongs to `authority`, the DNS name that the aggregator below
    has proved. Otherwise return None.
    """
    url = find_string(raw)
    match = _match_page(url) if url is not None and len(url) <= URL_CHARS_MAX else None
    host = match[1].lower() if match is not None else ""
    return url if authority is not None and f".{host}".endswith(f".{authority}") else None
