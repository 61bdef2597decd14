"""JSON Schemas (2020-12) of DRIVER.md, TOOL.md and SECRETS.md, and the check of a file against them.

Four specifications describe the files: AIP-30 describes every driver, AIP-32 adds the fields of a driver of kind mcp,
AIP-14 describes the contract of a tool, and AIP-19 an inventory of secrets. The schemas here accept the same files as
the published ones. There are two for AIP-32: `MCP_SCHEMA_PUBLISHED` is the published one. `MCP_SCHEMA` is the one that
this node uses; it adds kind pypi, Interlock's extensions and the rule that every binding names its tool.

The validator's own messages contain the value that failed, which may be a secret. `check_schema` therefore writes its
messages from the schema alone. Nothing is ever fetched: a reference to another document is an error.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.frontmatter import Frontmatter
from interlock.drivers.protocol.kinds import (
    PUBLISHED_KEYS,
    SERVERS,
    STRING_MAP,
    STRINGS,
    TEXT,
    LocalServer,
    ServerBlock,
    closed_object,
)
from interlock.drivers.protocol.problems import SCHEMA_INVALID, FileProblem
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.validators import is_bounded

# AIP-30: the fields every driver has, whatever its kind.

SEMVER: Final = r"^[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z_.-]+)?$"
KINDS: Final = ["cli", "http", "mcp", "sdk", "builtin"]  # AIP-30.front-2
TAGS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9-]{0,63}$"},
    "uniqueItems": True,
}
DRIVER_ID: Final = r"^[a-z0-9][a-z0-9.-]{1,79}$"


_BOOLEAN = {"type": "boolean"}
_INTEGER = {"type": "integer"}
_AT_LEAST_0 = {"type": "integer", "minimum": 0}
_MILLISECONDS = {"type": "integer", "minimum": 100}
_DURATION = {"type": "string", "pattern": r"^PT?[^\s]+$"}
_PROBE = closed_object(
    ["method", "url"],
    method={"enum": ["GET", "POST", "HEAD"]},
    url=TEXT,
    expect_status={"type": "integer", "minimum": 100, "maximum": 599},
)
_COST = closed_object(
    [],
    cost_class={"enum": ["trivial", "metered", "expensive"]},
    cost_units_per_call={"type": "number", "minimum": 0},
    currency={"type": "string", "pattern": "^[A-Z]{3}$"},
)
_RETRY = closed_object(
    ["max_attempts"],
    max_attempts={"type": "integer", "minimum": 1, "maximum": 10},
    backoff={"enum": ["fixed", "exponential"]},
    initial_ms=_AT_LEAST_0,
)
_AUTH = closed_object(
    [],
    ref=TEXT,
    state=closed_object([], paths=STRINGS, env=STRINGS),
    login=closed_object(
        [],
        cmd=TEXT,
        url=TEXT,
        interactive=_BOOLEAN,
        requires_callback_url=_BOOLEAN,
        completes_when=closed_object([], cmd=TEXT, exit_code=_INTEGER, http=_PROBE),
    ),
    refresh=closed_object([], cmd=TEXT, url=TEXT, every=_DURATION),
    expiry=closed_object([], detect=TEXT),
)
_IMPLEMENTS = closed_object(  # AIP-30.implements-1
    ["tool", "version"],
    tool=TEXT,
    version=TEXT,
    schema_narrowing=closed_object([], drop_inputs=STRINGS, drop_outputs=STRINGS),
    mapping={
        "type": "object",
        "additionalProperties": {
            "type": ["string", "object"],
            "required": ["from"],
            "properties": {"from": TEXT, "transform": TEXT},
            "additionalProperties": False,
        },
    },
    cost_override=_COST,
    timeout_override_ms=_MILLISECONDS,
    retry_override=_RETRY,
    metadata={"type": "object"},
)

DRIVER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name", "id", "description", "version", "kind", "implements"],  # AIP-30.front-1
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 80},  # AIP-30.front-1
        "id": {"type": "string", "pattern": DRIVER_ID},
        "description": {"type": "string", "minLength": 1, "maxLength": 2000},  # AIP-30.front-1
        "version": {"type": "string", "pattern": SEMVER},
        "kind": {"enum": KINDS},  # AIP-front-1
        "implements": {"type": "array", "minItems": 1, "items": _IMPLEMENTS},  # AIP-30.front-1
        "install": {"type": "array", "items": {"type": "object"}},
        "version_check": closed_object(
            ["cmd", "parse", "range"], cmd=TEXT, parse=TEXT, range=TEXT, timeout_ms=_MILLISECONDS
        ),
        "auth": _AUTH,
        "network": closed_object([], egress=STRINGS, ingress=STRINGS),
        "runner": {"type": ["string", "object"]},
        "region": STRINGS,
        "policy_tags": TAGS,
        "cost_override": _COST,
        "timeout_override_ms": _MILLISECONDS,
        "retry_override": _RETRY,
        "health_check": closed_object(
            ["method"],
            method={"enum": ["ping", "exec", "http", "noop"]},
            cmd=TEXT,
            http=_PROBE,
            expect_exit=_INTEGER,
            every=_DURATION,
            timeout_ms=_MILLISECONDS,
        ),
        "requires": closed_object(
            [],
            os={"type": "array", "items": {"enum": ["darwin", "linux", "windows"]}},
            arch={"type": "array", "items": {"enum": ["x64", "arm64", "x86", "arm"]}},
            min_disk_mb=_AT_LEAST_0,
            min_memory_mb=_AT_LEAST_0,
        ),
        "examples": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["goal"],
                "properties": {"goal": TEXT, "note": TEXT, "cmd": TEXT},
            },
        },
        "tags": TAGS,
        "metadata": {"type": "object"},
    },
}


# AIP-32: what a driver of kind mcp adds. Both schemas leave `server` open where the published one does. Which transport
# fits which server, and everything else that one value cannot say about itself, is checked in `driver`.

_PROMPT = closed_object(  # AIP-front-5
    ["name", "integrate_as"],
    name=TEXT,
    description=TEXT,
    integrate_as={"enum": ["skill_block", "raw"]},
    skill_ref=TEXT,
)
_RESOURCE = closed_object(  # AIP-front-6
    ["uri_template", "integrate_as"],
    uri_template=TEXT,
    description=TEXT,
    integrate_as={"enum": ["ref_kind", "raw"]},
    ref_kind_id={"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
)
# AIP-front-8
_PER_TOOL = closed_object(["tool_name"], tool_name=TEXT, argument_mapping=STRING_MAP, result_extract=TEXT)
_SHARED: dict[str, Any] = {
    "kind": {"const": "mcp"},  # AIP-front-1
    "transport": {"enum": ["stdio", "sse", "http"]},  # AIP-front-3
    "protocol_version": TEXT,
    "prompts": {"type": "array", "items": _PROMPT},
    "resources": {"type": "array", "items": _RESOURCE},
    "connection_options": closed_object(
        [],
        timeout_ms={"type": "integer", "minimum": 100},  # AIP-front-7
        max_retries={"type": "integer", "minimum": 0, "maximum": 10},  # AIP-front-7
        keepalive={"type": "boolean"},  # AIP-front-7
    ),
}


def _server_schema(
    servers: Iterable[type[ServerBlock]], optional: Callable[[type[ServerBlock]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the schema of the server block.

    It selects the schema of the block's kind, so errors concern this kind alone (AIP-server-9).
    """
    servers = tuple(servers)
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": [each.kind for each in servers]}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": each.kind}}, "required": ["kind"]},
                "then": {"required": [each.keys[0]], "properties": {each.keys[0]: TEXT} | optional(each)},
            }
            for each in servers
        ],
    }


