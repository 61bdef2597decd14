"""Requests of 2026-07-28: their headers, and the checks before their method is looked at.

Headers repeat parts of a request, so that proxies can route by them. Values that HTTP cannot carry are written in a
base64 form; one whose base64 form is damaged decodes to None, so that it never equals a body by accident. A tool's
schema can mark an argument with `x-mcp-header`; the client then repeats the argument in `Mcp-Param-*`. The client edge
checks headers with these functions, the server edge writes them. Values are compared as text, except for whole numbers,
which have several texts in JSON: 42 and 42.0 are one number.

A request is checked in this order, and the first check that fails answers:

    1. `params._meta` contains the version and the client's capabilities   -32602
    2. the routing headers are there once and repeat the body (HTTP)       -32020
    3. the version is one that we serve                                    -32022

Whether the method exists is not checked here: the code that serves methods knows.

`validate_request` says what is wrong. Nearly all requests are ordinary, so a faster function accepts those and returns
None for every other request, which `validate_request` then judges. A client sends the same `_meta` with every request;
it is read once and remembered by its bytes, so nothing may change what is returned for it.
"""

import base64
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.mcp.methods import LATEST_MODERN, META_CAPABILITIES, META_VERSION, MODERN_VERSIONS, NAMED_BY
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import decode_object, decode_params_untrusted, find_plain_request, find_string
from interlock.wire.refusal import HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_VERSION, Refusal
from interlock.wire.schemas.validators import OF_MANY, OF_NAMED, OF_ONE

MODERN_HEAD: Final = b"mcp-protocol-version: %b\r\n" % LATEST_MODERN.encode()
_PLAIN = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_WRAPPED = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_DECIMAL = re.compile(r"(-?[0-9]+)(?:\.0+)?")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MIRRORED_TYPES: Final = frozenset({"string", "integer", "boolean"})  # number: no portable text form
_MARK: Final = "x-mcp-header"
PARAM_PREFIX: Final = b"mcp-param-"

# Where a JSON Schema (2020-12) holds further schemas. `properties` alone keeps a position reachable by name.
_ONE: Final = OF_ONE - {"additionalItems"}
_MANY: Final = OF_MANY - {"items"}
_NAMED: Final = OF_NAMED - {"dependencies", "properties"}


def encode_header(value: str) -> bytes:
    """Encode a header value. Text that HTTP cannot carry unchanged is written in the base64 form."""
    looks_wrapped = value.startswith("=?base64?") and value.endswith("?=")
    if _PLAIN.fullmatch(value) and not looks_wrapped:
        return value.encode("ascii")
    return b"=?base64?%b?=" % base64.b64encode(value.encode())


def modern_head(method: str, name: str | None = None) -> bytes:
    """Return the routing headers of a request to a 2026-07-28 server. `name` is the name or URI of its target."""
    named = b"" if name is None else b"mcp-name: %b\r\n" % encode_header(name)
    return MODERN_HEAD + b"mcp-method: %b\r\n" % method.encode() + named


def decode_header_untrusted(value: bytes) -> str | None:
    """Decode a header value. Return None if no encoder could have written it, so that a damaged header never equals a
    value in the body by accident.
    """
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return None
    if (wrapped := _WRAPPED.fullmatch(text)) is None:
        return None if _CONTROL.search(text) else text
    try:
        raw = base64.b64decode(wrapped[1])
        return raw.decode() if base64.b64encode(raw).decode() == wrapped[1] else None
    except ValueError:
        return None


class Mirrored(msgspec.Struct, frozen=True):
    """An argument of a tool that is repeated in a header, as its path in the arguments and the name of the header."""

    path: tuple[str, ...]
    header: bytes  # lower case, with the prefix


def mirrored_arguments(input_schema: Any) -> tuple[Mirrored, ...] | str:
    """Return the arguments that a tool's schema marks with `x-mcp-header`, or a text that says why the marks are
    invalid. A tool with invalid marks cannot be called.
    """
    mirrored: dict[str, Mirrored] = {}
    for path, schema in _positions(input_schema):
        if _MARK not in schema:
            continue
        name = schema[_MARK]
        if not path:
            return f"{_MARK} stands where no argument can be named"
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return f"{_MARK} of {'.'.join(path)[:80]} is not a header name"
        if not isinstance(schema.get("type"), str) or schema["type"] not in _MIRRORED_TYPES:
            return f"{_MARK} of {'.'.join(path)[:80]} needs type string, integer or boolean"
        if name.lower() in mirrored:
            return f"{_MARK} {name[:80]} is used twice"
        mirrored[name.lower()] = Mirrored(path, PARAM_PREFIX + name.lower().encode())
    return tuple(mirrored.values())


