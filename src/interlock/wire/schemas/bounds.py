"""Is a JSON Schema from elsewhere small enough to be applied? Pure counting, linear in the schema.

A validator follows a reference each time it meets it, so a schema of thirty lines that refers twice to the next of its
definitions takes a billion steps for one value, and one with fifty thousand references takes a minute to compile.
Counted are all values, all references, all patterns (each of which is compiled), and what one value is compared with
at one place when every reference is followed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

VALUES_MAX: Final = 20_000
REFERENCES_MAX: Final = 2_000
WEIGHT_MAX: Final = 2_000  # milliseconds to tell the first fault
PATTERN_CHARS_MAX: Final = 1000
PATTERNS_MAX: Final = 50  # different ones; the worst take some 4 ms each to compile
DEPTH_MAX: Final = 200  # the validator itself ends at about as much

_HERE_ONE: Final = ("not", "if", "then", "else")
_HERE_MANY: Final = ("allOf", "anyOf", "oneOf")
_HERE_NAMED: Final = ("dependentSchemas", "dependencies")


def is_bounded(schema: Any) -> bool:
    schemas = []
    patterns: set[str] = set()
    values = references = 0
    waiting = [(schema, 0)]
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if values > VALUES_MAX or references > REFERENCES_MAX or depth > DEPTH_MAX:
            return False
        if isinstance(value, Mapping | list) and len(value) > VALUES_MAX:
            return False
        if isinstance(value, Mapping):
            schemas.append(value)
            references += "$ref" in value
            patterns.update(_patterns(value))
            waiting.extend((each, depth + 1) for each in value.values())
        elif isinstance(value, list):
            waiting.extend((each, depth + 1) for each in value)
    if len(patterns) > PATTERNS_MAX or any(len(each) > PATTERN_CHARS_MAX for each in patterns):
        return False
    weights: dict[int, int] = {}
    try:
        return all(_weight(schema, each, weights) <= WEIGHT_MAX for each in schemas)
    except RecursionError:
        return False


def _patterns(schema: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    if isinstance(schema.get("patternProperties"), Mapping):
        yield from schema["patternProperties"]


def reference_target(root: Any, reference: str) -> tuple[Any] | None:
    """Return the target of a reference inside this schema, in a tuple. Return None if the reference leads elsewhere
    or nowhere.
    """
    if reference == "#":
        return (root,)
    if not reference.startswith("#/"):
        return None
    target = root
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and len(name) < 6 and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return (target,)


def _weight(root: Any, schema: Any, weights: dict[int, int]) -> int:
    """Count the schemas that one value is checked against here. A schema that leads back to itself counts once,
    because validators stop there.
    """
    if not isinstance(schema, Mapping):
        return 1
    if id(schema) not in weights:
        weights[id(schema)] = 1
        inner = 1
        for each in _here(root, schema):
            inner += _weight(root, each, weights)
            if inner > WEIGHT_MAX:
                break
        weights[id(schema)] = inner
    return weights[id(schema)]


def _here(root: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    reference = schema.get("$ref")
    target = reference_target(root, reference) if isinstance(reference, str) else None
    if target is not None:
        yield target[0]
    for key in _HERE_ONE:
        if key in schema:
            yield schema[key]
    for key in _HERE_MANY:
        if isinstance(schema.get(key), list):
            yield from schema[key]
    for key in _HERE_NAMED:
        if isinstance(schema.get(key), Mapping):
            yield from schema[key].values()
