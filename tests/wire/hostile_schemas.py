"""Schemas over which a walk may take very long: doubling, in circles, deep and wide. Each is a text."""

import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

JsonSchema = dict[str, Any]

TEXT: JsonSchema = {"type": "string"}


def pair(keyword: str, one: Any, other: Any) -> JsonSchema:
    """Return a schema that leads to both others through one keyword."""
    match keyword:
        case "anyOf" | "oneOf" | "allOf" | "prefixItems":
            return {keyword: [one, other]}
        case "properties":
            return {"type": "object", "properties": {"a": one, "b": other}, "required": ["a", "b"]}
        case "names":  # that are the same as the name of a type
            return {"type": "object", "properties": {"_": one, "__": other}, "required": ["_", "__"]}
        case "items" | "additionalProperties" | "not":
            return {keyword: {"anyOf": [one, other]}}
        case "if":
            return {"if": one, "then": other, "else": one}
        case "dependentSchemas" | "patternProperties":
            return {keyword: {"a": one, "b": other}}
    raise ValueError(keyword)


KEYWORDS = (
    *("anyOf", "oneOf", "allOf", "prefixItems", "properties", "names", "items", "additionalProperties", "not", "if"),
    *("dependentSchemas", "patternProperties"),
)


def around(schema: Any, definitions: Mapping[str, Any]) -> JsonSchema:
    return {"type": "object", "properties": {"p": schema}, "required": ["p"], "$defs": definitions}


def doubled(levels: int, keyword: str) -> JsonSchema:
    """Return a schema in which every definition refers twice to the next."""
    definitions = {
        f"d{level}": pair(keyword, {"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"})
        for level in range(levels)
    }
    return around({"$ref": "#/$defs/d0"}, {**definitions, f"d{levels}": {"type": "object", "properties": {"x": TEXT}}})


def cyclic(keyword: str) -> JsonSchema:
    """Return a schema whose two definitions refer to both of them."""
    here, there = {"$ref": "#/$defs/here"}, {"$ref": "#/$defs/there"}
    return around(here, {"here": pair(keyword, here, there), "there": pair(keyword, there, here)})


def deep(levels: int, keyword: str) -> str:
    """Return the text of a schema in which every schema holds one other."""
    begin, end = json.dumps(pair(keyword, "\0", True), separators=(",", ":")).split('"\\u0000"', 1)
    end = end.replace('"\\u0000"', "true")
    return f'{{"type":"object","properties":{{"p":{begin * levels}{{"type":"string"}}{end * levels}}}}}'


def wide(count: int) -> Iterator[tuple[str, JsonSchema]]:
    yield "properties", {"type": "object", "properties": {f"p{at}": TEXT for at in range(count)}}
    yield "similar names", {"type": "object", "properties": {"_" * at + "a": TEXT for at in range(min(count, 300))}}
    yield "required", {"type": "object", "required": [f"p{at}" for at in range(count)]}
    yield "enum", around({"enum": [f"p{at}" for at in range(count)]}, {})
    yield "branches", {"type": "object", "anyOf": [{"properties": {f"p{at}": TEXT}} for at in range(count)]}
    yield "a chain", around({"$ref": "#/$defs/d0"}, {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(count)})
    yield "one reference twenty times", around({"$ref": "#/$defs/a"}, {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 20}})
    large = {"type": "object", "properties": {f"p{at}": {"$ref": "#"} for at in range(count)}}
    yield "itself in every property", {**large, "required": [*large["properties"]]}


def odd() -> Iterator[tuple[str, JsonSchema]]:
    yield "a billion items", around({"type": "array", "minItems": 10**9, "items": TEXT}, {})
    yield "a billion characters", around({"type": "string", "minLength": 10**9}, {})
    yield "a step that is hardly a number", around({"type": "number", "minimum": 1e308, "multipleOf": 1e-308}, {})
    yield "what is required is no name", around({"type": "object", "required": [[1], {"a": 1}]}, {})
    yield "required is a number", around({"type": "object", "properties": {"a": TEXT}, "required": 7}, {})
    yield "properties are a list", {"type": "object", "properties": [1], "required": ["p"]}
    yield "a pattern that goes back and forth", around({"type": "string", "pattern": "^(a+)+b$"}, {})
    pointer = "#" + "/properties/p" * 3000
    yield "a pointer of 3,000 steps", around({"anyOf": [{"$ref": pointer}, TEXT]}, {})


def hostile_schemas() -> Iterator[tuple[str, str]]:
    """Yield schemas with their names."""
    for keyword in KEYWORDS:
        for levels in (20, 30):
            yield f"doubled {levels} times by {keyword}", json.dumps(doubled(levels, keyword))
        yield f"a circle by {keyword}", json.dumps(cyclic(keyword))
        for levels in (60, 150, 10_000):
            yield f"{levels} levels of {keyword}", deep(levels, keyword)
    for count in (300, 20_000):
        for name, schema in wide(count):
            yield f"{count} {name}", json.dumps(schema)
    for name, schema in odd():
        yield name, json.dumps(schema)


def random_schema(random: Random) -> str:
    """Return a schema whose definitions refer to each other at random."""
    names = [f"d{at}" for at in range(random.randint(1, 40))]

    def schema(depth: int) -> Any:
        if random.random() < 0.6 or depth > 4:
            return random.choice([{"$ref": f"#/$defs/{random.choice(names)}"}, {"$ref": "#"}, TEXT, {}, True])
        made = pair(random.choice(KEYWORDS), schema(depth + 1), schema(depth + 1))
        return {**made, **pair(random.choice(KEYWORDS), schema(depth + 1), schema(depth + 1))}

    dialect = {"$schema": "http://json-schema.org/draft-07/schema#"} if random.random() < 0.3 else {}
    return json.dumps({**around(schema(0), {name: schema(0) for name in names}), **dialect})
