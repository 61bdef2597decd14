"""Header values of 2026-07-28: the base64 form for what HTTP cannot carry, and arguments mirrored into `Mcp-Param-*`.

Pure: values in, values out. The client edge checks with these, the server edge writes with them.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", re.ASCII)
_WRAPPED = re.compile(r"=\?base64\?(.*)\?=", re.ASCII | re.DOTALL)
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)
_MIRRORED_TYPES: Final = frozenset({"string", "integer", "boolean"})  # number: no portable text form
_MARK: Final = "x-mcp-header"
PARAM_PREFIX: Final = b"mcp-param-"

# Where a JSON Schema (2020-12) holds further schemas. `properties` alone keeps a position reachable by name.
_ONE: Final = frozenset(
    (
        "items",
        "contains",
        "unevaluatedItems",
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
    )
)
_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))


def encode_header(value: str) -> bytes:
    if (not value or _PLAIN.fullmatch(value)) and not _WRAPPED.fullmatch(value):
        return value.encode("ascii")
    return b"=?base64?%b?=" % base64.b64encode(value.encode())


def decode_header_untrusted(value: bytes) -> str | None:
    """None for what no encoder writes, so that a damaged header never equals a body by accident."""
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return None
    wrapped = _WRAPPED.fullmatch(text)
    if wrapped is None:
        return text
    try:
        raw = base64.b64decode(wrapped[1], validate=True)
        return raw.decode() if base64.b64encode(raw).decode() == wrapped[1] else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


class Mirrored(msgspec.Struct, frozen=True):
    """One argument that is repeated in a header: its path in the arguments and the header's name."""

    path: tuple[str, ...]
    header: bytes  # lower case, with the prefix


def mirrored_arguments(input_schema: Any) -> tuple[Mirrored, ...] | str:
    """The headers a tool's schema asks for, or a reason why its marks are invalid (then the tool cannot be called)."""
    found: dict[str, Mirrored] = {}
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
        if name.lower() in found:
            return f"{_MARK} {name[:80]} is used twice"
        found[name.lower()] = Mirrored(path, PARAM_PREFIX + name.lower().encode())
    return tuple(found.values())


def _positions(root: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Every schema inside a schema, with its path of property names, or None once it cannot be named."""
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
    """The text an argument has as a header; None when it is absent, null or has no text form."""
    node = arguments
    for key in path:
        if not isinstance(node, dict):
            return None
        node = node.get(key)
    if isinstance(node, bool):
        return "true" if node else "false"
    if isinstance(node, str | int):
        try:
            return str(node)
        except ValueError:  # an integer beyond the interpreter's digit limit
            return None
    if isinstance(node, float) and node.is_integer():
        return str(int(node))
    return None


def mirror_headers(mirrored: tuple[Mirrored, ...], arguments: Any) -> bytes:
    """The `Mcp-Param-*` header lines for one call."""
    lines = []
    for one in mirrored:
        text = mirror_text(arguments, one.path)
        if text is not None:
            lines.append(b"%b: %b\r\n" % (one.header, encode_header(text)))
    return b"".join(lines)


def mirror_mismatch(mirrored: tuple[Mirrored, ...], arguments: Any, headers: Mapping[bytes, bytes]) -> str | None:
    """Why the headers of a call do not repeat its arguments, or None when they do."""
    for one in mirrored:
        text = mirror_text(arguments, one.path)
        sent = headers.get(one.header)
        shown = one.header.decode()
        if text is None:
            if sent is not None:
                return f"the header {shown} is sent but the argument is absent"
            continue
        if sent is None:
            return f"the header {shown} is missing"
        value = decode_header_untrusted(sent)
        if value is None or not _same(value, text):
            return f"the header {shown} does not equal the argument"
    return None


def _same(sent: str, text: str) -> bool:
    if sent == text:
        return True
    try:  # integers compare by value: 42 and 42.0 are one number in JSON
        return float(sent) == float(text) and text.lstrip("-").isdigit()
    except (ValueError, OverflowError):
        return False
