"""The checks of a 2026-07-28 request, in order, before its method is looked at. The first check that fails answers.

    1. `params._meta` contains the version and the client's capabilities   -32602
    2. the routing headers are there once and repeat the body (HTTP)       -32020
    3. the version is one that we serve                                    -32022

Whether the method exists is not checked here: the code that serves methods knows.

`validate_request` says what is wrong. Nearly all requests are ordinary, so two faster functions accept those and return
None for every other request, which `validate_request` then judges. A client sends the same `_meta` with every request;
it is read once and remembered by its bytes, so nothing may change what is returned for it.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp.headers import decode_header_untrusted
from interlock.mcp.methods import LATEST_MODERN, META_CAPABILITIES, META_VERSION, MODERN_VERSIONS, NAMED_BY
from interlock.wire.jsonrpc.codec import (
    Request,
    decode_object,
    decode_params_untrusted,
    find_plain_request,
    find_string,
)
from interlock.wire.refusal import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Refusal,
)

H_VERSION: Final = b"mcp-protocol-version"
H_METHOD: Final = b"mcp-method"
H_NAME: Final = b"mcp-name"
ROUTING_HEADERS: Final = frozenset((H_VERSION, H_METHOD, H_NAME))

_LATEST_RAW: Final = b'"%b"' % LATEST_MODERN.encode()


class Routing(msgspec.Struct, frozen=True):
    """Values of the routing headers of a request. The request body must contain the same bytes."""

    method: str
    version: bytes  # one that we serve
    name: bytes
    named_by: str  # the member of params that says the name too


class ValidatedRequest(msgspec.Struct):
    """A valid request: its params, which may be modified, and its `_meta`, which is shared with other requests and must
    not be modified.
    """

    id: bytes
    method: str
    params: dict[str, Any]
    meta: dict[str, Raw]


def validate_request(
    request: Request,
    headers: Mapping[bytes, bytes] | None,
    doubled: bytes | None = None,
) -> ValidatedRequest | Refusal:
    """Validate a 2026-07-28 request.

    `headers` is None on a transport without headers (stdio). `doubled` is the name of a routing header that was sent
    twice, or None.
    """
    params = decode_params_untrusted(request.params, request.text) if request.params else None
    if params is None:
        return Refusal(INVALID_PARAMS, "params must be an object with _meta, small but for its arguments (2026-07-28)")
    raw_meta = bytes(params.get("_meta", b""))
    read = _known_meta(raw_meta) if len(raw_meta) <= KNOWN_META_BYTES_MAX else _read_meta(raw_meta)
    if isinstance(read, Refusal):
        return read
    meta, _, version = read
    if headers is not None and (mismatch := _header_mismatch(request, params, version, headers, doubled)):
        return Refusal(HEADER_MISMATCH, mismatch)
    if version not in MODERN_VERSIONS:
        return unsupported_version(version)
    return ValidatedRequest(request.id, request.method, params, meta)


def validate_plain_request(data: bytes, routing: Routing) -> ValidatedRequest | None:
    """Validate the bytes of an ordinary request in one pass. Return None if the request needs the slower
    `validate_request`, whether it is valid or not.
    """
    if (plain := find_plain_request(data)) is None:
        return None
    message_id, method, params = plain
    raw_meta = bytes(params.get("_meta", b""))
    read = _known_meta(raw_meta) if len(raw_meta) <= KNOWN_META_BYTES_MAX else _read_meta(raw_meta)
    if type(read) is not tuple:
        return None
    if (
        method == routing.method
        and read[1] == routing.version
        and bytes(params.get(routing.named_by, b"")) == routing.name
    ):
        return ValidatedRequest(message_id, method, params, read[0])
    return None


def validate_request_without_headers(data: bytes) -> ValidatedRequest | None:
    """Validate the bytes of an ordinary request on a transport without headers. Return None if the request needs the
    slower `validate_request`, whether it is valid or not.
    """
    if (plain := find_plain_request(data)) is None:
        return None
    message_id, method, params = plain
    raw_meta = bytes(params.get("_meta", b""))
    read = _known_meta(raw_meta) if len(raw_meta) <= KNOWN_META_BYTES_MAX else _read_meta(raw_meta)
    if type(read) is not tuple or read[2] not in MODERN_VERSIONS:
        return None
    return ValidatedRequest(message_id, method, params, read[0])


def _read_meta(raw_meta: bytes) -> tuple[dict[str, Raw], bytes, str] | Refusal:
    """Decode `_meta`. Return its members, the raw bytes of the version, and the version as text. Return a Refusal if it
    is invalid.
    """
    meta = decode_object(raw_meta) if raw_meta else None
    if meta is None:
        return Refusal(INVALID_PARAMS, "params._meta must be an object", {"missing": [META_VERSION, META_CAPABILITIES]})
    if META_VERSION not in meta or META_CAPABILITIES not in meta:
        missing = [key for key in (META_VERSION, META_CAPABILITIES) if key not in meta]
        return Refusal(INVALID_PARAMS, f"params._meta lacks {missing[0]}", {"missing": missing})
    if bytes(meta[META_CAPABILITIES])[:1] != b"{":
        return Refusal(INVALID_PARAMS, f"params._meta[{META_CAPABILITIES!r}] must be an object")
    raw_version = bytes(meta[META_VERSION])
    version = LATEST_MODERN if raw_version == _LATEST_RAW else find_string(raw_version)
    if version is None:
        return Refusal(INVALID_PARAMS, f"params._meta[{META_VERSION!r}] must be a string")
    return meta, raw_version, version


# A client says the same of itself with every request; what is read here is never changed.
KNOWN_META_BYTES_MAX: Final = 2048
_known_meta = functools.lru_cache(maxsize=1024)(_read_meta)


def unsupported_version(version: str) -> Refusal:
    return Refusal(
        UNSUPPORTED_VERSION,
        "Unsupported protocol version",
        {"supported": list(MODERN_VERSIONS), "requested": version[:64]},
    )


def plain_routing(headers: Mapping[bytes, bytes], doubled: bytes | None) -> Routing | None:
    """Return the routing headers if they are plain text that needs no decoding. Return None for headers that
    `validate_request` must read.
    """
    method, version, name = headers.get(H_METHOD), headers.get(H_VERSION), headers.get(H_NAME)
    if doubled is not None or method is None or version is None or name is None:
        return None
    if not (method + version + name).isascii() or b"\\" in name or b'"' in name or name.startswith(b"=?"):
        return None
    method_name = method.decode()
    if method_name not in NAMED_BY or version.decode() not in MODERN_VERSIONS:
        return None
    return Routing(method_name, b'"%b"' % version, b'"%b"' % name, NAMED_BY[method_name])


def _header_mismatch(
    request: Request, params: dict[str, Raw], version: str, headers: Mapping[bytes, bytes], doubled: bytes | None
) -> str | None:
    if doubled is not None:
        return f"the header {doubled.decode()} was sent more than once"
    if headers.get(H_VERSION) != version.encode():
        return "the header MCP-Protocol-Version does not equal the version in _meta"
    if (sent := headers.get(H_METHOD)) is None:
        return "the header Mcp-Method is missing"
    if sent != request.method.encode():
        return "the header Mcp-Method does not equal the method"
    member = NAMED_BY.get(request.method)
    raw = bytes(params.get(member, b"null")) if member is not None else b"null"
    if raw == b"null":
        return None
    if (sent := headers.get(H_NAME)) is None:
        return "the header Mcp-Name is missing"
    if raw[:1] == b'"' and raw[1:-1] == sent and raw.isascii() and b"\\" not in raw and not sent.startswith(b"=?"):
        return None
    if (decoded := decode_header_untrusted(sent)) is None or decoded != find_string(raw):
        return f"the header Mcp-Name does not equal params.{member}"
    return None
