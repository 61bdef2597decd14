"""The schemas of a specification: read, judged for precision, digested, and compared with the revision before."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Raw

from interlock.names.protocol.judgement import SCHEMA_BYTES_MAX, SchemaPair, SurfaceVerdict, compare
from interlock.names.protocol.model import NO_SCHEMA, Revision
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.jsonrpc.errors import CodecError
from interlock.wire.jsontext.pointer import pointer_step
from interlock.wire.schemas import digest
from interlock.wire.schemas.effort import Effort, EffortSpent
from interlock.wire.schemas.validators import compile_schema

PLACES_MAX: Final = 20  # named of one schema
DEPTH_MAX: Final = 64
_SAYS_TYPE: Final = frozenset(["type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"])


def has_schema(raw: Raw) -> bool:
    return bytes(raw).strip() != bytes(NO_SCHEMA)


def imprecise_places(raw: Raw, *, is_argument: bool) -> list[str]:
    """What in a schema keeps a client from being written to it, each with its place (criterion 3)."""
    what = "argument schema" if is_argument else "return schema"
    if not has_schema(raw):
        return [f"the {what} is missing"]
    if len(raw) > SCHEMA_BYTES_MAX:
        return [f"the {what} has more than {SCHEMA_BYTES_MAX} bytes"]
    try:
        schema = decode_value(raw)
    except CodecError:
        return [f"the {what} is not JSON"]
    compiled = compile_schema(schema)
    if compiled is None:
        return [f"the {what} is no JSON Schema, or too large to be applied"]
    found = [] if compiled.is_whole else [f"the {what} refers to another document"]
    if is_argument and not (isinstance(schema, Mapping) and schema.get("type") == "object"):
        found.append("the argument schema's root has not the type object")
    found += [f"the {what} has no type at {place or 'its root'}" for place in _untyped(schema, "", 0)]
    return found[:PLACES_MAX]


def _untyped(schema: Any, place: str, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX or _SAYS_TYPE.isdisjoint(schema):
        yield place
        return
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name, each in properties.items():
            yield from _untyped(each, f"{place}/properties/{pointer_step(str(name))}", depth + 1)
    if "items" in schema:
        yield from _untyped(schema["items"], f"{place}/items", depth + 1)


def schema_digest(raw: Raw) -> str | None:
    """The digest of a schema's normalised form (REG-8.1-3); None: there is none, or it cannot be read."""
    if not has_schema(raw):
        return None
    try:
        return digest.schema_digest(decode_value(raw))
    except CodecError:
        return None


def is_compatible(before: Revision, after: Revision) -> bool:
    """Whether a client written to the revision before can go on (REG-8.2-1)."""
    if not (before.has_schemas and after.has_schemas):
        return before.has_schemas == after.has_schemas
    try:
        compared = compare(_pair(before), _pair(after), Effort())
    except (CodecError, EffortSpent):
        return False
    return compared.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE)


def _pair(revision: Revision) -> SchemaPair:
    returned = revision.return_schema
    return SchemaPair(revision.argument_schema, returned if has_schema(returned) else None)