def _own_keys(server: type[ServerBlock]) -> dict[str, Any]:
    """Return the schemas of the optional keys of a kind.

    They include the keys of other local kinds: such a key is ignored but must have the right type.
    """
    if not issubclass(server, LocalServer):
        return server.schema
    return {
        key: schema for each in SERVERS.values() if issubclass(each, LocalServer) for key, schema in each.schema.items()
    }


MCP_SCHEMA_PUBLISHED: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["kind", "server", "transport"],
    "properties": {
        **_SHARED,
        "server": _server_schema(
            (each for each in SERVERS.values() if each.is_published),
            lambda server: {"args": STRINGS, "env": STRING_MAP} if issubclass(server, LocalServer) else {},
        ),
        "implements": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "version"],
                "properties": {"metadata": {"type": "object", "properties": {"mcp": _PER_TOOL}}},
            },
        },
    },
}

DRIVER_EXTENSIONS: Final[dict[str, Any]] = closed_object(
    [],
    idle_timeout_ms={"type": "integer", "minimum": 1000},
    isolation={"enum": ["driver", "tenant", "user"]},
    max_processes={"type": "integer", "minimum": 1, "maximum": 1000},
    client_capabilities={
        "type": "array",
        "items": {"enum": ["roots", "sampling", "elicitation"]},
        "uniqueItems": True,
    },
    protocol_versions={**STRINGS, "minItems": 1, "uniqueItems": True},
    expose={"enum": ["bound", "all"]},
    not_secret=STRINGS,
    redact_results={"type": "boolean"},
)
BINDING_EXTENSIONS: Final[dict[str, Any]] = closed_object(
    [],
    result_parse=closed_object(
        [],
        **{
            "from": {"enum": ["auto", "structured", "text", "content", "result"]},
            "as": {"enum": ["text", "json", "python_literal", "lines", "records"]},
            "pattern": TEXT,
            "into": TEXT,
        },
    ),
    result_wrap=TEXT,
    text_fallback={"type": "boolean"},
    argument_defaults={"type": "object"},
    context_arguments=STRING_MAP,
)
SANDBOX: Final[dict[str, Any]] = closed_object(  # AIP-29
    [],
    network=closed_object([], egress=STRINGS, ingress=STRINGS),
    fs=closed_object([], read=STRINGS, write=STRINGS, deny=STRINGS),
    exec=closed_object([], allow={"type": "boolean"}, spawn=STRINGS),
    env=closed_object([], **{"pass": STRINGS, "set": STRING_MAP}),
    tty=closed_object([], required={"type": "boolean"}),
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
            "method": TEXT,
            "package": TEXT,
            "url": TEXT,
            "path": TEXT,
            "extract_bin": TEXT,
            "global": {"type": "boolean"},
            "user": {"type": "boolean"},
            "experimental": {"type": "boolean"},
            "verify_sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
            # Ours, of pip: what a package needs and does not say, like mcp<2 for a server of the SDK's first line.
            "with": {"type": "array", "items": {"type": "string", "pattern": REQUIREMENT}},
        },
    },
}

