"""Header values of 2026-07-28: the base64 form for values that HTTP cannot carry, and arguments in `Mcp-Param-*`.

A tool's schema can mark an argument with `x-mcp-header`. The client then repeats the argument in a header, so that
proxies can route by it, and the receiver compares the two. The client edge checks headers with these functions, the
server edge writes them. Values are compared as text, except for whole numbers, which have several texts in JSON: 42 and
42.0 are one number.

A header whose base64 form is damaged decodes to None, so that it never equals a body by accident.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.mcp.methods import LATEST_MODERN

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
_ONE: Final = frozenset(
    (
        *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"),
        *("not", "if", "then", "else", "contentSchema"),
    )
)
_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))


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
    """Yield every schema nested in `root`, with the path of property names that leads to it. The path is None if the
    schema is not reached through properties alone.
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
    """Return the `Mcp-Param-*` header lines of one call."""
    lines = []
    for mirror in mirrored:
        if (text := mirror_text(arguments, mirror.path)) is not None:
            lines.append(b"%b: %b\r\n" % (mirror.header, encode_header(text)))
    return b"".join(lines)


def mirror_mismatch(mirrored: tuple[Mirrored, ...], arguments: Any, headers: Mapping[bytes, bytes]) -> str | None:
    """Return why the headers of a call do not match its arguments, or None if they match."""
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
