"""Changes that one hop makes to a tool's metadata on its way up (MCP-AX 9.2, 10.2, 11.2).

In come the `_meta` of a tool as a server below lists it, and the origin of that server (`Offer`). Out come the
capability that holds here and the `_meta` for the aggregator above. A capability annotation passes as it was declared,
with two changes that the draft orders: latency_class may rise, and availability becomes degraded while the link is
lost. An operator's override, or a changed definition of a configured server, may change more. For every change the
declared value stays visible in x-mcpax-declared. What this node believes of an unproved registrant is stricter than
what it declares (`at_its_strictest`); that decides about gates and scopes here, and is passed on as x-mcpax-safety.

Three smaller parts of the metadata are here as well: how many tools a node does not list for its parent
(dev.interlock/unlisted: numbers without names), the time that a call took (x-mcpax-latency-ms, 7.2), and the mark of a
caller (x-mcpax-caller, ours, for 11.3). To a gate, everything that comes over the link to a parent comes from that
parent. The mark says which of the parent's callers asks, so that an approval is good for that caller alone. It is
opaque: each node makes its own marks, and only the node that made one knows the caller. Only the mark of an
authenticated parent is read.
"""

import hashlib
import hmac
import math
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import (
    NATIVE,
    TIMEOUT_S,
    AuthScope,
    Availability,
    Capability,
    InvalidAnnotation,
    LatencyClass,
    as_object,
    is_claim,
    read_capability,
)
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string

META_UNLISTED: Final = "dev.interlock/unlisted"
COUNT_MAX: Final = 1_000_000  # more tools than any node lists