MCP_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["kind", "server", "transport"],  # AIP-front-1 to -3
    "properties": {
        **_SHARED,
        "server": _server_schema(SERVERS.values(), _own_keys),
        "implements": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["metadata"],  # AIP-front-9
                "properties": {
                    "metadata": {
                        "type": "object",
                        "required": ["mcp"],  # AIP-front-9
                        "properties": {"mcp": _PER_TOOL, "interlock": BINDING_EXTENSIONS},
                    }
                },
            },
        },
        "metadata": {"type": "object", "properties": {"interlock": DRIVER_EXTENSIONS}},
        "sandbox": SANDBOX,
        "install": _INSTALL,
    },
}

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

_SOME_KINDS = {"type": "array", "items": {"enum": KINDS}, "uniqueItems": True}

_CONTRACT_EXTENSIONS: Final[dict[str, Any]] = closed_object([], name=TEXT, context_schema={"type": "object"})

CONTRACT_SCHEMA: Final[dict[str, Any]] = closed_object(
    ["name", "id", "description", "version", "inputs", "outputs"],  # AIP-14.front-1
    name={"type": "string", "minLength": 1, "maxLength": 80},
    id={"type": "string", "minLength": 2, "maxLength": 80, "pattern": r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"},
    description={"type": "string", "minLength": 1, "maxLength": 2000},
    version={"type": "string", "pattern": SEMVER},
    inputs={"type": "object"},
    outputs={"type": "object"},
    idempotent={"type": "boolean"},
    mutates={"type": "array", "items": {"type": "string", "pattern": r"^[a-z]+:[^\s]+$"}},
    requires=closed_object([], network=STRINGS, secrets=STRINGS, tools=STRINGS),
    approval={"type": "string", "pattern": r"^(?:auto|always|on-mutate|policy:[A-Za-z0-9_./-]+)$"},
    risk_level={"type": "integer", "minimum": 0, "maximum": 3},
    cost_class={"enum": ["trivial", "metered", "expensive"]},
    timeout_ms={"type": "integer", "minimum": 1},
    retry=closed_object(
        ["max_attempts", "backoff"],
        max_attempts={"type": "integer", "minimum": 1, "maximum": 20},
        backoff={"enum": ["fixed", "exponential"]},
        initial_ms={"type": "integer", "minimum": 0},
    ),
    default_implementation={"type": ["string", "null"], "pattern": DRIVER_ID},
    driver_constraints=closed_object([], forbid=_SOME_KINDS, require_kind=_SOME_KINDS),
    tags={"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"}, "uniqueItems": True},
    examples={
        "type": "array",
        "items": closed_object(["name", "input"], name=TEXT, input=True, output=True, note=TEXT),
    },
    metadata={"type": "object", "properties": {"interlock": _CONTRACT_EXTENSIONS}},
)


