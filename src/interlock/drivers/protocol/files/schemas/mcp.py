"""AIP-32: what a driver of kind mcp adds. PUBLISHED gives the verdicts of the published MCP.schema.json; SCHEMA is what
this node runs: the published one with kind pypi, our extension keys and the rule that every binding names its tool.

Both leave `server` open where the published one does. Which server a transport fits, and everything that one value
cannot say about itself, is checked in `driver`.
"""

from typing import Any, Final

from interlock.drivers.protocol.files.schemas.universal import STRING_MAP, STRINGS, closed_object

SERVER_KEYS: Final[dict[str, tuple[str, ...]]] = {  # the first is required
    "binary": ("path", "args", "env", "cwd"),  # AIP-server-1
    "npm": ("package", "version", "entry", "args", "env", "cwd"),
    "pypi": ("package", "version", "entry", "runner", "args", "env", "cwd"),
    "docker": ("image", "port", "path", "volumes", "args", "env", "cwd"),
    "remote": ("url", "headers", "query", "auth"),
}
PUBLISHED_SERVER_KEYS: Final = frozenset({"kind", "path", "package", "image", "url", "args", "env"})

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


def _server(kinds: dict[str, str], of_a_kind: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One shape, chosen by kind, so that a fault is said of that shape alone (AIP-server-9)."""
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(kinds)}},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"required": [needed], "properties": {needed: _TEXT} | of_a_kind.get(kind, {})},
            }
            for kind, needed in kinds.items()
        ],
    }


_SPAWNED: dict[str, Any] = {"args": STRINGS, "env": STRING_MAP}
_EXTENDED = {
    **_SPAWNED,
    "cwd": _TEXT,
    "version": _TEXT,
    "entry": _TEXT,
    "runner": {"enum": ["auto", "uvx", "pipx", "venv"]},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "path": _TEXT,
    "volumes": STRINGS,
}
_REMOTE = {
    "headers": STRING_MAP,
    "query": STRING_MAP,
    "auth": {
        **closed_object(
            ["type"],
            type={"enum": ["none", "bearer", "header", "oauth", "mtls"]},
            secret=_TEXT,
            header=_TEXT,
            scopes=STRINGS,
            client_id=_TEXT,
        ),
        "allOf": [
            {
                "if": {"properties": {"type": {"enum": ["bearer", "header"]}}, "required": ["type"]},
                "then": {"required": ["secret"]},
            },
            {
                "if": {"properties": {"type": {"const": "header"}}, "required": ["type"]},
                "then": {"required": ["header"]},
            },
        ],
    },
}
_NEEDED = {kind: keys[0] for kind, keys in SERVER_KEYS.items()}

PUBLISHED: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["kind", "server", "transport"],
    "properties": {
        **_SHARED,
        "server": _server(
            {kind: needed for kind, needed in _NEEDED.items() if kind != "pypi"},
            {"binary": _SPAWNED, "npm": _SPAWNED, "docker": _SPAWNED},
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
        "server": _server(
            _NEEDED,
            {"binary": _EXTENDED, "npm": _EXTENDED, "pypi": _EXTENDED, "docker": _EXTENDED, "remote": _REMOTE},
        ),
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
    *(f"server.{key}" for key in ("version", "cwd", "entry", "runner", "headers", "query", "auth", "port", "volumes")),
    *(f"implements[].metadata.interlock.{key}" for key in BINDING_EXTENSIONS["properties"]),
)
