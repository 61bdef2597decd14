"""The operation that represents a tool, computed from the tool's definition (C.map-3 to -10, -15 to -17).

`ToolFacts` is what is known about a tool; `declare_tool` returns an `AqlOperation` whose parameters remember the
spelling of the tool. Properties become parameters, nested objects and alternatives become named types, and what
introspection has no member for goes into the description. Which parameters of an UPDATE identify the resource, and
which belong into its `input`, is found by the shape of the schema.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from interlock.aql.protocol.classification import CANONICAL, CategoryVerdict, DangerVerdict, classify, judge_danger
from interlock.aql.protocol.model import (
    JSON_TYPES,
    PERMISSIONS,
    AqlOperation,
    AqlParameter,
    Category,
    Danger,
    Returns,
    TypeDeclaration,
    parameter,
    parameter_names,
    snake,
    type_name,
)
from interlock.wire.schemas.budget import TYPE_STEPS_MAX, Effort, EffortSpent

TYPE_DEPTH_MAX: Final = 6  # deeper objects are just objects
OPTIONS_MAX: Final = 20  # of one anyOf or oneOf
REFERENCES_MAX: Final = 20  # $ref followed in a row
MEMBERS_PER_STEP: Final = 16
DESCRIPTION_CHARS_MAX: Final = 4000

_IDENTIFIERS: Final = frozenset(
    ["id", "name", "path", "uri", "url", "key", "slug", "owner", "repo", "number", "ref", "branch", "source"]
)
_IDENTIFIER_ENDS: Final = ("_id", "_name", "_path", "_key", "_number", "_uri", "_url", "_slug", "_ref")
_SCALARS: Final = frozenset(["string", "integer", "number", "boolean"])
_SECRET_WORDS: Final = frozenset(["password", "passphrase", "secret", "token", "credential", "credentials", "passwd"])
_SECRET_ENDS: Final = ("api_key", "apikey", "private_key", "access_key")
_UNSAID: Final = (
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties"),
)
_LEVEL_WORDS: Final = {level.word: level for level in Danger}

FIELDS_PARAMETER: Final = parameter(
    "fields", "string | array", "minimal, standard, full, or paths such as id or owner.login.", of_gateway=True
)
CONFIRMATION_PARAMETER: Final = parameter(
    "confirmation_token", "string", "The token of CONFIRMATION_REQUIRED, to make the same call again.", of_gateway=True
)


class OperationRule(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for the operation of a tool (`[[tool]] aql = {...}`). They override what is inferred."""

    name: str | None = None
    category: Literal["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"] | None = None
    family: str | None = None
    identifiers: tuple[str, ...] | None = None  # of an UPDATE, as parameters are named here
    merge: Literal["upstream"] | None = None  # the tool merges nested objects itself
    danger: Literal["safe", "reversible", "destructive", "dangerous", "forbidden"] | None = None
    allow_nul: bool = False


NO_RULE: Final = OperationRule()


class ToolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a tool from which its AQL operation is computed."""

    name: str  # of the operation
    local: str  # of the tool
    description: str
    schema: Mapping[str, Any]  # its inputSchema, decoded
    output: Mapping[str, Any] | None = None  # its outputSchema
    is_read_only: bool
    is_destructive: bool | None = None  # its own destructiveHint
    is_irreversible: bool = False  # declared so
    shows_destructive: bool | None = None  # in the list of tools, after what the operator says
    rule: OperationRule = NO_RULE
    has_fields: bool = True  # the node selects fields
    is_confirmed: bool = True  # the node asks for confirmation tokens


# The category and the danger of an operation, which lists need. Computing them rarely requires the complete schema.
Classification = tuple[CategoryVerdict, DangerVerdict]


def classify_tool(facts: ToolFacts) -> Classification:
    """Return category and danger of a tool. An UPDATE whose schema does not fit an update becomes EXECUTE (C.map-8)."""
    rule = facts.rule
    classified = classify(facts.local, is_read_only=facts.is_read_only, is_destructive=facts.is_destructive)
    if rule.category is not None:
        classified = CategoryVerdict(Category[rule.category], "operator")
    if classified.category is Category.UPDATE:
        why = _unlike_an_update(facts)
        if why is not None:
            classified = CategoryVerdict(Category.EXECUTE, "shape", f"Classified EXECUTE because {why}.")
    return classified, danger_of(facts.local, classified.category, facts)


def danger_of(name: str, category: Category, facts: ToolFacts) -> DangerVerdict:
    """Return the danger of an operation, from its name, its category and the facts about its tool.

    `name` is a parameter, because an operation of an AQL server and the endpoint tool that it is called through have
    different names.
    """
    declared = _LEVEL_WORDS[facts.rule.danger] if facts.rule.danger is not None else None
    return judge_danger(
        name, category, declared=declared, is_read_only=facts.is_read_only, is_irreversible=facts.is_irreversible
    )


def declare_tool(facts: ToolFacts, classification: Classification | None = None) -> AqlOperation:
    """Return the AQL operation through which a tool is offered."""
    classified, danger = classification or classify_tool(facts)
    category = classified.category
    builder = _TypeNames(facts.name, facts.schema)
    # Find the parameters of a tool: its properties, required ones without a property, and `arguments` if it is open.
    schema = facts.schema
    properties = _properties(schema)
    names = parameter_names(list(properties))
    required = _required(schema)
    parameters = [
        builder.parameter(name, original, properties[original], is_required=original in required, rule=facts.rule)
        for name, original in zip(names, properties, strict=True)
    ]
    undeclared = sorted(required.difference(properties))
    for original, name in zip(undeclared, parameter_names(undeclared), strict=True):
        if name not in names:
            parameters.append(builder.parameter(name, original, True, is_required=True, rule=facts.rule))
    if is_open(schema) and "arguments" not in names:
        description = "Further members, sent beside the other parameters." if properties else "The members to send."
        more = {"schema": {"type": "object"}, "allow_nul": facts.rule.allow_nul}
        parameters.append(parameter("arguments", "object", description, **more))
    if category is Category.UPDATE:
        parameters = _with_input(facts, parameters, builder)
    taken = {parameter.name for parameter in parameters}
    may_confirm = facts.is_confirmed and danger.level >= Danger.DESTRUCTIVE
    if category is Category.READ and facts.has_fields and FIELDS_PARAMETER.name not in taken:
        parameters.append(FIELDS_PARAMETER)
    if may_confirm and CONFIRMATION_PARAMETER.name not in taken:
        parameters.append(CONFIRMATION_PARAMETER)
    return AqlOperation(
        name=facts.name,
        category=category,
        description=_description(facts, classified, danger if may_confirm else None),
        parameters=tuple(parameters),
        returns=_returns(facts),
        danger=danger.level,
        danger_reasons=danger.reasons,
        family=facts.rule.family,
        types=tuple(builder.found.values()),
        arguments_schema=facts.schema,
    )


def _description(facts: ToolFacts, classified: CategoryVerdict, danger: DangerVerdict | None) -> str:
    """Return the tool's description, with notes for clients about its category.

    `danger` is set, and described too, only if calls must be confirmed.
    """
    text = facts.description.strip()[:DESCRIPTION_CHARS_MAX] or f"Calls {facts.local}."
    sentences = []
    verb = snake(facts.local).strip("_").split("_")[0]
    canonical = CANONICAL[classified.category]
    if verb not in (canonical, "list") and classified.category is not Category.EXECUTE:
        sentences.append(f"Similar to {canonical}.")
    if danger is not None:
        why = f" ({'; '.join(danger.reasons)})" if danger.reasons else ""
        sentences.append(f"Danger: {danger.level.word}{why}; confirmation is needed.")
    # AQL-X-21: the permissions are those of the category, so the difference is said in words
    if facts.shows_destructive is not None:
        shown = PERMISSIONS[classified.category].destructive
        if shown and not facts.shows_destructive and classified.category is not Category.DELETE:
            sentences.append("On the flat list it is not destructive.")
        elif facts.shows_destructive and not shown:
            sentences.append("On the flat list it is destructive.")
    if classified.reason:
        sentences.append(classified.reason)
    return "\n".join((text, " ".join(sentences))) if sentences else text


def _returns(facts: ToolFacts) -> Returns:
    description = "The tool's result; what is no JSON: ContentReference."
    output = facts.output or {}
    kind = output.get("type")
    if kind == "array":
        items = output.get("items")
        item = items.get("type") if isinstance(items, Mapping) else None
        item = item if isinstance(item, str) and item in JSON_TYPES else "any"
        return Returns("array", "scalar", f"Items: {item}. {description}")
    return Returns("object", "object", description) if kind == "object" else Returns("any", "scalar", description)


# Parameters


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    required = schema.get("required")
    return frozenset(each for each in required if isinstance(each, str)) if isinstance(required, list) else frozenset()


def is_open(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema allows undeclared members.

    A schema that declares properties and does not mention additional members does not allow them.
    """
    more = schema.get("additionalProperties")
    if more is True or isinstance(more, Mapping) or schema.get("patternProperties"):
        return True
    return more is None and "properties" not in schema


