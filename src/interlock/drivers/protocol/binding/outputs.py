"""What a tool says it gives against what a contract promises: how its results are to be read, whether they can fit, and
what is left to the call (AIP-tools-6, AIP-extract-5 and -7).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.binding.results import Mode
from interlock.drivers.protocol.model import Contract, ResultParse, ToolBinding
from interlock.drivers.protocol.result_path import (
    EachStep,
    IndexStep,
    NameStep,
    RecordPattern,
    ResultPath,
    Step,
    WhereStep,
)
from interlock.wire.schemas.inclusion import (
    Effort,
    EffortSpent,
    InclusionVerdict,
    SchemaDifference,
    exclusions,
    includes,
)
from interlock.wire.schemas.shapes import DEPTH_MAX, Side, alternatives, types_shown

# A path of result_extract through a JSON Schema instead of a value (AIP-tools-6): the schema of what it will find.


class Nowhere(msgspec.Struct, frozen=True, kw_only=True):
    """No value of the schema has this."""

    step: Step


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """The schema does not say what is there."""

    step: Step


Found = tuple[Any, ...]  # schemas that all hold for what is found


def path_type(side: Side, schema: Any, path: ResultPath) -> Found | Nowhere | Unknown:
    try:
        return _path_type(side, (schema,), path.steps, 0, Effort())
    except EffortSpent:
        return Unknown(step=path.steps[0])


def _path_type(
    side: Side, schemas: Found, steps: tuple[Step, ...], depth: int, effort: Effort
) -> Found | Nowhere | Unknown:
    effort.spend(1)
    if not steps:
        return schemas
    step, rest = steps[0], steps[1:]
    if depth > DEPTH_MAX:
        return Unknown(step=step)
    shape = side.shape(*schemas)
    if ("object" if isinstance(step, NameStep) else "array") not in shape.types:
        return Nowhere(step=step)
    for branches in alternatives(shape):
        ends = [_path_type(side, branch, steps, depth + 1, effort) for branch in branches]
        reached = [{"allOf": list(end)} for end in ends if isinstance(end, tuple)]
        unknown = next((end for end in ends if isinstance(end, Unknown)), None)
        if unknown is not None:
            return unknown
        return (
            ({"anyOf": reached},)
            if reached
            else next((end for end in ends if isinstance(end, Nowhere)), Nowhere(step=step))
        )
    if isinstance(step, NameStep):
        inner = shape.names().get(step.key)
        if inner is None:
            return (
                Nowhere(step=step)
                if shape.shuts_out(step.key)
                else _additional(side, shape.all_of("additionalProperties"), step, rest, depth, effort)
            )
        return _path_type(side, inner, rest, depth + 1, effort)
    inner = _element(shape, step)
    if inner is None:
        return Unknown(step=step)
    end = _path_type(side, inner, rest, depth + 1, effort)
    if isinstance(step, EachStep | WhereStep) and isinstance(end, tuple):
        return ({"type": "array", "items": {"allOf": list(end)}},)
    return end


def _additional(
    side: Side, additional: Found, step: Step, rest: tuple[Step, ...], depth: int, effort: Effort
) -> Found | Nowhere | Unknown:
    schemas = tuple(each for each in additional if isinstance(each, dict))
    return _path_type(side, schemas, rest, depth + 1, effort) if schemas else Unknown(step=step)


def _element(shape: Any, step: Step) -> Found | None:
    """Return the schemas of an array's element, or None if they cannot be determined."""
    listed = [*shape.all_of("prefixItems"), *(each for each in shape.all_of("items") if isinstance(each, list))]
    every: Found = tuple(each for each in shape.all_of("items") if not isinstance(each, list))
    if not listed:
        return every or None
    if (
        isinstance(step, IndexStep)
        and len(listed) == 1
        and isinstance(listed[0], list)
        and step.number < len(listed[0])
    ):
        return (listed[0][step.number],)
    return None


TEXT: Final[Mapping[str, Any]] = {"type": "string"}
CONTENT: Final = "content"  # the member under which a text stands (AIP-extract-4)
PARSE_HINT: Final = "add result_parse to metadata.interlock of the binding, to read the text as json, lines or records"
UNLISTED: Final = "no outputSchema"


class SettledOutput(msgspec.Struct, frozen=True, kw_only=True):
    """`narrow` of a Difference is the server's side, `wide` the contract's."""

    mode: Mode
    falls_back: bool = False
    refusals: tuple[SchemaDifference, ...] = ()
    doubts: tuple[SchemaDifference, ...] = ()
    hint: str = ""


def settle(
    binding: ToolBinding,
    path: ResultPath,
    contract: Contract,
    offered: Any,
    pattern: RecordPattern | None,
    *,
    strict: bool,
) -> SettledOutput:
    """Decide how results are read, and compare them with the contract's outputs.

    `offered` is the tool's outputSchema, or None.
    """
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


