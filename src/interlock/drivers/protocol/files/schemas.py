"""JSON Schemas (2020-12) of DRIVER.md, TOOL.md and SECRETS.md, and the check of a file against them.

Four specifications describe the files: AIP-30 describes every driver, AIP-32 adds the fields of a driver of kind mcp,
AIP-14 describes the contract of a tool, and AIP-19 an inventory of secrets. The schemas here accept the same files as
the published ones. There are two for AIP-32: `MCP_SCHEMA_PUBLISHED` is the published one. `MCP_SCHEMA` is the one that
this node uses; it adds kind pypi, Interlock's extensions and the rule that every binding names its tool.

The validator's own messages contain the value that failed, which may be a secret. `check_schema` therefore writes its
messages from the schema alone. Nothing is ever fetched: a reference to another document is an error.
"""

import functools
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec

from interlock.drivers.protocol import model
from interlock.drivers.protocol.files.frontmatter import Frontmatter
from interlock.drivers.protocol.kinds import PUBLISHED_KEYS, SERVERS, LocalServer
from interlock.drivers.protocol.problems import SCHEMA_INVALID, FileProblem
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.validators import is_bounded

TEXT: Final = {"type": "string"}
_OBJECT: Final = {"type": "object"}
_TYPE_NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(type_: Any) -> Any:
    """Return the JSON Schema for the values of a Python type, as they are written in a file.

    A field that may be None may be missing in the file, but never null.
    """
    origin, parts = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return schema_of(parts[0]) | parts[1].extra_json_schema
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is tuple:
        return {"type": "array", "items": schema_of(parts[0])}
    if origin is Mapping:
        return _OBJECT if parts[1] is Any else {**_OBJECT, "additionalProperties": schema_of(parts[1])}
    if parts:
        alternatives = [schema_of(each) for each in parts if each is not NoneType]
        if len(alternatives) == 1:
            return alternatives[0]
        types = [each["type"] for each in alternatives]
        return {key: value for each in alternatives for key, value in each.items()} | {"type": types}
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return closed_schema(type_)
    return {"type": _TYPE_NAMES[type_]} if type_ in _TYPE_NAMES else True


def properties_of(struct: type[msgspec.Struct], *names: str) -> dict[str, Any]:
    """Return a JSON Schema for each of these fields of a struct, by the name that the field has in a file. Without
    names, return all fields.
    """
    fields = msgspec.structs.fields(struct)
    return {each.encode_name: schema_of(each.type) for each in fields if not names or each.name in names}


def closed_schema(struct: type[msgspec.Struct], *names: str) -> dict[str, Any]:
    """Return the JSON Schema of an object with these fields of a struct and no others. Without names, use all
    fields.
    """
    properties = properties_of(struct, *names)
    required = [each.encode_name for each in msgspec.structs.fields(struct) if each.required]
    return closed_object([name for name in required if name in properties], **properties)