# AIP-19: an inventory (SECRETS.md). Unknown keys are refused; keys that would hold a value are refused before this
# schema is used. An exposure of an unknown kind is ignored, as the specification asks; the three known ones are closed.

_SOME_TEXT = {"type": "string", "minLength": 1}
_ENVIRONMENT_NAME = {"type": "string", "pattern": "^[A-Z_][A-Z0-9_]*$"}
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


def _exposure(kind: str, shape: dict[str, Any]) -> dict[str, Any]:
    return {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": shape}


_EXPOSURE = {
    "type": "object",
    "required": ["kind"],
    "properties": {"kind": {"type": "string"}},
    "allOf": [
        _exposure("env", closed_object(["name", "field"], kind=True, name=_ENVIRONMENT_NAME, field=_SOME_TEXT)),
        _exposure(
            "file",
            closed_object(
                ["path"],
                kind=True,
                path=_SOME_TEXT,
                field=_SOME_TEXT,
                mode={"type": "integer", "minimum": 0, "maximum": 0o777},
            ),
        ),
        _exposure(
            "egress-substitute",
            closed_object(
                ["placeholderName", "allowedByDefault"],
                kind=True,
                placeholderName=_ENVIRONMENT_NAME,
                allowedByDefault={"type": "boolean"},
                intendedProviders=STRINGS,
            ),
        ),
    ],
}
_ENTRY = closed_object(
    ["slug", "name", "description"],
    slug={
        "type": "string",
        "maxLength": 80,  # AIP-19.file-1; the pattern wants two characters
        # AIP-19.file-1
        "pattern": "^([a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]$",
    },
    name={"type": "string", "minLength": 1, "maxLength": 80},
    description={"type": "string", "minLength": 1, "maxLength": 2000},
    kind={"enum": ["opaque", "oauth", "keypair", "json"]},
    backend={"type": "string", "pattern": "^[a-z][a-z0-9-]*://"},
    access=closed_object([], reveal=_GRANTS, bind=_GRANTS, rotate=_GRANTS),
    audit=closed_object(
        [],
        retention={"type": "string", "pattern": "^(P[0-9]+[YMWD]|[0-9]+(y|m|w|d|h))$"},
        pii={"type": "boolean"},
        classification={"type": "array", "items": _SOME_TEXT},
    ),
    tags={"type": "array", "items": {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}},
    metadata={
        "type": "object",
        "properties": {
            "bindings": {
                "type": "object",
                "properties": {
                    "env": {
                        "type": ["string", "array"],
                        "pattern": "^[A-Z][A-Z0-9_]*$",
                        "items": {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"},
                    }
                },
            }
        },
    },
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
    """Check frontmatter against a schema (AIP-30, AIP-32, AIP-14 or AIP-19).

    Return one problem per invalid field, at most PROBLEMS_MAX, in the order of the lines. `published` selects AIP-32
    without Interlock's extensions, which other hosts use.
    """
    problems: dict[str, FileProblem] = {}
    for error in _validator(schema, published).iter_errors(front.data):
        base = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
        for pointer, message, hint in _describe_error(base, error.kind):
            problems.setdefault(pointer, front.places.problem(pointer, SCHEMA_INVALID, message, hint, schema=schema))
        if len(problems) >= PROBLEMS_MAX:
            break
    return tuple(sorted([*problems.values()][:PROBLEMS_MAX], key=lambda each: each.line or 0))


class JsonSchemaFault(msgspec.Struct, frozen=True, kw_only=True):
    """Fault that makes a value an invalid JSON Schema."""

    pointer: str  # in the schema; empty: all of it
    message: str
    hint: str


def fault_in_json_schema(schema: Any) -> JsonSchemaFault | None:
    """Return why a value is not a valid, self-contained JSON Schema of 2020-12 of limited size, or None if it is."""
    import jsonschema_rs

    if not is_bounded(schema):
        message = "it is too large, or refers to itself too often"
        return JsonSchemaFault(pointer="", message=message, hint="make it smaller")
    try:
        jsonschema_rs.Draft202012Validator(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        if error.kind.name == "$ref":
            return JsonSchemaFault(pointer="", message="a $ref leads nowhere, or out of the file", hint=_NOT_FETCHED)
        pointer = "".join(f"/{pointer_step(str(step))}" for step in error.instance_path)
        if error.instance_path and error.instance_path[-1] == "type" and error.kind.name == "anyOf":
            message = "it names a type that 2020-12 does not know"
            return JsonSchemaFault(pointer=pointer, message=message, hint=f"write one of {_TYPES}")
        _, _, hint = _describe_error("", error.kind)[0]
        return JsonSchemaFault(pointer=pointer, message="it is not as JSON Schema 2020-12 has it", hint=hint)
    except (ValueError, jsonschema_rs.ReferencingError):
        return JsonSchemaFault(pointer="", message="it does not compile", hint=_NOT_FETCHED)
    return None


@functools.cache
def _validator(name: str, published: bool) -> Any:
    import jsonschema_rs

    tables = {"AIP-30": DRIVER_SCHEMA, "AIP-14": CONTRACT_SCHEMA, "AIP-19": INVENTORY_SCHEMA}
    schema = (MCP_SCHEMA_PUBLISHED if published else MCP_SCHEMA) if name == "AIP-32" else tables[name]
    return jsonschema_rs.Draft202012Validator(schema, offline=True)


def _describe_error(base: str, kind: Any) -> list[tuple[str, str, str]]:
    """Return a pointer, a message and a hint for each field that one error of the validator concerns."""
    value = kind.value
    match kind.name:
        case "required":
            return [(f"{base}/{pointer_step(value)}", f"{value} is missing", f"add {value}")]
        case "additionalProperties":
            hint = "remove it, or correct its spelling"
            return [(f"{base}/{pointer_step(key)}", f"the key {quoted(key)} is not known here", hint) for key in value]
        case "type":
            wanted = " or ".join(_A_OR_AN.get(each, f"a {each}") for each in kind.types)
            return [(base, f"this is not {wanted}", f"write {wanted}")]
        case "enum":
            return [
                (base, "this is not one of the values known here", f"write one of {', '.join(map(str, kind.options))}")
            ]
        case "const":
            return [(base, "this is not the value expected here", f"write {kind.expected_value}")]
        case "pattern":
            return [(base, "this is not written as it must be", f"it has to match {kind.pattern}")]
        case "minimum":
            return [(base, "this number is too small", f"write at least {kind.limit}")]
        case "maximum":
            return [(base, "this number is too large", f"write at most {kind.limit}")]
        case "minLength" | "minItems" | "minProperties":
            return [(base, "this is empty or too short", f"write at least {kind.limit}")]
        case "maxLength" | "maxItems" | "maxProperties":
            return [(base, "this is too long", f"keep it to {kind.limit}")]
        case "uniqueItems":
            return [(base, "an entry is written twice", "keep one of the two")]
    return [(base, "this is not as the schema has it", "compare it with the documentation of this field")]