def _settle_unlisted(binding: ToolBinding, path: ResultPath, outputs: Side, strict: bool) -> SettledOutput:
    """Decide how to read the results of a tool without outputSchema.

    Its text is read as JSON only if plain text could not satisfy the contract.
    """
    doubt = SchemaDifference(path="", narrow=UNLISTED, wide="outputs")
    first = path.steps[0] if path.steps else None
    textual = _object_of(CONTENT, TEXT) if first is None else TEXT
    name = path.only_name
    reaches = first is None or name is not None or first == NameStep(CONTENT)
    if not reaches or exclusions(Side({}), _wrap(textual, binding), outputs, outputs.root):
        return SettledOutput(mode="json", doubts=(doubt,))
    if name is None or name == CONTENT:
        return SettledOutput(mode="text", doubts=(doubt,))
    settled = _fallback("text", name, Side({}), binding, outputs, strict)
    return msgspec.structs.replace(settled, doubts=(doubt, *settled.doubts))


def _fallback(mode: Mode, name: str, side: Side, binding: ToolBinding, outputs: Side, strict: bool) -> SettledOutput:
    """Read the text if a text-shaped result has no member of this single name (AIP-extract-7)."""
    if strict or not binding.text_fallback:  # AIP-extract-7
        missing = SchemaDifference(path=f"/{name}", narrow="nothing of this name", wide="outputs")
        return SettledOutput(mode=mode, refusals=(missing,))
    return msgspec.structs.replace(_settle_comparison(mode, side, TEXT, binding, outputs), falls_back=True)


def _settle_path(
    mode: Mode, side: Side, base: Any, binding: ToolBinding, path: ResultPath, outputs: Side
) -> SettledOutput:
    end = path_type(side, base, path)
    if isinstance(end, Nowhere):  # AIP-tools-6
        missing = SchemaDifference(path=str(path), narrow=f"nothing at {end.step}", wide="outputs")
        return SettledOutput(mode=mode, refusals=(missing,))
    if isinstance(end, Unknown):
        unknown = SchemaDifference(path=str(path), narrow=f"no schema at {end.step}", wide="outputs")
        return SettledOutput(mode=mode, doubts=(unknown,))
    return _settle_comparison(mode, side, {"allOf": list(end)}, binding, outputs)


def _settle_comparison(mode: Mode, side: Side, schema: Any, binding: ToolBinding, outputs: Side) -> SettledOutput:
    offered = _without(side, _wrap(schema, binding), binding.schema_narrowing.drop_outputs)
    apart = exclusions(side, offered, outputs, outputs.root)
    if apart:  # AIP-tools-6
        text = side.shape(schema).types == {"string"} and binding.result_parse is None
        return SettledOutput(mode=mode, refusals=apart, hint=PARSE_HINT if text else "")
    outcome = includes(outputs, outputs.root, side, offered, unnamed=InclusionVerdict.ACCEPTS)
    if outcome.verdict is InclusionVerdict.ACCEPTS:
        return SettledOutput(mode=mode)
    return SettledOutput(mode=mode, doubts=outcome.differences)


def _base_of_parse(parse: ResultParse, offered: Any, pattern: RecordPattern | None) -> tuple[Side, Any]:
    side, base = Side({}), _read_as(parse, pattern)
    if parse.form is None:
        if parse.source in {"auto", "structured"}:
            side, base = Side(offered), True if offered is None else offered
        else:
            base = {"text": TEXT, "content": {"type": "array"}, "result": {"type": "object"}}[parse.source]
    return side, base if parse.into is None else _object_of(parse.into, base)


def _read_as(parse: ResultParse, pattern: RecordPattern | None) -> Any:
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


def _wrap(schema: Any, binding: ToolBinding) -> Any:
    return schema if binding.result_wrap is None else _object_of(binding.result_wrap, schema)


def _without(side: Side, schema: Any, dropped: tuple[str, ...]) -> Any:
    """Return the schema of the value without the dropped outputs."""
    if not dropped:
        return schema
    parts = []
    for part in side.shape(schema).parts:
        remaining = {key: value for key, value in part.items() if key not in {"$ref", "allOf"}}
        if isinstance(remaining.get("properties"), Mapping):
            remaining["properties"] = {
                name: each for name, each in remaining["properties"].items() if name not in dropped
            }
        parts.append(remaining)
    return {"allOf": parts}


def _is_text_shaped(side: Side, offered: Any) -> bool:
    """Return whether the schema describes an object whose only member is a text."""
    shape = side.shape(offered)
    names = shape.names()
    only = next(iter(names.values())) if len(names) == 1 else None
    return shape.types == {"object"} and only is not None and types_shown(side.shape(*only).types) == "string"