def closed_object(required: list[str], /, **properties: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object that allows only these properties."""
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


# AIP-30: the fields every driver has, whatever its kind.

_IMPLEMENTS = closed_schema(  # AIP-30.implements-1
    model.ToolBinding, "tool", "version", "schema_narrowing", "mapping", "cost", "timeout_ms", "retry", "metadata"
)
DRIVER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name", "id", "description", "version", "kind", "implements"],  # AIP-30.front-1
    "properties": {
        **properties_of(model.Driver, "name", "id", "description", "version"),  # AIP-30.front-1
        "kind": {"enum": [*model.KINDS]},  # AIP-front-1
        "implements": {"type": "array", "minItems": 1, "items": _IMPLEMENTS},  # AIP-30.front-1
        "install": {"type": "array", "items": _OBJECT},
        **properties_of(
            model.Driver,
            *("version_check", "auth", "network", "runner", "region", "policy_tags", "cost", "timeout_ms", "retry"),
            *("health_check", "requires", "examples", "tags", "metadata"),
        ),
    },
}


# AIP-32: what a driver of kind mcp adds. Both schemas leave `server` open where the published one does. Which transport
# fits which server, and everything else that one value cannot say about itself, is checked in `driver`.

# AIP-front-8
_PER_TOOL = closed_schema(model.ToolBinding, "tool_name", "argument_mapping", "result_extract")


def _server_schema(*, published: bool) -> dict[str, Any]:
    """Return the JSON Schema of the server block. With `published`, leave out the extensions of Interlock.

    It selects the schema of the block's kind, so errors concern this kind alone (AIP-server-9). The optional keys of a
    local kind include those of all other local kinds: such a key is ignored but must have the right type.
    """
    servers = [each for each in SERVERS.values() if each.is_published or not published]
    optional: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for each in servers:
        names = ("args", "env") if published else each.keys[1:]
        optional[issubclass(each, LocalServer)] |= properties_of(each, *names)
    rules = []
    for each in servers:
        properties = {each.keys[0]: TEXT} | optional[issubclass(each, LocalServer)]
        is_kind = {"properties": {"kind": {"const": each.kind}}, "required": ["kind"]}
        rules.append({"if": is_kind, "then": {"required": [each.keys[0]], "properties": properties}})
    kinds = {"kind": {"enum": [each.kind for each in servers]}}
    return {"type": "object", "required": ["kind"], "properties": kinds, "allOf": rules}


DRIVER_EXTENSIONS: Final = closed_schema(model.Extensions)
BINDING_EXTENSIONS: Final = closed_schema(
    model.ToolBinding, "result_parse", "result_wrap", "text_fallback", "argument_defaults", "context_arguments"
)
REQUIREMENT: Final = (
    r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:(?:[<>]=?|[=!~]=)[A-Za-z0-9][A-Za-z0-9.!+*_-]*"
    r"(?:,(?:[<>]=?|[=!~]=)[A-Za-z0-9][A-Za-z0-9.!+*_-]*)*)?$"
)
_INSTALL = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["method"],
        "properties": {
            **dict.fromkeys(("method", "package", "url", "path", "extract_bin"), TEXT),
            **{key: {"type": "boolean"} for key in ("global", "user", "experimental")},
            "verify_sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
            # Ours, of pip: what a package needs and does not say, like mcp<2 for a server of the SDK's first line.
            "with": {"type": "array", "items": {"type": "string", "pattern": REQUIREMENT}},
        },
    },
}


def _mcp_schema(*, published: bool) -> dict[str, Any]:
    blocks = {"mcp": _PER_TOOL} if published else {"mcp": _PER_TOOL, "interlock": BINDING_EXTENSIONS}
    # AIP-front-9: here every entry names its tool
    named = {} if published else {"required": ["mcp"]}
    entry = {"properties": {"metadata": {"type": "object", "properties": blocks, **named}}}
    own = {
        "metadata": {"type": "object", "properties": {"interlock": DRIVER_EXTENSIONS}},
        "sandbox": closed_schema(model.SandboxBlock),  # AIP-29
        "install": _INSTALL,
    }
    required = ["tool", "version"] if published else ["metadata"]  # AIP-front-9
    properties: dict[str, Any] = {
        "kind": {"const": "mcp"},  # AIP-front-1
        # AIP-front-3, AIP-front-5, AIP-front-6, AIP-front-7
        **properties_of(model.Driver, "transport", "protocol_version", "prompts", "resources", "connection"),
        "server": _server_schema(published=published),
        "implements": {"type": "array", "items": {"type": "object", "required": required, **entry}},
    }
    # AIP-front-1 to -3
    return {
        "type": "object",
        "required": ["kind", "server", "transport"],
        "properties": properties | ({} if published else own),
    }


MCP_SCHEMA_PUBLISHED: Final = _mcp_schema(published=True)
MCP_SCHEMA: Final = _mcp_schema(published=False)

EXTENSION_KEYS: Final[tuple[str, ...]] = (  # AIP-front-11
    *(f"metadata.interlock.{key}" for key in DRIVER_EXTENSIONS["properties"]),
    "sandbox",
    *(
        f"server.{key}"
        for key in dict.fromkeys(key for each in SERVERS.values() for key in each.keys)
        if key not in PUBLISHED_KEYS
    ),
    *(f"implements[].metadata.interlock.{key}" for key in BINDING_EXTENSIONS["properties"]),
)


# AIP-14: a contract (TOOL.md). Unknown keys are refused. `inputs` and `outputs` are objects here; `read_contract`
# checks that they are JSON Schemas.

_CONTRACT_FIELDS = tuple(
    name for name in model.Contract.__struct_fields__ if name not in {"retry", "listed_as", "context_schema", "places"}
)
_CONTRACT_RETRY = closed_object(
    ["max_attempts", "backoff"],
    **properties_of(model.Retry) | {"max_attempts": {"type": "integer", "minimum": 1, "maximum": 20}},
)
_CONTRACT_EXTENSIONS: Final = closed_object([], name=TEXT, context_schema=_OBJECT)

CONTRACT_SCHEMA: Final = closed_object(
    ["name", "id", "description", "version", "inputs", "outputs"],  # AIP-14.front-1
    **properties_of(model.Contract, *_CONTRACT_FIELDS)
    | {"retry": _CONTRACT_RETRY, "metadata": {"type": "object", "properties": {"interlock": _CONTRACT_EXTENSIONS}}},
)


# AIP-19: an inventory (SECRETS.md). Unknown keys are refused; keys that would hold a value are refused before this
# schema is used. An exposure of an unknown kind is ignored, as the specification asks; the three known ones are closed.

_SOME_TEXT = {"type": "string", "minLength": 1}
_ENVIRONMENT_NAME = {"type": "string", "pattern": "^[A-Z_][A-Z0-9_]*$"}
_FILE_MODE = {"type": "integer", "minimum": 0, "maximum": 0o777}
_GRANTS = {
    "type": "array",
    "items": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {"cap": {"type": "string", "pattern": "^cap://"}},
        "additionalProperties": _SOME_TEXT,  # a kind not known here grants nothing
    },
}


def _exposure(kind: str, required: list[str], /, **properties: Any) -> dict[str, Any]:
    """Return the JSON Schema that applies to an exposure with the given `kind`: an object with these properties and no
    others.
    """
    is_kind = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
    return {"if": is_kind, "then": closed_object(required, kind=True, **properties)}


_EXPOSURE = {
    "type": "object",
    "required": ["kind"],
    "properties": {"kind": {"type": "string"}},
    "allOf": [
        _exposure("env", ["name", "field"], name=_ENVIRONMENT_NAME, field=_SOME_TEXT),
        _exposure("file", ["path"], path=_SOME_TEXT, field=_SOME_TEXT, mode=_FILE_MODE),
        _exposure(
            "egress-substitute",
            ["placeholderName", "allowedByDefault"],
            placeholderName=_ENVIRONMENT_NAME,
            allowedByDefault={"type": "boolean"},
            intendedProviders={"type": "array", "items": TEXT},
        ),
    ],
}
_VARIABLE = "^[A-Z][A-Z0-9_]*$"
_BOUND = {"type": ["string", "array"], "pattern": _VARIABLE, "items": {"type": "string", "pattern": _VARIABLE}}
_ENTRY = closed_object(
    ["slug", "name", "description"],
    # AIP-19.file-1
    **properties_of(model.SecretEntry, "slug", "name", "description", "kind", "backend", "tags"),
    access=closed_object([], reveal=_GRANTS, bind=_GRANTS, rotate=_GRANTS),
    audit=closed_object(
        [],
        retention={"type": "string", "pattern": "^(P[0-9]+[YMWD]|[0-9]+(y|m|w|d|h))$"},
        pii={"type": "boolean"},
        classification={"type": "array", "items": _SOME_TEXT},
    ),
    metadata={"type": "object", "properties": {"bindings": {"type": "object", "properties": {"env": _BOUND}}}},
    exposures={"type": "array", "items": _EXPOSURE},
)

# AIP-19.file-1
INVENTORY_SCHEMA: Final[dict[str, Any]] = closed_object(
    ["secrets"], secrets={"type": "array", "minItems": 1, "items": _ENTRY}
)

PROBLEMS_MAX: Final = 50  # of one schema in one file; more than a person fixes at once

_A_OR_AN: Final = {"integer": "an integer", "object": "a mapping of keys to values", "array": "a list", "null": "null"}
_TYPES: Final = "string, integer, number, boolean, object, array, null"
_NOT_FETCHED: Final = "fix it; nothing is fetched from elsewhere"


def check_schema(front: Frontmatter, schema: str, *, published: bool = False) -> tuple[FileProblem, ...]:
    """Check frontmatter against the schema of a specification: AIP-30, AIP-32, AIP-14 or AIP-19.

    Return one problem per invalid field, at most PROBLEMS_MAX, in the order of the lines. `published` selects AIP-32
    without Interlock's extensions, which other hosts use.
    """
    problems: dict[str, FileProblem] = {}
    for error in _validator(schema, published).iter_errors(front.data):
        base = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
        for pointer, message, hint in _describe_error(base, error.kind):
            problem = front.places.problem(pointer, SCHEMA_INVALID, message, hint)
            problems.setdefault(pointer, msgspec.structs.replace(problem, schema=schema))
        if len(problems) >= PROBLEMS_MAX:
            break
    return tuple(sorted([*problems.values()][:PROBLEMS_MAX], key=lambda each: each.line or 0))


def fault_in_json_schema(schema: Any) -> tuple[str, str, str] | None:
    """Return why a value is not a JSON Schema that a node can use, or None if it is one.

    The fault is a pointer into the schema, a message and a hint.
    """
    import jsonschema_rs

    if not is_bounded(schema):
        return "", "it is too large, or refers to itself too often", "make it smaller"
    try:
        jsonschema_rs.Draft202012Validator(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        if error.kind.name == "$ref":
            return "", "a $ref leads nowhere, or out of the file", _NOT_FETCHED
        pointer = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
        if error.instance_path and error.instance_path[-1] == "type" and error.kind.name == "anyOf":
            return pointer, "it names a type that 2020-12 does not know", f"write one of {_TYPES}"
        return pointer, "it is not as JSON Schema 2020-12 has it", _describe_error("", error.kind)[0][2]
    except (ValueError, jsonschema_rs.ReferencingError):
        return "", "it does not compile", _NOT_FETCHED
    return None


@functools.cache
def _validator(name: str, published: bool) -> Any:
    import jsonschema_rs

    tables = {"AIP-30": DRIVER_SCHEMA, "AIP-14": CONTRACT_SCHEMA, "AIP-19": INVENTORY_SCHEMA}
    schema = (MCP_SCHEMA_PUBLISHED if published else MCP_SCHEMA) if name == "AIP-32" else tables[name]
    return jsonschema_rs.Draft202012Validator(schema, offline=True)


_EXPLANATIONS: Final = {
    "const": ("this is not the value expected here", "write {0.expected_value}"),
    "pattern": ("this is not written as it must be", "it has to match {0.pattern}"),
    "minimum": ("this number is too small", "write at least {0.limit}"),
    "maximum": ("this number is too large", "write at most {0.limit}"),
    **dict.fromkeys(
        ("minLength", "minItems", "minProperties"), ("this is empty or too short", "write at least {0.limit}")
    ),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), ("this is too long", "keep it to {0.limit}")),
    "uniqueItems": ("an entry is written twice", "keep one of the two"),
}


def _describe_error(base: str, kind: Any) -> list[tuple[str, str, str]]:
    """Convert one error of the schema validator to problems: the place, a message and a hint of each."""
    match kind.name:
        case "required":
            return [(f"{base}/{pointer_step(kind.value)}", f"{kind.value} is missing", f"add {kind.value}")]
        case "additionalProperties":
            keys, hint = kind.value, "remove it, or correct its spelling"
            return [(f"{base}/{pointer_step(key)}", f"the key {quoted(key)} is not known here", hint) for key in keys]
        case "type":
            wanted = " or ".join(_A_OR_AN.get(each, f"a {each}") for each in kind.types)
            return [(base, f"this is not {wanted}", f"write {wanted}")]
        case "enum":
            hint = f"write one of {', '.join(map(str, kind.options))}"
            return [(base, "this is not one of the values known here", hint)]
    otherwise = "this is not as the schema has it", "compare it with the documentation of this field"
    message, hint = _EXPLANATIONS.get(kind.name, otherwise)
    return [(base, message, hint.format(kind))]
