"""Reading and writing the messages of MCP-AX as JSON (MCP-AX 6, 13.4).

In come the params of a request or the result of an answer, as raw bytes that a registrant or a parent chose; out comes
the value, or a Refusal: -32602, or namespace_invalid for a segment, each with the member in data.member. Unknown
members are ignored. null means an absent `authority` and a parent that does not exist; it is refused for every other
member. Every string, number and list has a limit. Whether a message fits the present registrations is not decided here.

Inside, a reader of one member raises _Refused; `_return_refusal` turns that into the return value of the public
functions.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, ParamSpec, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from interlock.ax.protocol import budget, messages
from interlock.ax.protocol.capability import NATIVE, TRANSPORT_CLASSES, AuthScope, is_private_class
from interlock.ax.protocol.names import describe_malformed, is_segment
from interlock.ax.protocol.registration.authority import SCHEME, maybe_authority
from interlock.credentials.protocol.resource import TOKEN_BYTES_MAX
from interlock.wire.jsonrpc.codec import decode_array, decode_object, encode_value, find_string
from interlock.wire.refusal import INVALID_PARAMS, NAMESPACE_INVALID, Refusal, ax_refusal

MESSAGE_BYTES_MAX: Final = 1024 * 1024  # SUBTREE_IDS_MAX ids and plenty beside them
SUBTREE_IDS_MAX: Final = 10_000  # AX-5.3-5
INTERVAL_MS_MIN: Final = 100  # AX-6.1-5
INTERVAL_MS_MAX: Final = 3_600_000  # AX-6.1-5
VERSION_MAX: Final = 64  # AX-6.1-7
ENDPOINT_MAX: Final = 2048
SESSION_ID_MAX: Final = 256
TREE_MAX: Final = 255
CLAIMS_MAX: Final = 1000  # in one message

DEREGISTERED: Final = b'{"status":"deregistered"}'  # AX-6.3-4

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_WHOLE: Final = re.compile(rb"0|[1-9][0-9]{0,15}")
_URL: Final = re.compile(r"[\x21-\x7e]+")
_BOOLEANS: Final = {b"true": True, b"false": False}
_FLAGS: Final = ("tools", "resources", "notifications", "prompts", "completions")

_Value = TypeVar("_Value")
_Params = ParamSpec("_Params")


class _Refused(Exception):
    """Exception that carries a refusal to the function that reads the whole message.

    It never leaves this module: every public function returns a Refusal.
    """

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


def _return_refusal(read: Callable[_Params, _Value]) -> Callable[_Params, _Value | Refusal]:
    """Turn a function that raises _Refused into a function that returns the Refusal instead."""

    @functools.wraps(read)
    def read_or_refuse(*args: _Params.args, **kwargs: _Params.kwargs) -> _Value | Refusal:
        try:
            return read(*args, **kwargs)
        except _Refused as refused:
            return refused.refusal

    return read_or_refuse


@_return_refusal
def read_register_untrusted(params: Raw, minimum_ms: int = INTERVAL_MS_MIN) -> messages.Register:
    members = _members(params, "params")
    authority = _authority(members)
    return messages.Register(
        subserver_id=_uuid(members, "subserver_id"),
        segment=_segment(members, "segment"),
        authority=authority,
        **_capabilities(members),
        heartbeat_interval_ms=_interval_ms(members, minimum_ms),
        transport_class=_transport_class(members) if "transport_class" in members else NATIVE,
        version=_version(members) if "version" in members else None,
        endpoint=_endpoint(members) if "endpoint" in members else None,
        authority_proof=_proof(members, authority) if "authority_proof" in members else None,
        auth_scope=_auth_scope(members) if "auth_scope" in members else None,
        parent_id=_maybe_uuid(members, "parent_id") if "parent_id" in members else msgspec.UNSET,
        released_session=_session_id(members, "released_session") if "released_session" in members else None,
        tree=_tree(members) if "tree" in members else None,
        subtree_ids=_subtree_ids(members),
    )


@_return_refusal
def read_heartbeat_untrusted(params: Raw, own: str | None = None) -> messages.Heartbeat:
    """Read the params of mcpax/heartbeat.

    `own` is the session of the link on which it arrived. The heartbeat may omit its session then; in the draft it has
    no params.
    """
    members = _members_of_own(params, own)
    return messages.Heartbeat(session_id=_session_id(members, "session_id"), subtree_ids=_subtree_ids(members))


@_return_refusal
def read_deregister_untrusted(params: Raw, own: str | None = None) -> messages.Deregister:
    return messages.Deregister(session_id=_session_id(_members_of_own(params, own), "session_id"))


@_return_refusal
def read_registered_untrusted(result: Raw) -> messages.Registered:
    """Read the answer to a registration.

    Members that the draft does not define may be missing. Limits with unknown names are ignored.
    """
    members = _members(result, "result")
    _string(members, "status", '"registered"', lambda text: text == "registered")
    deadline_ms_max = messages.HEARTBEATS_MISSED_MAX * INTERVAL_MS_MAX
    segment, session_id = _segment(members, "assigned_segment"), _session_id(members, "session_id")
    deadline_ms = _whole(members.get("heartbeat_deadline_ms"), "heartbeat_deadline_ms", deadline_ms_max)
    limits = decode_object(members["budget"]) if "budget" in members else None
    if limits is None:
        _refuse("budget", "an object")
    stated = [name for name in budget.KEYS if name in limits]
    return messages.Registered(
        assigned_segment=segment,
        session_id=session_id,
        heartbeat_deadline_ms=deadline_ms,
        budget={name: _whole(limits[name], f"budget.{name}", budget.LIMIT_MAX) for name in stated},
        aggregator_id=_uuid(members, "aggregator_id") if "aggregator_id" in members else None,
        tree=_tree(members) if "tree" in members else None,
        auth_scope=_auth_scope(members) if "auth_scope" in members else None,
        claims=bytes(members.get("claims", b"")) == b"true" or None,
    )


@_return_refusal
def read_parent_untrusted(result: Raw) -> messages.Parent:
    members = _members(result, "result")
    return messages.Parent(subserver_id=_uuid(members, "subserver_id"), parent_id=_maybe_uuid(members, "parent_id"))


@_return_refusal
def read_claims_untrusted(params: Raw) -> messages.Claims:
    members = _members(params, "params")
    return messages.Claims(
        claims=tuple(map(_claimed, _array(members, "claims"))),
        released=tuple(_uuid({"released": released_id}, "released") for released_id in _array(members, "released")),
        released_session=_session_id(members, "released_session") if "released_session" in members else None,
    )


@_return_refusal
def read_held_untrusted(raw: Raw) -> dict[str, str]:
    """Read the map that says which aggregator has each subserver.

    The map is in the answer to mcpax/claim and in later notifications.
    """
    members = _members(raw, "held")
    held = decode_object(members["held"]) if "held" in members else {}
    if held is None or len(held) > CLAIMS_MAX:
        _refuse("held", f"an object with at most {CLAIMS_MAX} members")
    return {subserver_id.lower(): _uuid(held, subserver_id) for subserver_id in held}


def encode_claims(claims: messages.Claims) -> bytes:
    session = {} if claims.released_session is None else {"released_session": claims.released_session}
    return encode_value({"claims": claims.claims, "released": claims.released, **session})


def encode_held(held: Mapping[str, str]) -> bytes:
    return encode_value({"status": "ok", "held": held})


def encode_register(register: messages.Register) -> bytes:
    members: dict[str, Any] = {"subserver_id": register.subserver_id, "segment": register.segment}
    if register.authority is not None:
        members["authority"] = SCHEME + register.authority
    flags = {name: getattr(register, name) for name in _FLAGS}
    members["capabilities"] = {name: value for name, value in flags.items() if value is not None}
    members["heartbeat_interval_ms"] = register.heartbeat_interval_ms
    members["transport_class"] = register.transport_class
    for name in ("version", "endpoint", "authority_proof", "auth_scope", "released_session", "tree"):
        if (value := getattr(register, name)) is not None:
            members[name] = value
    if register.parent_id is not msgspec.UNSET:
        members["parent_id"] = register.parent_id
    if register.subtree_ids is not None:
        members[messages.SUBTREE_IDS] = register.subtree_ids
    return encode_value(members)


def encode_heartbeat_answer(heartbeat_deadline_ms: int) -> bytes:
    return b'{"status":"ok","heartbeat_deadline_ms":%d}' % heartbeat_deadline_ms


def _refuse(member: str, must: str, **data: Any) -> NoReturn:
    # AX-6.1-1: names the member
    raise _Refused(Refusal(INVALID_PARAMS, f"{member} must be {must}", {"member": member, **data}))


def _members(raw: Raw, name: str) -> dict[str, Raw]:
    if len(raw) > MESSAGE_BYTES_MAX:
        _refuse(name, f"an object of at most {MESSAGE_BYTES_MAX} bytes")
    members = decode_object(raw)
    if members is None:  # AX-6.1-1: an array
        _refuse(name, "an object")
    return members


def _members_of_own(params: Raw, own: str | None) -> dict[str, Raw]:
    members = {} if own is not None and not params else _members(params, "params")
    if own is not None and "session_id" not in members:
        members["session_id"] = Raw(encode_value(own))
    return members


def _string(members: Mapping[str, Raw], name: str, must: str, is_valid: Callable[[str], object]) -> str:
    text = find_string(members.get(name))
    if text is None or not is_valid(text):  # AX-6.1-1: missing or mistyped
        _refuse(name, must)
    return text


def _version(members: Mapping[str, Raw]) -> str:
    must = f"a string of at most {VERSION_MAX} characters"
    return _string(members, "version", must, lambda text: len(text) <= VERSION_MAX)  # AX-6.1-7


def _uuid(members: Mapping[str, Raw], name: str) -> str:
    return _string(members, name, "a UUID", _UUID.fullmatch).lower()  # AX-6.1-2


def _maybe_uuid(members: Mapping[str, Raw], name: str) -> str | None:
    return None if _is_null(members.get(name)) else _uuid(members, name)


def _is_null(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw) == b"null"


def _segment(members: Mapping[str, Raw], name: str) -> str:
    text = _string(members, name, "a string", lambda text: True)
    if not is_segment(text):  # AX-4.1-2
        raise _Refused(ax_refusal(NAMESPACE_INVALID, describe_malformed(text), member=name))
    return text


def _authority(members: Mapping[str, Raw]) -> str | None:
    if "authority" not in members or _is_null(members["authority"]):  # AX-6.1-3
        return None
    must = '"dns:" and a DNS name, such as dns:edge01.factory.example.com'
    return maybe_authority(_string(members, "authority", must, maybe_authority))  # AX-4.2-4


def _capabilities(members: Mapping[str, Raw]) -> dict[str, Any]:
    if "capabilities" not in members:
        return {}
    if (capabilities := decode_object(members["capabilities"])) is None:
        _refuse("capabilities", "an object")
    flags: dict[str, Any] = {name: _BOOLEANS.get(bytes(capabilities[name])) for name in _FLAGS if name in capabilities}
    for name, flag in flags.items():
        if flag is None:  # AX-6.1-4
            _refuse(f"capabilities.{name}", "true or false")
    return flags


def _interval_ms(members: Mapping[str, Raw], minimum_ms: int) -> int:
    raw = members.get("heartbeat_interval_ms")
    value = messages.HEARTBEAT_MS if raw is None else _maybe_whole(raw)
    # A minimum above the default concerns those who choose.
    if value is None or (value and raw is not None and not minimum_ms <= value <= INTERVAL_MS_MAX):  # AX-6.1-5
        _refuse("heartbeat_interval_ms", f"0 or a whole number from {minimum_ms} to {INTERVAL_MS_MAX}")
    return value


def _maybe_whole(raw: Raw | None) -> int | None:
    return int(bytes(raw)) if raw is not None and _WHOLE.fullmatch(bytes(raw)) else None


def _whole(raw: Raw | None, member: str, most: int) -> int:
    if (value := _maybe_whole(raw)) is None or value > most:
        _refuse(member, f"a whole number from 0 to {most}")
    return value


def _auth_scope(members: Mapping[str, Raw]) -> AuthScope:
    values = [scope.value for scope in AuthScope]
    text = find_string(members["auth_scope"])
    if text not in values:
        _refuse("auth_scope", f"one of {', '.join(values)}", known=values)
    return AuthScope(text)


def _transport_class(members: Mapping[str, Raw]) -> str:
    """Read a transport class.

    Every well-formed private class is accepted here; the registrar checks it against the configuration.
    """
    text = find_string(members["transport_class"])
    ids = [transport_class.id for transport_class in TRANSPORT_CLASSES]
    if text is None or (text not in ids and not is_private_class(text)):  # AX-6.1-6
        _refuse("transport_class", f"one of {', '.join(ids)}", known=ids)
    return text


def _endpoint(members: Mapping[str, Raw]) -> str:
    must = f"an http or https URL of at most {ENDPOINT_MAX} characters, without credentials or fragment"
    return _string(members, "endpoint", must, _is_endpoint)


def _is_endpoint(text: str) -> bool:
    if len(text) > ENDPOINT_MAX or not _URL.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError if it is not a port
    except ValueError:
        return False
    is_plain = "@" not in parts.netloc and "#" not in text
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_plain


def _proof(members: Mapping[str, Raw], authority: str | None) -> messages.AuthorityProof:
    if (proof := decode_object(members["authority_proof"])) is None:
        _refuse("authority_proof", "an object")
    if authority is None:
        _refuse("authority_proof", "sent together with the authority it proves")
    if find_string(proof.get("type")) != "jwt":  # AX-4.2-10: any other type
        _refuse("authority_proof.type", "jwt", known=["jwt"])
    token = find_string(proof.get("token"))
    if token is None or len(token) > TOKEN_BYTES_MAX:  # AX-4.2-10
        _refuse("authority_proof.token", f"a JWT of at most {TOKEN_BYTES_MAX} characters")
    return messages.AuthorityProof(type="jwt", token=token)


def _session_id(members: Mapping[str, Raw], name: str) -> str:
    must = f"a session id of 1 to {SESSION_ID_MAX} characters"
    return _string(members, name, must, lambda text: 0 < len(text) <= SESSION_ID_MAX)


def _tree(members: Mapping[str, Raw]) -> str:
    must = f"1 to {TREE_MAX} printable characters"
    return _string(members, "tree", must, lambda text: 0 < len(text) <= TREE_MAX and text.isprintable())


def _subtree_ids(members: Mapping[str, Raw]) -> tuple[str, ...] | None:
    """Read the ids of the aggregators below a registrant. They can be in `params` and in `params._meta`, and both lists
    are combined.
    """
    meta = decode_object(members["_meta"]) if "_meta" in members else {}
    if meta is None:
        _refuse("_meta", "an object")
    name, must = messages.SUBTREE_IDS, f"an array of at most {SUBTREE_IDS_MAX} UUIDs"
    unique: dict[str, None] = {}
    lists = [place[name] for place in (members, meta) if name in place]
    for raw in lists:
        ids = decode_array(raw)
        if ids is None or len(ids) > SUBTREE_IDS_MAX:  # AX-5.3-5
            _refuse(name, must)
        for subtree_id in ids:
            text = find_string(subtree_id)
            if text is None or not _UUID.fullmatch(text):  # AX-5.3-5
                _refuse(name, must)
            unique[text.lower()] = None
    if len(unique) > SUBTREE_IDS_MAX:
        _refuse(name, must)
    return tuple(unique) if lists else None


def _array(members: Mapping[str, Raw], name: str) -> list[Raw]:
    items = decode_array(members[name]) if name in members else []
    if items is None or len(items) > CLAIMS_MAX:
        _refuse(name, f"an array of at most {CLAIMS_MAX}")
    return items


def _claimed(raw: Raw) -> messages.Claimed:
    if (members := decode_object(raw)) is None:
        _refuse("claims", "an array of objects")
    session_hash = _string(members, "session_hash", "SHA-256 in hex", _HASH.fullmatch)
    subserver_id, aggregator_id = _uuid(members, "subserver_id"), _uuid(members, "aggregator_id")
    return messages.Claimed(subserver_id=subserver_id, aggregator_id=aggregator_id, session_hash=session_hash)