# The shape of an UPDATE (4.5, C.map-8, C.map-9)


def _declares_input(facts: ToolFacts) -> bool:
    """Return whether the tool itself declares a parameter `input` that is an object."""
    own = _properties(facts.schema).get("input")
    return isinstance(own, Mapping) and own.get("type") == "object"


def _identifiers(facts: ToolFacts) -> list[str]:
    """Return the original names of the parameters that identify the resource to update."""
    properties, required = _properties(facts.schema), _required(facts.schema)
    names = dict(zip(parameter_names(list(properties)), properties, strict=True))
    if facts.rule.identifiers is not None:
        return [original for name, original in names.items() if name in facts.rule.identifiers]
    if _declares_input(facts):
        return [original for original in properties if original != "input"]
    return [
        original
        for name, original in names.items()
        if original in required
        and (name in _IDENTIFIERS or name.endswith(_IDENTIFIER_ENDS))
        and _type_words(properties[original]) <= _SCALARS
    ]


def _unlike_an_update(facts: ToolFacts) -> str | None:
    """Return why the operation of a tool cannot be an UPDATE, as the end of a sentence. Return None if it can
    (C.map-8).
    """
    properties = _properties(facts.schema)
    identifiers = _identifiers(facts)
    fields = [name for name in properties if name not in identifiers]
    if not identifiers:
        return "it names no resource to change; an operator can name the parameters with aql = { identifiers = [...] }"
    if not fields:
        return "it has no field to change"
    if facts.rule.merge == "upstream":
        return None
    if _declares_input(facts):
        inner = _properties(properties["input"])
        nested = [name for name, schema in inner.items() if _is_nested(schema)] or ([] if inner else ["input"])
    else:
        nested = [name for name in fields if _is_nested(properties[name])]
    if nested:
        # AQL-C.map-8
        unknown = f"whether nested objects such as '{snake(nested[0])}' are merged is not known"
        return f'{unknown}; an operator who knows that they are can write aql = {{ merge = "upstream" }} for this tool'
    return None


def _is_nested(schema: Any) -> bool:
    """Return whether a schema allows objects. The update of such a field has to merge objects at every level (4.5.1),
    which a tool may not do.
    """
    words = _type_words(schema)
    return not words or "object" in words


