"""What a tool says it gives against what a contract promises: how its results are to be read, whether they can fit, and
what is left to the call (AIP-tools-6, AIP-extract-5 and -7)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.path_types import Nowhere, Unknown, path_type
from interlock.drivers.protocol.binding.results import Mode
from interlock.drivers.protocol.model import Binding, Contract, ResultParse
from interlock.drivers.protocol.result_path import Name, Path
from interlock.drivers.protocol.result_pattern import Pattern
from interlock.wire.schemas.inclusion import InclusionVerdict, SchemaDifference, includes
from interlock.wire.schemas.overlap import exclusions
from interlock.wire.schemas.shapes import Side, types_shown

TEXT: Final[Mapping[str, Any]] = {"type": "string"}
CONTENT: Final = "content"  # the member under which a text stands (AIP-extract-4)
PARSE_HINT: Final = "add result_parse to metadata.interlock of the binding, to read the text as json, lines or records"
UNLISTED: Final = "no outputSchema"


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """`narrow` of a Difference is the server's side, `wide` the contract's."""

    mode: Mode
    falls_back: bool = False
    refusals: tuple[SchemaDifference, ...] = ()
    doubts: tuple[SchemaDifference, ...] = ()
    hint: str = ""


def settle(
    binding: Binding, path: Path, contract: Contract, offered: Any, pattern: Pattern | None, *, strict: bool
) -> Settled:
    """`offered`: the tool's outputSchema, or None."""
    outputs = Side(contract.outputs)
    parse = binding.result_parse
    if parse is not None:
        mode: Mode = parse.form or ("text" if offered is None or parse.source in {"text", "content"} else "structured")
        side, base = _base_of_parse(parse, offered, pattern)
        return _settle_path(mode, side, base, binding, path, outputs)
    if offered is None:
        return _settle_unlisted(binding, path, outputs, strict)
    side = Side(offered)
    name = path.only_name
    if name is not None and _is_text_shaped(side, offered) and name not in side.shape(offered).names():
        return _fallback("structured", name, side, binding, outputs, strict)
    return _settle_path("structured", side, offered, binding, path, outputs)


def _settle_unlisted(binding: Binding, path: Path, outputs: Side, strict: bool) -> Settled:
    """A tool without outputSchema. Its text is read as JSON only where a text could not satisfy the contract."""
    doubt = SchemaDifference(path="", narrow=UNLISTED, wide="outputs")
    first = path.steps[0] if path.steps else None
    textual = _object_of(CONTENT, TEXT) if first is None else TEXT
    name = path.only_name
    reaches = first is None or name is not None or first == Name(CONTENT)
    if not reaches or exclusions(Side({}), _wrap(textual, binding), outputs, outputs.root):
        return Settled(mode="json", doubts=(doubt,))
    if name is None or name == CONTENT:
        return Settled(mode="text", doubts=(doubt,))
    settled = _fallback("text", name, Side({}), binding, outputs, strict)
    return msgspec.structs.replace(settled, doubts=(doubt, *settled.doubts))


def _fallback(mode: Mode, name: str, side: Side, binding: Binding, outputs: Side, strict: bool) -> Settled:
    """AIP-extract-7: a single name that a text-shaped result does not have means the text."""
    if strict or not binding.text_fallback:  # AIP-extract-7
        missing = SchemaDifference(path=f"/{name}", narrow="nothing of this name", wide="outputs")
        return Settled(mode=mode, refusals=(missing,))
    return msgspec.structs.replace(_settle_comparison(mode, side, TEXT, binding, outputs), falls_back=True)


def _settle_path(mode: Mode, side: Side, base: Any, binding: Binding, path: Path, outputs: Side) -> Settled:
    end = path_type(side, base, path)
    if isinstance(end, Nowhere):  # AIP-tools-6
        missing = SchemaDifference(path=str(path), narrow=f"nothing at {end.step}", wide="outputs")
        return Settled(mode=mode, refusals=(missing,))
    if isinstance(end, Unknown):
        unknown = SchemaDifference(path=str(path), narrow=f"no schema at {end.step}", wide="outputs")
        return Settled(mode=mode, doubts=(unknown,))
    return _settle_comparison(mode, side, {"allOf": list(end)}, binding, outputs)


def _settle_comparison(mode: Mode, side: Side, found: Any, binding: Binding, outputs: Side) -> Settled:
    given = _without(side, _wrap(found, binding), binding.schema_narrowing.drop_outputs)
    apart = exclusions(side, given, outputs, outputs.root)
    if apart:  # AIP-tools-6
        text = side.shape(found).types == {"string"} and binding.result_parse is None
        return Settled(mode=mode, refusals=apart, hint=PARSE_HINT if text else "")
    outcome = includes(outputs, outputs.root, side, given, unnamed=InclusionVerdict.ACCEPTS)
    if outcome.verdict is InclusionVerdict.ACCEPTS:
        return Settled(mode=mode)
    return Settled(mode=mode, doubts=outcome.differences)


def _base_of_parse(parse: ResultParse, offered: Any, pattern: Pattern | None) -> tuple[Side, Any]:
    side, base = Side({}), _read_as(parse, pattern)
    if parse.form is None:
        if parse.source in {"auto", "structured"}:
            side, base = Side(offered), True if offered is None else offered
        else:
            base = {"text": TEXT, "content": {"type": "array"}, "result": {"type": "object"}}[parse.source]
    return side, base if parse.into is None else _object_of(parse.into, base)


def _read_as(parse: ResultParse, pattern: Pattern | None) -> Any:
    match parse.form:
        case "text":
            return TEXT
        case "lines":
            return {"type": "array", "items": TEXT}  # AIP-extract-8
        case "records" if pattern is not None:
            record = {"type": "object", "properties": dict.fromkeys(pattern.groups, TEXT)}
            return {"type": "array", "items": {**record, "additionalProperties": False}}
    return True


def _object_of(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


def _wrap(schema: Any, binding: Binding) -> Any:
    return schema if binding.result_wrap is None else _object_of(binding.result_wrap, schema)


def _without(side: Side, schema: Any, dropped: tuple[str, ...]) -> Any:
    """The schema of the value without the outputs that are dropped."""
    if not dropped:
        return schema
    parts = []
    for part in side.shape(schema).parts:
        kept = {key: value for key, value in part.items() if key not in {"$ref", "allOf"}}
        if isinstance(kept.get("properties"), Mapping):
            kept["properties"] = {name: each for name, each in kept["properties"].items() if name not in dropped}
        parts.append(kept)
    return {"allOf": parts}


def _is_text_shaped(side: Side, offered: Any) -> bool:
    """An object that is nothing but a text."""
    shape = side.shape(offered)
    names = shape.names()
    only = next(iter(names.values())) if len(names) == 1 else None
    return shape.types == {"object"} and only is not None and types_shown(side.shape(*only).types) == "string"
