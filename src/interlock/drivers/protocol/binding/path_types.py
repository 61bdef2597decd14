"""A path of result_extract through a JSON Schema instead of a value (AIP-tools-6): the schema of what it will find."""

from typing import Any

import msgspec

from interlock.drivers.protocol.result_path import Each, Index, Name, Path, Step, Where
from interlock.wire.schemas.inclusion import Effort, EffortSpent
from interlock.wire.schemas.shapes import DEPTH_MAX, Side, alternatives


class Nowhere(msgspec.Struct, frozen=True, kw_only=True):
    """No value of the schema has this."""

    step: Step


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """The schema does not say what is there."""

    step: Step


Found = tuple[Any, ...]  # schemas that all hold for what is found


def path_type(side: Side, schema: Any, path: Path) -> Found | Nowhere | Unknown:
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
    if ("object" if isinstance(step, Name) else "array") not in shape.types:
        return Nowhere(step=step)
    for branches in alternatives(shape):
        ends = [_path_type(side, branch, steps, depth + 1, effort) for branch in branches]
        found = [{"allOf": list(end)} for end in ends if isinstance(end, tuple)]
        unknown = next((end for end in ends if isinstance(end, Unknown)), None)
        if unknown is not None:
            return unknown
        return (
            ({"anyOf": found},)
            if found
            else next((end for end in ends if isinstance(end, Nowhere)), Nowhere(step=step))
        )
    if isinstance(step, Name):
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
    if isinstance(step, Each | Where) and isinstance(end, tuple):
        return ({"type": "array", "items": {"allOf": list(end)}},)
    return end


def _additional(
    side: Side, additional: Found, step: Step, rest: tuple[Step, ...], depth: int, effort: Effort
) -> Found | Nowhere | Unknown:
    schemas = tuple(each for each in additional if isinstance(each, dict))
    return _path_type(side, schemas, rest, depth + 1, effort) if schemas else Unknown(step=step)


def _element(shape: Any, step: Step) -> Found | None:
    """The schemas of an element; None: they are not all told in one word."""
    listed = [*shape.all_of("prefixItems"), *(each for each in shape.all_of("items") if isinstance(each, list))]
    every: Found = tuple(each for each in shape.all_of("items") if not isinstance(each, list))
    if not listed:
        return every or None
    if isinstance(step, Index) and len(listed) == 1 and isinstance(listed[0], list) and step.number < len(listed[0]):
        return (listed[0][step.number],)
    return None
