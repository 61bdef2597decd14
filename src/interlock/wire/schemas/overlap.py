"""Can a value of one JSON Schema satisfy another at all? (AIP-tools-6: what a tool gives and what a contract promises.)

Told are the places at which the two exclude each other; none means that it is possible, not that it is certain.
Elements of arrays and members of objects that exclude each other count, although an empty array or an object without
the member would pass: a binding that only ever works for nothing is a mistake.
"""

from typing import Any

from interlock.wire.jsontext.canonical import pointer_step
from interlock.wire.schemas.inclusion import VALUES_MAX, Effort, EffortSpent, SchemaDifference
from interlock.wire.schemas.shapes import DEPTH_MAX, Shape, Side, alternatives, types_shown


def exclusions(ours: Side, our_schema: Any, theirs: Side, their_schema: Any) -> tuple[SchemaDifference, ...]:
    """Return the places where no value satisfies both schemas. `narrow` of a difference is our side, `wide` is
    theirs.
    """
    if not (ours.is_bounded and theirs.is_bounded):
        return ()
    try:
        return tuple(_Meeting(ours, theirs).apart((our_schema,), (their_schema,), "", 0))
    except (EffortSpent, RecursionError):
        return ()


class _Meeting:
    def __init__(self, ours: Side, theirs: Side) -> None:
        self._ours, self._theirs = ours, theirs
        self._effort = Effort()

    def apart(self, our: tuple[Any, ...], their: tuple[Any, ...], path: str, depth: int) -> list[SchemaDifference]:
        self._effort.spend(1)
        if depth > DEPTH_MAX:
            return []
        ours, theirs = self._ours.shape(*our), self._theirs.shape(*their)
        self._effort.spend(len(ours.parts) + len(theirs.parts) + ours.steps + theirs.steps)
        common = ours.types & theirs.types
        if not common:
            return [SchemaDifference(path=path, narrow=types_shown(ours.types), wide=types_shown(theirs.types))]
        if self._values_apart(ours, self._theirs, their) or self._values_apart(theirs, self._ours, our):
            return [SchemaDifference(path=path, narrow="its values", wide="none of them")]
        for shape, is_ours in ((ours, True), (theirs, False)):
            for branches in alternatives(shape):
                results = [
                    self.apart(branch, their, path, depth + 1) if is_ours else self.apart(our, branch, path, depth + 1)
                    for branch in branches
                ]
                if results and all(results):
                    return results[0]
        if common == {"object"}:
            differences: list[SchemaDifference] = []
            mine, wanted = ours.names(), theirs.names()
            for requiring, other, narrow, wide in (
                (theirs, ours, "never there", "required"),
                (ours, theirs, "always there", "not allowed"),
            ):
                differences += [
                    SchemaDifference(path=f"{path}/{pointer_step(name)}", narrow=narrow, wide=wide)
                    for name in requiring.required()
                    if other.shuts_out(name)
                ]
            for name, schemas in mine.items():
                if name in wanted:
                    differences += self.apart(schemas, wanted[name], f"{path}/{pointer_step(name)}", depth + 1)
            return differences
        if common == {"array"}:
            items = [
                tuple(each for each in side.all_of("items") if not isinstance(each, list)) for side in (ours, theirs)
            ]
            return self.apart(items[0], items[1], f"{path}/*", depth + 1)
        return []

    def _values_apart(self, shape: Shape, other: Side, their: tuple[Any, ...]) -> bool:
        values = shape.values
        if values is None or len(values) > VALUES_MAX:
            return False
        self._effort.spend(len(values) * other.cost(*their))
        return all(other.accepts(value, *their) is False for value in values)
