"""AIP-32: what a driver of kind mcp adds. PUBLISHED gives the verdicts of the published MCP.schema.json; SCHEMA is what
this node runs: the published one with kind pypi, our extension keys and the rule that every binding names its tool.

Both leave `server` open where the published one does. Which server a transport fits, and everything that one value
cannot say about itself, is checked in `driver`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from interlock.drivers.protocol.files.schemas.universal import STRING_MAP, STRINGS, closed_object
from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.protocol.kinds.server import PUBLISHED_KEYS, LocalServer, Server

_TEXT = {"type": "string"}
_PROMPT = closed_object(  # AIP-front-5
    ["name", "integrate_as"],
    name=_TEXT,
    description=_TEXT,
    integrate_as={"enum": ["skill_block", "raw"]},
    skill_ref=_TEXT,
)
_RESOURCE = closed_object(  # AIP-front-6
    ["uri_template", "integrate_as"],
    uri_template=_TEXT,
    description=_TEXT,
    integrate_as={"enum": ["ref_kind", "raw"]},
    ref_kind_id={"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
)
# AIP-front-8
_PER_TOOL = closed_object(["tool_name"], tool_name=_TEXT, argument_mapping=STRING_MAP, result_extract=_TEXT)
_SHARED: dict[str, Any] = {
    "kind": {"const": "mcp"},  # AIP-front-1
    "transport": {"enum": ["stdio", "sse", "http"]},  # AIP-front-3
    "protocol_version": _TEXT,
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
    servers: Iterable[type[Server]], optional: Callable[[type[Server]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the schema of the server block: one shape, chosen by kind, so that errors are about that shape alone
    (AIP-server-9)."""
    servers = tuple(servers)
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": [each.kind for each in servers]}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": each.kind}}, "required": ["kind"]},
                "then": {"required": [each.keys[0]], "properties": {each.keys[0]: _TEXT} | optional(each)},
            }
            for each in servers
        ],
    }


def _published_keys(server: type[Server]) -> dict[str, Any]:
    return {"args": STRINGS, "env": STRING_MAP} if issubclass(server, LocalServer) else {}


def _own_keys(server: type[Server]) -> dict[str, Any]:
    """Return the schemas of the optional keys. A key of another local kind, which is ignored, must have its type."""
    if not issubclass(server, LocalServer):
        return server.schema
    return {
        key: schema for each in SERVERS.values() if issubclass(each, LocalServer) for key, schema in each.schema.items()
    }


PUBLISHED: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["kind", "server", "transport"],
    "properties": {
        **_SHARED,
        "server": _server_schema((each for each in SERVERS.values() if each.is_published), _published_keys),
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
            "pattern": _TEXT,
            "into": _TEXT,
        },
    ),
    result_wrap=_TEXT,
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
            "method": _TEXT,
            "package": _TEXT,
            "url": _TEXT,
            "path": _TEXT,
            "extract_bin": _TEXT,
            "global": {"type": "boolean"},
            "user": {"type": "boolean"},
            "experimental": {"type": "boolean"},
            "verify_sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
            # Ours, of pip: what a package needs and does not say, like mcp<2 for a server of the SDK's first line.
            "with": {"type": "array", "items": {"type": "string", "pattern": REQUIREMENT}},
        },
    },
}

SCHEMA: Final[dict[str, Any]] = {
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