def _type_words(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows, except null. The set is empty if the schema does not restrict the
    type.
    """
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {each for each in kind if isinstance(each, str) and each != "null"}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            every = [_type_words(each) for each in schema[key] if each != {"type": "null"}]
            return set().union(*every) if all(every) else set()
    if isinstance(schema.get("enum"), list):
        return {json_type(each) for each in schema["enum"]}
    return set()


def _with_input(facts: ToolFacts, parameters: Sequence[AqlParameter], builder: "_TypeNames") -> list[AqlParameter]:
    """Return the parameters of an UPDATE: the identifiers, and `input` with all other fields as members (C.map-9).

    If the tool itself declares an object `input`, return the parameters unchanged.
    """
    if _declares_input(facts):
        return list(parameters)
    identifiers = frozenset(_identifiers(facts))
    sent = [parameter for parameter in parameters if not parameter.of_gateway]
    beside = [parameter for parameter in sent if parameter.sent_as in identifiers]
    fields = [parameter for parameter in sent if parameter.sent_as not in identifiers]
    name = type_name(facts.name, "input")
    builder.found[name] = TypeDeclaration(name=name, kind="object", fields=tuple(fields))
    description = "The fields to send. What becomes of fields that are left out is up to the tool."
    nul = facts.rule.allow_nul
    return [*beside, parameter("input", name, description, required=True, schema={"type": "object"}, allow_nul=nul)]


# Types


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


class _TypeNames:
    """The named types for the parameters of one operation. Types are added while the parameters are read.

    References and alternatives may lead to one schema again and again, so the work is limited (`TYPE_STEPS_MAX`). A
    parameter whose type would need more is an `object`.
    """

    def __init__(self, operation: str, schema: Mapping[str, Any]) -> None:
        self._operation = operation
        self._root = schema
        self._effort = Effort(TYPE_STEPS_MAX)
        self.found: dict[str, TypeDeclaration] = {}

    def parameter(
        self,
        name: str,
        original: str,
        schema: Any,
        *,
        is_required: bool,
        rule: OperationRule,
        path: tuple[str, ...] = (),
    ) -> AqlParameter:
        """Return the AQL parameter for a property of a tool's schema.

        Properties of its schema that introspection cannot express are described in the description.
        """
        before, notes = dict(self.found) if not path else self.found, []
        try:
            plain = self._resolve(schema)
            notes = [f"{key}: {plain[key]}" for key in _UNSAID if key in plain and not isinstance(plain[key], Mapping)]
            kind = self._type(plain, (*path, name), notes)
            items = plain.get("items")
            if isinstance(items, Mapping):
                items = self._resolve(items)
                item_kind = self._type(items, (*path, name, "item"), [])
                is_named = any(word not in JSON_TYPES for word in item_kind.split(" | "))
                items = {"type": item_kind} if is_named else dict(items)
        except EffortSpent:
            if path:
                raise
            self.found = before
            plain, kind, items, notes = {"description": schema.get("description")}, "object", None, []
        if "null" in kind.split(" | "):
            notes.append("null is passed on as null")
        text = (text_in(plain, "description") or "").strip()
        if notes:
            text = f"{text} ({'; '.join(notes)})" if text else "; ".join(notes)
        enum = plain.get("enum")
        words = snake(name).split("_")
        return AqlParameter(
            name=name,
            type=kind,
            required=is_required,
            description=text[:DESCRIPTION_CHARS_MAX],
            default=plain.get("default", msgspec.UNSET),
            enum=tuple(enum) if isinstance(enum, list) else (),
            minimum=number_in(plain, "minimum"),
            maximum=number_in(plain, "maximum"),
            min_length=integer_in(plain, "minLength"),
            max_length=integer_in(plain, "maxLength"),
            pattern=text_in(plain, "pattern"),
            format=text_in(plain, "format"),
            items=items if isinstance(items, Mapping) else None,
            sensitive=(
                plain.get("writeOnly") is True
                or plain.get("format") == "password"
                or not _SECRET_WORDS.isdisjoint(words)
                or snake(name).endswith(_SECRET_ENDS)
            ),
            allow_nul=rule.allow_nul,
            original=None if name == original else original,
        )

    def _resolve(self, schema: Any) -> Mapping[str, Any]:
        """Return the schema with its local $ref resolved. Members beside the $ref override the members that it refers
        to.
        """
        beside: dict[str, Any] = {}
        for _ in range(REFERENCES_MAX):
            if not isinstance(schema, Mapping):
                break
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return {**schema, **beside}
            self._spend_on(schema)
            beside = {**{key: value for key, value in schema.items() if key != "$ref"}, **beside}
            # Look up the value that the `$ref` refers to, a JSON Pointer within the same document (RFC 6901).
            schema = self._root if reference.startswith("#/") else {}
            for step in reference[2:].split("/") if schema else ():
                key = step.replace("~1", "/").replace("~0", "~")
                schema = schema.get(key) if isinstance(schema, Mapping) else None
        return beside

    def _type(self, schema: Mapping[str, Any], path: tuple[str, ...], notes: list[str]) -> str:
        """Return the type of a schema in the notation of introspection, and declare the named types that it needs."""
        words: list[str]
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list) and "type" not in schema:
                if len(path) > 2 * TYPE_DEPTH_MAX:
                    return "object"
                words = []
                for number, option in enumerate(options[:OPTIONS_MAX]):
                    self._spend_on(option)
                    inner = self._type(self._resolve(option), (*path, f"option{number + 1}"), notes)
                    words += [word for word in inner.split(" | ") if word not in words]
                if len(words) > 2 and any(word not in JSON_TYPES for word in words):
                    name = type_name(self._operation, *path)
                    self.found[name] = TypeDeclaration(name=name, kind="union", members=tuple(words))
                    return name
                return " | ".join(words) or "any"
        kind = schema.get("type")
        if isinstance(kind, list):
            words = [each for each in kind if isinstance(each, str) and each in JSON_TYPES]
            if "object" in words and _properties(schema):
                words[words.index("object")] = self._object(schema, path)
            return " | ".join(words) or "any"
        if kind == "object" or (kind is None and _properties(schema)):
            return self._object(schema, path) if _properties(schema) else "object"
        if isinstance(kind, str) and kind in JSON_TYPES:
            return kind
        enum = schema.get("enum")
        if isinstance(enum, list) and enum:
            self._spend_on(schema)
            return " | ".join(dict.fromkeys(json_type(each) for each in enum))
        if "const" in schema:
            return json_type(schema["const"])
        return "any"

    def _object(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> str:
        """Declare a named type for an object, and return its name. Objects that are nested too deeply get no named
        type.
        """
        if len(path) > TYPE_DEPTH_MAX:
            return "object"
        name = type_name(self._operation, *path)
        if name not in self.found:
            self.found[name] = TypeDeclaration(name=name, kind="object")  # before its fields, which may lead back here
            self._spend_on(schema)
            self._effort.spend(len(_properties(schema)))
            required = _required(schema)
            fields = tuple(
                self.parameter(each, each, inner, is_required=each in required, rule=NO_RULE, path=path)
                for each, inner in _properties(schema).items()
            )
            text = text_in(schema, "description") or ""
            self.found[name] = TypeDeclaration(name=name, kind="object", fields=fields, description=text)
        return name

    def _spend_on(self, schema: Any) -> None:
        """Count the effort of reading one schema. Long lists in the schema count more."""
        if isinstance(schema, Mapping):
            listed = sum(len(each) for each in schema.values() if isinstance(each, list | Mapping))
            self._effort.spend(1 + (len(schema) + listed) // MEMBERS_PER_STEP)


# The members of a schema that somebody else wrote: None if they are absent or of another type.


def number_in(schema: Mapping[str, Any], member: str) -> float | None:
    value = schema.get(member)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def integer_in(schema: Mapping[str, Any], member: str) -> int | None:
    value = schema.get(member)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text_in(schema: Mapping[str, Any], member: str) -> str | None:
    value = schema.get(member)
    return value if isinstance(value, str) else None