def _positions(root: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Yield every schema inside `root`, with the path of property names that leads to it. The path is None if anything
    but properties leads to the schema.
    """
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, value in node.items():
            if key == "properties" and isinstance(value, dict):
                stack.extend(((*path, name) if path is not None else None, sub) for name, sub in value.items())
            elif key in _ONE:
                stack.append((None, value))
            elif key in _MANY and isinstance(value, list):
                stack.extend((None, sub) for sub in value)
            elif key in _NAMED and isinstance(value, dict):
                stack.extend((None, sub) for sub in value.values())


def mirror_text(arguments: Any, path: tuple[str, ...]) -> str | None:
    """Return the text with which a header repeats an argument. Return None if the argument is absent, null or has no
    text form.
    """
    return _text(_argument(arguments, path))


def _argument(arguments: Any, path: tuple[str, ...]) -> Any:
    node = arguments
    for key in path:
        if not isinstance(node, dict):
            return None
        node = node.get(key)
    return node


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str | int | float):
        try:
            return str(value)
        except ValueError:  # an integer beyond the interpreter's digit limit
            return None
    return None


def mirror_headers(mirrored: tuple[Mirrored, ...], arguments: Any) -> bytes:
    """Return the `Mcp-Param-*` header lines that repeat the arguments of one call."""
    lines = []
    for mirror in mirrored:
        if (text := mirror_text(arguments, mirror.path)) is not None:
            lines.append(b"%b: %b\r\n" % (mirror.header, encode_header(text)))
    return b"".join(lines)


def mirror_mismatch(mirrored: tuple[Mirrored, ...], arguments: Any, headers: Mapping[bytes, bytes]) -> str | None:
    """Return why the headers that repeat arguments of a call (`Mcp-Param-*`) differ from the arguments, or None if they
    agree.
    """
    for mirror in mirrored:
        value = _argument(arguments, mirror.path)
        text = _text(value)
        sent = headers.get(mirror.header)
        shown = mirror.header.decode()
        if text is None:
            if sent is not None:
                return f"the header {shown} is sent but the argument is absent"
            continue
        if sent is None:
            return f"the header {shown} is missing"
        decoded = decode_header_untrusted(sent)
        if decoded != text and not (decoded is not None and _is_same_number(decoded, value)):
            return f"the header {shown} does not equal the argument"
    return None


def _is_same_number(text: str, value: Any) -> bool:
    """Return whether `text` is exactly the same whole number as `value`: 42 and 42.0 are one number in JSON."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    decimal = _DECIMAL.fullmatch(text)
    try:
        return type(value) is int and decimal is not None and int(decimal[1]) == value
    except ValueError:  # more digits than the interpreter reads
        return False


H_VERSION: Final = b"mcp-protocol-version"
H_METHOD: Final = b"mcp-method"
H_NAME: Final = b"mcp-name"
ROUTING_HEADERS: Final = frozenset((H_VERSION, H_METHOD, H_NAME))

_LATEST_RAW: Final = b'"%b"' % LATEST_MODERN.encode()


class Routing(msgspec.Struct, frozen=True):
    """Values of the routing headers of a request. The body of the request must contain the same values."""

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
    request: codec.Request, headers: Mapping[bytes, bytes] | None, doubled: bytes | None = None
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


def validate_plain_request(data: bytes, routing: Routing | None) -> ValidatedRequest | None:
    """Validate an ordinary request quickly, in one pass over its bytes. Return None if `validate_request` has to decide
    whether it is valid. `routing` is None on a transport without headers.
    """
    if (plain := find_plain_request(data)) is None:
        return None
    message_id, method, params = plain
    raw_meta = bytes(params.get("_meta", b""))
    read = _known_meta(raw_meta) if len(raw_meta) <= KNOWN_META_BYTES_MAX else _read_meta(raw_meta)
    if type(read) is not tuple:
        return None
    if routing is None:
        is_valid = read[2] in MODERN_VERSIONS
    else:
        is_named = bytes(params.get(routing.named_by, b"")) == routing.name
        is_valid = method == routing.method and read[1] == routing.version and is_named
    return ValidatedRequest(message_id, method, params, read[0]) if is_valid else None


def _read_meta(raw_meta: bytes) -> tuple[dict[str, Raw], bytes, str] | Refusal:
    """Decode and check the `_meta` of a modern request. Return its members, the encoded version and the decoded
    version. Return a refusal if it is invalid.
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
    data = {"supported": list(MODERN_VERSIONS), "requested": version[:64]}
    return Refusal(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def plain_routing(headers: Mapping[bytes, bytes], doubled: bytes | None) -> Routing | None:
    """Return the routing headers of a request if they are all present and plain text. Otherwise return None, and
    `validate_request` reads them.
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
    request: codec.Request, params: dict[str, Raw], version: str, headers: Mapping[bytes, bytes], doubled: bytes | None
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