class Unlisted(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the tools that a child aggregator does not list for its parent, by reason: beyond the parent's scope,
    or excluded by an access rule.
    """

    scope: AuthScope  # what the parent may use here
    beyond_scope: int = 0  # tools that need more
    beyond_access: int = 0  # of the others, those that an [[access]] entry of the child leaves out


def maybe_unlisted_untrusted(page: dict[str, Raw]) -> Unlisted | None:
    """Return how many tools a child aggregator leaves out of its list, as one page of the list says. Return None if the
    page has no valid counts.
    """
    meta = decode_object(page["_meta"]) if "_meta" in page else None
    if meta is None or META_UNLISTED not in meta:
        return None
    try:
        unlisted = msgspec.json.decode(meta[META_UNLISTED], type=Unlisted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_count = all(0 <= number <= COUNT_MAX for number in (unlisted.beyond_scope, unlisted.beyond_access))
    return unlisted if is_count else None


LATENCY_MS: Final = "x-mcpax-latency-ms"  # AX-7.2-8


def with_latency(result: bytes, milliseconds: int) -> bytes:
    """Return a result whose `_meta` contains the time that this node measured, in place of the time from the node
    below.

    A result whose `_meta` is not an object is returned unchanged.
    """
    members = decode_object(result)
    meta = decode_object(members.get("_meta", b"{}")) if members is not None else None
    if members is None or meta is None:  # AX-7.2-8
        return result
    return encode_value({**members, "_meta": {**meta, LATENCY_MS: Raw(b"%d" % max(0, milliseconds))}})


CALLER: Final = "x-mcpax-caller"
MARK_BYTES: Final = 16
SEPARATOR: Final = "#"  # between the name of a parent, which is a URL without a fragment, and the mark
_match_mark = re.compile(rb'"([A-Za-z0-9_-]{1,43})"').fullmatch


def caller_mark(requester: str, key: bytes) -> Raw:
    """Return the mark of a caller, a keyed hash that identifies the caller to the nodes below without naming it, as
    JSON.

    `key` is a secret of this node that survives restarts, so that marks and the approvals bound to them stay valid.
    """
    digest = hmac.digest(key, b"caller\0" + requester.encode("utf-8", "surrogatepass"), "sha256")
    return Raw(b'"%b"' % _text(digest))


def requester(principal: str, meta: Mapping[str, Raw]) -> str:
    """Return a name for the sender of a request from a parent. If the parent sent a mark for the caller in its tree,
    the name contains the mark.

    A mark in an unexpected form is replaced by its hash.
    """
    raw = bytes(meta.get(CALLER, b""))
    if not raw:
        return principal
    plain = _match_mark(raw)
    mark = plain[1] if plain is not None else _text(hashlib.sha256(raw).digest())
    return f"{principal}{SEPARATOR}{mark.decode()}"


def _text(digest: bytes) -> bytes:
    return urlsafe_b64encode(digest[:MARK_BYTES]).rstrip(b"=")


CAPABILITY: Final = "x-mcpax-capability"  # AX-1.1-6
DECLARED: Final = "x-mcpax-declared"
HOPS: Final = "x-mcpax-hops"  # AX-9.2-2
SAFETY: Final = "x-mcpax-safety"  # AX-11.2-1
GATED: Final = "x-mcpax-gated"  # AX-11.3-17, AX-11.3-18
IRREVERSIBLE: Final = "irreversible_mutable"

LATENCIES_MIN: Final = 20  # calls before their times say anything (9.2, ours); AX-9.2-3
HOP_SLACK_S: Final = 0.05  # an outer hop waits longer, so that the innermost times out first (7.3, ours)
_PREFIX: Final = "x-mcpax-"
SURFACE: Final = "dev.interlock/surface"  # this node's own word on a registered name
_LEFT_OUT: Final = frozenset((CAPABILITY, HOPS, SAFETY, GATED))  # by `lean_meta`, where they are as usual
_ORDERED: Final = ("latency_class", "availability")  # what the draft itself orders to be changed


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that all tools of a server have in common, for example the scope granted to the server and the latency
    of its link.

    The default describes a server from the operator's configuration.
    """

    kind: Literal["adopted", "leaf", "aggregator"] = "adopted"
    proved: bool = True  # its authority is proved, or the operator named it in the configuration
    authority: str | None = None  # the DNS name that it has proved, where it claims one
    scope: AuthScope = AuthScope.ADMIN  # granted; nothing that implies more is listed or sent
    link_latency_ms: float = 0.0  # declared by the operator
    transport: str = NATIVE  # of a stub behind a gateway; native says nothing of what lies behind
    session: str = ""  # a class once raised stays raised for one registration session

    @property
    def is_aggregator(self) -> bool:
        return self.kind == "aggregator"


ADOPTED: Final = Offer()


class ItemMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of an item, read from the list of a server below. It contains only the values that this server is
    allowed to set.
    """

    rest: dict[str, Raw]  # the keys that are not MCP-AX's
    capability: Raw | None
    declared: dict[str, object]
    hops: int  # of the tool as listed here
    flagged: bool
    gated: bool


def read_below(meta: Mapping[str, Raw], offer: Offer) -> ItemMetadata:
    """Read the metadata of a tool or another item from its `_meta`, as a server below this node lists it.

    The number of hops and the values declared further down are read only if the server is an aggregator.
    """
    values, hops = _decode(meta.get(DECLARED)), _decode(meta.get(HOPS))
    is_declared = offer.is_aggregator and isinstance(values, dict)
    return ItemMetadata(
        rest={key: value for key, value in meta.items() if not key.lower().startswith((_PREFIX, SURFACE))},
        capability=meta.get(CAPABILITY),
        declared={key: value for key, value in values.items() if is_claim(key, value)} if is_declared else {},
        hops=(hops if type(hops) is int and hops >= 1 else 1) + 1 if offer.is_aggregator else 1,  # AX-9.2-2
        flagged=find_string(meta.get(SAFETY)) == IRREVERSIBLE,
        gated=bytes(meta.get(GATED, b"")) == b"true",
    )


def at_its_strictest(capability: Capability, annotations: object, *, is_flagged: bool = False) -> Capability:
    """Return the capability that is assumed for a tool of a registrant that proved no authority, or for a tool that an
    aggregator flags as irreversible: the strictest one that agrees with the declaration (9.1, ours).

    What it declares can make a tool stricter, never looser. A tool is read-only only if nothing contradicts that. A
    tool that changes something counts as irreversible and not repeatable, whatever it declares.
    """
    own = annotations if isinstance(annotations, Mapping) else {}
    if not (is_flagged or capability.mutable or own.get("readOnlyHint") is False or own.get("destructiveHint") is True):
        return capability
    scope = max(capability.auth_scope, AuthScope.WRITE)
    return msgspec.structs.replace(capability, mutable=True, reversible=False, idempotent=False, auth_scope=scope)


def over_transport(declared: object, transport: str) -> object | InvalidAnnotation:
    """Return the capability annotation of a subserver's tool, to which the transport class of the subserver's
    registration is added (9.1).

    Return InvalidAnnotation if the annotation names another transport class. It may omit it.
    """
    if transport == NATIVE or (declared is not msgspec.UNSET and not isinstance(declared, Mapping)):
        return declared
    keys = {} if declared is msgspec.UNSET else declared
    if keys.get("transport", transport) != transport:  # AX-9.1-7: a stub cannot claim another
        return InvalidAnnotation(reason=f"transport must be {transport}, as its registration says")
    return {**keys, "transport": transport}


def least_latency_class(link_latency_ms: float, latencies_s: Iterable[float]) -> LatencyClass:
    """Return the fastest latency class that a tool behind this link can have (9.2)."""
    seconds = link_latency_ms / 1000
    times = sorted(latencies_s)
    if len(times) >= LATENCIES_MIN:  # AX-9.2-3
        seconds = max(seconds, times[math.ceil(0.95 * len(times)) - 1])
    return next(each for each in LatencyClass if (timeout := TIMEOUT_S[each]) is None or timeout >= seconds)


def raise_to_hop(capability: Capability, least: LatencyClass) -> Capability:
    """Return the capability with a latency class of at least `least`."""
    if least <= capability.latency_class:
        return capability
    return msgspec.structs.replace(capability, latency_class=least)


def timeout_s(latency_class: LatencyClass | None, hops: int, server_s: float) -> float | None:
    """Return how many seconds this node waits for a call of a tool, or None if it waits without a limit (7.3).

    A tool without a latency class has its server's timeout.
    """
    seconds = server_s if latency_class is None else TIMEOUT_S[latency_class]
    return None if seconds is None else seconds + HOP_SLACK_S * (hops - 1)


def implied_scope(capability: Capability) -> AuthScope:
    """Return the authorization scope that a call of the tool needs (10.2)."""
    return max(capability.auth_scope, AuthScope.WRITE if capability.mutable else AuthScope.READ)  # AX-10.2-2


def published_annotation(declared: Raw | None, capability: Capability) -> Raw:
    """Return the capability annotation of a tool in the form that this node sends to its parents.

    If nothing changed, these are the declared bytes. Otherwise changed keys are replaced and missing keys are appended.
    """
    values = as_object(capability)
    members: dict[str, Any] = (decode_object(declared) if declared is not None else None) or {}
    if not members:
        return Raw(encode_value(values))
    # AX-9.2-1
    changed = {key: value for key, value in values.items() if key not in members or decode_value(members[key]) != value}
    return declared if declared is not None and not changed else Raw(encode_value({**members, **changed}))


def declared_values(declared: Mapping[str, object], below: Capability, here: Capability) -> dict[str, object]:
    """Return the value of x-mcpax-declared. It holds, for each key that an aggregator on the way has changed, the value
    that the owner of the tool declared.

    If several hops changed a value, the one from the lowest hop is kept.
    """
    values = dict(declared)
    for key in _ORDERED:
        was, now = getattr(below, key), getattr(here, key)
        if was is not now:
            values.setdefault(key, was.value)
    return values


def degraded_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `_meta` with which a tool is listed while its server cannot be reached (13.2). It says that the tool
    is degraded.
    """
    members = decode_object(meta[CAPABILITY]) or {}
    before, gone = _decode(members.get("availability")), Availability.DEGRADED.value
    if before == gone:
        return dict(meta)
    declared = {"availability": before, **meta.get(DECLARED, {})}
    return {**meta, CAPABILITY: Raw(encode_value({**members, "availability": gone})), DECLARED: declared}


def lean_meta(meta: Mapping[str, Any], annotations: object) -> dict[str, Any]:
    """Return the `_meta` of a tool for clients that do not ask for MCP-AX, without the values that such clients assume
    anyway (3.2).

    It contains only what MCP's hints and defaults do not express, and what the draft demands of every list: the hops
    (9.2) and the flag of tools that cannot be undone (11.2).
    """
    usual, members = read_capability(annotations=annotations), decode_object(meta.get(CAPABILITY, b""))
    if members is None or isinstance(usual, InvalidAnnotation):
        return dict(meta)
    lean = {key: value for key, value in meta.items() if key not in _LEFT_OUT}
    default = as_object(usual)
    values = {key: decode_value(members[key]) for key in default if key in members}
    # AX-3.2-2
    differing = {key: raw for key, raw in members.items() if key not in values or values[key] != default[key]}
    if differing:
        lean[CAPABILITY] = differing
    lean |= {key: meta[key] for key in (HOPS, SAFETY) if key in meta}  # AX-9.2-2, AX-11.2-1
    is_final = values.get("mutable") is True and values.get("reversible") is False
    if (GATED in meta) is not is_final:
        lean[GATED] = GATED in meta
    return lean


def as_declared(capability: Raw | None, declared: Mapping[str, object]) -> object:
    """Return a capability annotation as the owner of the tool declared it, with the changes by aggregators undone.
    Return None if there is no annotation or it cannot be read.

    Only changes that the draft demands are undone. Otherwise an aggregator could loosen a tool unseen, by calling the
    stricter value declared.
    """
    value = _decode(capability)
    ordered = {key: declared[key] for key in _ORDERED if key in declared}
    return {**value, **ordered} if isinstance(value, dict) else value


def _decode(raw: Raw | None) -> Any:
    """Return the decoded value, or None if the value is absent or cannot be read."""
    try:
        return decode_value(raw) if raw is not None else None
    except CodecError:
        return None
