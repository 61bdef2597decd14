"""How the results of a tool are read, and whether they can satisfy a contract (AIP-tools-6, AIP-extract-5 and -7).

`settle` runs once per binding, before any call. It follows result_extract through the server's outputSchema
(`path_type`) and compares the schema at the end of the path with the contract's outputs. If no value can satisfy the
contract, the difference is a refusal. If the schemas do not decide, the difference is a doubt, and the value is checked
at every call.

A tool without outputSchema returns text. The text is parsed as JSON only if plain text could not satisfy the contract.
If result_extract is a single name, the text replaces the member of that name only if the binding allows the fallback to
text (AIP-extract-7).
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
from interlock.wire.schemas.shapes import DEPTH_MAX, Shape, Side, alternatives, types_shown

TEXT: Final[Mapping[str, Any]] = {"type": "string"}
CONTENT: Final = "content"  # the member under which a text stands (AIP-extract-4)
PARSE_HINT: Final = "add result_parse to metadata.interlock of the binding, to read the text as json, lines or records"
UNLISTED: Final = "no outputSchema"


class Nowhere(msgspec.Struct, frozen=True, kw_only=True):
    """Result of following a path to a step that no value of the schema can have."""

    step: Step


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Result of following a path to a step that the schema does not describe."""

    step: Step


Schemas = tuple[Any, ...]  # all of them hold for the value


def path_type(side: Side, schema: Any, path: ResultPath) -> Schemas | Nowhere | Unknown:
    """Follow a path through a schema instead of a value.

    Return the schemas that every value at the end of the path satisfies, or the step at which the path cannot be
    followed.
    """
    try:
        return _follow(side, (schema,), path.steps, 0, Effort())
    except EffortSpent:
        return Unknown(step=path.steps[0])


def _follow(
    side: Side, schemas: Schemas, steps: tuple[Step, ...], depth: int, effort: Effort
) -> Schemas | Nowhere | Unknown:
    """Follow the remaining steps of a path.

    The alternatives of a schema are followed separately. `depth` and `effort` limit the work for large schemas.
    """
    effort.spend(1)
    if not steps:
        return schemas
    step, rest = steps[0], steps[1:]
    if depth > DEPTH_MAX:
        return Unknown(step=step)
    shape = side.shape(*schemas)
    if ("object" if isinstance(step, NameStep) else "array") not in shape.types:
        return Nowhere(step=step)
    # One group of alternatives is enough, because each of its branches holds the others. A branch in which the path
    # ends is left out: a value of that branch fails at the call.
    branches = next(iter(alternatives(shape)), None)
    if branches is not None:
        ends = [_follow(side, branch, steps, depth + 1, effort) for branch in branches]
        unknown = next((end for end in ends if isinstance(end, Unknown)), None)
        reached = [{"allOf": list(end)} for end in ends if isinstance(end, tuple)]
        nowhere = next((end for end in ends if isinstance(end, Nowhere)), Nowhere(step=step))
        return unknown or (({"anyOf": reached},) if reached else nowhere)
    if isinstance(step, NameStep):
        member = shape.names().get(step.key)
        if member is None:
            if shape.shuts_out(step.key):
                return Nowhere(step=step)
            member = tuple(each for each in shape.all_of("additionalProperties") if isinstance(each, dict))
            if not member:
                return Unknown(step=step)
        return _follow(side, member, rest, depth + 1, effort)
    element = _element(shape, step)
    if element is None:
        return Unknown(step=step)
    end = _follow(side, element, rest, depth + 1, effort)
    if isinstance(step, EachStep | WhereStep) and isinstance(end, tuple):
        return ({"type": "array", "items": {"allOf": list(end)}},)
    return end


def _element(shape: Shape, step: Step) -> Schemas | None:
    """Return the schemas of the array element that a step selects, or None if they cannot be determined."""
    items = shape.all_of("items")
    listed = [*shape.all_of("prefixItems"), *(each for each in items if isinstance(each, list))]
    if not listed:
        return tuple(each for each in items if not isinstance(each, list)) or None
    tuples = listed[0] if len(listed) == 1 and isinstance(listed[0], list) else []
    return (tuples[step.number],) if isinstance(step, IndexStep) and step.number < len(tuples) else None


class SettledOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Decision how the results of a binding are read, and how they compare with the contract's outputs.

    `refusals` prevent the binding; `doubts` are checked at every call. In each difference, `narrow` is the server's
    side and `wide` the contract's.
    """

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

    `offered` is the tool's outputSchema, or None if it has none. `pattern` is the compiled pattern of result_parse.
    """
    outputs = Side(contract.outputs)
    parse = binding.result_parse
    if parse is not None:
        mode: Mode = parse.form or ("text" if offered is None or parse.source in {"text", "content"} else "structured")
        side, base = _base_of_parse(parse, offered, pattern)
        return _settle_path(mode, side, base, binding, path, outputs)
    name = path.only_name
    if offered is not None:
        side = Side(offered)
        shape = side.shape(offered)
        members = list(shape.names().items())
        # A result that is an object whose only member is a text.
        is_text_shaped = (
            shape.types == {"object"}
            and len(members) == 1
            and types_shown(side.shape(*members[0][1]).types) == "string"
        )
        if name is not None and is_text_shaped and name != members[0][0]:
            return _settle_fallback("structured", name, side, binding, outputs, strict)
        return _settle_path("structured", side, offered, binding, path, outputs)
    doubt = SchemaDifference(path="", narrow=UNLISTED, wide="outputs")
    first = path.steps[0] if path.steps else None
    text_schema = _object_of(CONTENT, TEXT) if first is None else TEXT
    reaches_text = first is None or name is not None or first == NameStep(CONTENT)
    if not reaches_text or exclusions(Side({}), _wrap(text_schema, binding), outputs, outputs.root):
        return SettledOutput(mode="json", doubts=(doubt,))
    if name is None or name == CONTENT:
        return SettledOutput(mode="text", doubts=(doubt,))
    settled = _settle_fallback("text", name, Side({}), binding, outputs, strict)
    return msgspec.structs.replace(settled, doubts=(doubt, *settled.doubts))


def _settle_fallback(
    mode: Mode, name: str, side: Side, binding: ToolBinding, outputs: Side, strict: bool
) -> SettledOutput:
    """Decide whether the text of a result is used if the result has no member called `name` (AIP-extract-7)."""
    if strict or not binding.text_fallback:  # AIP-extract-7
        missing = SchemaDifference(path=f"/{name}", narrow="nothing of this name", wide="outputs")
        return SettledOutput(mode=mode, refusals=(missing,))
    return msgspec.structs.replace(_settle_comparison(mode, side, TEXT, binding, outputs), falls_back=True)


def _settle_path(
    mode: Mode, side: Side, base: Any, binding: ToolBinding, path: ResultPath, outputs: Side
) -> SettledOutput:
    """Decide how results are read if result_extract leads to a value below `base`."""
    end = path_type(side, base, path)
    if isinstance(end, Nowhere):  # AIP-tools-6
        missing = SchemaDifference(path=str(path), narrow=f"nothing at {end.step}", wide="outputs")
        return SettledOutput(mode=mode, refusals=(missing,))
    if isinstance(end, Unknown):
        unknown = SchemaDifference(path=str(path), narrow=f"no schema at {end.step}", wide="outputs")
        return SettledOutput(mode=mode, doubts=(unknown,))
    return _settle_comparison(mode, side, {"allOf": list(end)}, binding, outputs)


def _settle_comparison(mode: Mode, side: Side, schema: Any, binding: ToolBinding, outputs: Side) -> SettledOutput:
    """Compare the schema of the extracted value with the contract's outputs.

    The schema is first wrapped as result_wrap demands, and reduced by the outputs that the driver drops.
    """
    offered = _wrap(schema, binding)
    if dropped := binding.schema_narrowing.drop_outputs:
        offered = _without_properties(side, offered, dropped)
    refusals = exclusions(side, offered, outputs, outputs.root)
    if refusals:  # AIP-tools-6
        is_unread_text = side.shape(schema).types == {"string"} and binding.result_parse is None
        return SettledOutput(mode=mode, refusals=refusals, hint=PARSE_HINT if is_unread_text else "")
    outcome = includes(outputs, outputs.root, side, offered, unnamed=InclusionVerdict.ACCEPTS)
    if outcome.verdict is InclusionVerdict.ACCEPTS:
        return SettledOutput(mode=mode)
    return SettledOutput(mode=mode, doubts=outcome.differences)


def _base_of_parse(parse: ResultParse, offered: Any, pattern: RecordPattern | None) -> tuple[Side, Any]:
    """Return the schema of the value to which result_extract is applied.

    The binding has a result_parse block (AIP-extract-8).
    """
    side = Side({})
    base: Any = True
    match parse.form:
        case "text":
            base = TEXT
        case "lines":
            base = {"type": "array", "items": TEXT}
        case "records" if pattern is not None:
            record = {"type": "object", "properties": dict.fromkeys(pattern.groups, TEXT)}
            base = {"type": "array", "items": {**record, "additionalProperties": False}}
        case None if parse.source in {"auto", "structured"}:
            side, base = Side(offered), True if offered is None else offered
        case None:
            base = {"text": TEXT, "content": {"type": "array"}, "result": {"type": "object"}}[parse.source]
    return side, base if parse.into is None else _object_of(parse.into, base)


def _object_of(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


def _wrap(schema: Any, binding: ToolBinding) -> Any:
    """Return the schema of the value after result_wrap has put it into an object, if the binding has one."""
    return schema if binding.result_wrap is None else _object_of(binding.result_wrap, schema)


def _without_properties(side: Side, schema: Any, dropped: tuple[str, ...]) -> Any:
    """Return the schema of a value from which the outputs in `dropped` were removed."""
    parts = []
    for part in side.shape(schema).parts:
        remaining = {key: value for key, value in part.items() if key not in {"$ref", "allOf"}}
        properties = remaining.get("properties")
        if isinstance(properties, Mapping):
            remaining["properties"] = {name: each for name, each in properties.items() if name not in dropped}
        parts.append(remaining)
    return {"allOf": parts}
