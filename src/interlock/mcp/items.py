"""List items on their way to a client: renamed, annotated, and otherwise the bytes that the server sent.

Unknown members, their order and every value pass. Across eras, only what the other era forbids is changed: a legacy
client needs object schemas for properties and outputs, and has no use for `execution` of another era.

The module also has our cursor over a merged list. It contains the key after which the list continues, not a position:
paging stays right while servers come and go, and the node keeps no state for it.
"""

import base64
from typing import Any, Final

from msgspec import Raw

from interlock.mcp.methods import Era
from interlock.wire.jsonrpc.codec import CodecError, decode_object, decode_value, encode_value, find_string

# Our own cursor over a merged list: the key after which to go on.
#
# It names a place in the order, not a position in a version of the list, so paging stays right while servers come and
# go, and no state is kept for it.

CURSOR_BYTES_MAX = 2 * 1024 * 1024  # the key may be a URI as long as a list item (1 MiB), and base64 adds a third
_PREFIX = b"il1:"


def encode_cursor(after: str) -> str:
    """Encode the key after which a list continues as a cursor."""
    return base64.urlsafe_b64encode(_PREFIX + after.encode()).decode().rstrip("=")


def decode_cursor_untrusted(cursor: str) -> str | None:
    """Return the key in a cursor, or None if this gateway did not write the cursor."""
    if len(cursor) > CURSOR_BYTES_MAX:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        after = raw[len(_PREFIX) :].decode()
    except ValueError:
        return None
    return after if encode_cursor(after) == cursor else None


Item = dict[str, Raw]

_FORBIDDEN: Final = b'"forbidden"'  # what a tool says of tasks by saying nothing
_OBJECT_TYPE: Final = b'"object"'
# Before 2026-07-28 the schema of a property is an object; these say the same.
_AS_OBJECT: Final = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}


def tool_item(
    item: Item,
    *,
    name: str,
    meta: dict[str, Any],
    hints: dict[str, bool],
    server: Era,
    client: Era,
    tasks: bool = True,
) -> bytes:
    """Encode a tool for a client. `server` and `client` are the eras of the two sides. `tasks` says whether the server
    can run calls of the tool as tasks.
    """
    shown: dict[str, Any] = dict(item)
    shown["name"] = name
    if not tasks and "execution" in shown:
        # Remove what a tool says about tasks, because its server does not support them (2025-11-25). `forbidden`
        # stays, because it means the same as leaving the member out.
        execution = decode_object(shown["execution"])
        if execution is not None and find_string(execution.get("taskSupport", _FORBIDDEN)) != "forbidden":
            del execution["taskSupport"]
            shown["execution"] = execution
    if server is not client:
        if client is Era.MODERN:
            shown.pop("execution", None)  # 2025-11-25 only
        else:
            for member in ("inputSchema", "outputSchema"):
                schema = decode_object(shown[member]) if member in shown else None
                if schema is not None and bytes(schema.get("type", b"")) == _OBJECT_TYPE:
                    properties = decode_object(schema.get("properties", Raw(b"{}"))) or {}
                    if any(bytes(schema_of_property) in _AS_OBJECT for schema_of_property in properties.values()):
                        named = {
                            name: _AS_OBJECT.get(bytes(schema_of_property), schema_of_property)
                            for name, schema_of_property in properties.items()
                        }
                        shown[member] = {**schema, "properties": named}
                elif member == "outputSchema":
                    shown.pop(member, None)  # before 2026-07-28 an output is an object
    if hints:
        shown["annotations"] = _merge(item.get("annotations"), hints)
    if meta or "_meta" in item:
        shown["_meta"] = _merge(item.get("_meta"), meta)
    return encode_value(shown)


def prompt_item(item: Item, *, name: str, meta: dict[str, Any]) -> bytes:
    """Encode a prompt for a client, under another name and with additional metadata."""
    shown: dict[str, Any] = dict(item)
    shown["name"] = name
    if meta:
        shown["_meta"] = _merge(item.get("_meta"), meta)
    return encode_value(shown)


def resource_item(item: Item, *, member: str, uri: str) -> bytes:
    """Encode a resource or a template for a client. `member` is the member that contains the URI or the URI
    template.
    """
    shown: dict[str, Any] = dict(item)
    shown[member] = uri
    return encode_value(shown)


def find_value(item: Item, member: str) -> Any:
    """Return the decoded member of a list item, or None if the member is absent or cannot be decoded."""
    raw = item.get(member)
    if raw is None:
        return None
    try:
        return decode_value(raw)
    except CodecError:
        return None


def _merge(raw: Raw | None, extra: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the members of `extra` added. They replace members with the same name."""
    return {**((decode_object(raw) if raw is not None else None) or {}), **extra}
