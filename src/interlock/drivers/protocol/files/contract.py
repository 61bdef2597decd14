"""TOOL.md: turns the bytes of the file into a Contract, or into the problems of the file (AIP-14).

The frontmatter is first checked against the schema of AIP-14. Then `inputs` and `outputs` are checked to be JSON
Schemas, and the remaining fields are converted to a `Contract`. Published contracts refer to the reference type of
AIP-27 by its address. Nothing is fetched: the definition in `REFERENCE` is added to the schema instead. A reference is
a string KIND:BODY or an object with `kind`. Unknown kinds, and paths that leave the workspace, are refused.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.ax.protocol.names import is_qualified
from interlock.drivers.protocol.files.frontmatter import Frontmatter, read_frontmatter
from interlock.drivers.protocol.files.schemas import check_schema, fault_in_json_schema
from interlock.drivers.protocol.model import Contract
from interlock.drivers.protocol.problems import FileFindings, FileProblem, ParsedFile
from interlock.wire.jsontext.canonical import pointer_step, quoted
from interlock.wire.schemas.validators import rewritten

REFERENCE_URI: Final = "https://agentproto.sh/docs/aip-27/REF.schema.json"

_TEXT: Final = {"type": "string", "minLength": 1}
_SHA256: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_INSIDE: Final = {"type": "string", "minLength": 1, "not": {"pattern": r"^/|\\|(^|/)\.\.(/|$)"}}
# By kind: the members that an object must have, and those that it may have.
_KINDS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "local": ({"path": _INSIDE}, {"sha256": _SHA256}),
    "url": ({"href": {"type": "string", "pattern": "^https?://"}}, {"sha256": _SHA256}),
    "git": ({"url": _TEXT, "ref": _TEXT}, {"path": _TEXT}),
    "github": ({"owner": _TEXT, "repo": _TEXT}, {"ref": _TEXT, "path": _TEXT}),
    "ipfs": ({"cid": _TEXT}, {"path": _TEXT}),
    "email": ({"address": _TEXT}, {}),
    "operator": ({"slug": _TEXT}, {"workspace": _TEXT}),
    "user": ({"id": _TEXT}, {"workspace": _TEXT}),
    "persona": ({"id": _TEXT}, {}),
    "eth_tx": (
        {"chainId": {"type": "integer", "minimum": 1}, "txHash": {"type": "string", "pattern": "^0x[0-9a-f]{64}$"}},
        {},
    ),
}


def _kind(name: str, needed: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    shared = {"tags": {"type": "array", "items": {"type": "string"}}, "description": {"type": "string"}}
    return {
        "type": "object",
        "properties": {"kind": {"const": name}, **needed, **optional, **shared},
        "required": ["kind", *needed],
    }


_COMPACT: Final = {
    "type": "string",
    "pattern": f"^({'|'.join((*_KINDS, 'ots'))}):.",
    "not": {"pattern": r"^(ots:)?local:(/|.*\\|(.*/)?\.\.(/|#|$))"},
}
REFERENCE: Final = {
    "description": "A reference (AIP-27): KIND:BODY, or an object with its kind.",
    "anyOf": [
        _COMPACT,
        *(_kind(name, *fields) for name, fields in _KINDS.items()),
        _kind("ots", {"proof": {"anyOf": [_kind(name, *_KINDS[name]) for name in ("local", "url")]}}, {}),
    ],
}


TOOL_FILE: Final = "TOOL.md"
REFERENCE_NAME: Final = "agentref-v1"
MOVED: Final = {  # AIP-14.front-3
    "code": "driver.py beside the DRIVER.md (AIP-30)",
    "run": "server of the DRIVER.md (AIP-30)",
    "runner": "runner of the DRIVER.md (AIP-30)",
    "secrets": "auth.ref of the DRIVER.md (AIP-30) and its SECRETS.md",
    "network": "network of the DRIVER.md (AIP-30)",
    "entry": "driver.py beside the DRIVER.md (AIP-30)",
    "execute": "implements of the DRIVER.md (AIP-30)",
}
HINTS: Final = {
    # What the prose of AIP-14 has but its schema does not.
    "inputSchema": "write inputs",  # AIP-compat-2
    "outputSchema": "write outputs",  # AIP-compat-2
    "contextSchema": "write metadata.interlock.context_schema",
    "input_schema": "write inputs",
    "output_schema": "write outputs",
    "implements": "remove it: the drivers say which contracts they implement",
    "approval": "write auto, always, on-mutate or policy:NAME",
}
# Those whose value is a schema or holds some, at the top of one.
_KEYWORDS: Final = frozenset(
    [
        *("properties", "patternProperties", "dependentSchemas", "definitions", "dependencies", "const", "default"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames", "items", "additionalItems", "contains"),
        *("unevaluatedItems", "not", "if", "then", "else", "contentSchema", "discriminator", "example", "examples"),
    ]
)


_SCHEMA_SIGNS: Final = frozenset(["type", "enum", "properties", "items", "$ref"])


def read_contract(data_untrusted: bytes, file: str) -> ParsedFile[Contract]:
    """Parse a TOOL.md. `file` is the name used in problems."""
    reading = read_frontmatter(data_untrusted, file)
    if reading.value is None:
        return ParsedFile(problems=reading.problems)
    front = reading.value
    data = {key: _with_reference(value) if key in ("inputs", "outputs") else value for key, value in front.data.items()}
    front = msgspec.structs.replace(front, data=data)
    refused = tuple(_with_better_hint(each, front.data) for each in check_schema(front, "AIP-14"))
    if refused:
        return ParsedFile(problems=refused)
    findings = FileFindings(front.places)
    _check_contract(front, findings)
    contract = None
    if not findings.refused:
        ours = front.data.get("metadata", {}).get("interlock", {})
        extensions = {"listed_as": ours.get("name"), "context_schema": ours.get("context_schema")}
        try:
            contract = msgspec.convert({**front.data, **extensions, "places": front.places}, Contract)  # AIP-14.front-1
        except (msgspec.ValidationError, ValueError):
            # The schema is closed over everything converted; a gap between the two is refused, not raised.
            findings.add_invalid("", "a value has the wrong form", "compare the file with the documentation")
    return ParsedFile(value=contract, problems=tuple(findings.problems))


def _with_reference(schema: Any) -> Any:
    """Return a schema in which references to AIP-27's reference type point to a definition inside the schema, so that
    nothing has to be fetched.
    """

    def point_inside(each: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**each, "$ref": f"#/$defs/{REFERENCE_NAME}"} if each.get("$ref") == REFERENCE_URI else each

    local = rewritten(schema, point_inside)
    defined = local.get("$defs", {}) if local != schema else None
    if not isinstance(defined, Mapping) or REFERENCE_NAME in defined:
        return schema
    return {**local, "$defs": {**defined, REFERENCE_NAME: REFERENCE}}


def _with_better_hint(problem: FileProblem, data: Mapping[str, Any]) -> FileProblem:
    key = problem.field.removeprefix("/")
    if key in MOVED:  # AIP-14.front-3
        message = f"{key} is no longer part of a contract"
        return msgspec.structs.replace(problem, message=message, hint=f"it moved to {MOVED[key]}")
    hint = HINTS.get(key, problem.hint)  # AIP-compat-2
    if key == "version" and isinstance(data.get("version"), int | float):
        hint = "write three parts: 1.0.0"
    return msgspec.structs.replace(problem, hint=hint)


def _check_contract(front: Frontmatter, findings: FileFindings) -> None:
    """Check the rules for a TOOL.md that no JSON Schema can express."""
    data = front.data
    if data.get("mutates") and data.get("approval", "auto") == "auto":  # AIP-14.front-2
        message = "a tool that changes something cannot have approval auto"
        hint = "set approval to always, on-mutate or policy:<ref>"
        findings.add_invalid("/approval" if "approval" in data else "/mutates", message, hint)
    if any(data.get("requires", {}).values()):
        message = "requires is read and not enforced"
        hint = "a driver reaches what its own network and SECRETS.md say; limit callers with [[access]]"
        findings.add("/requires", "not_enforced", message, hint, "note")
    for field in ("inputs", "outputs"):
        _check_json_schema(f"/{field}", data[field], findings)
    if "type" in data["inputs"] and data["inputs"]["type"] != "object":
        findings.add_invalid("/inputs/type", "the inputs of a tool are an object", "write type: object")
    ours = data.get("metadata", {}).get("interlock", {})
    if "context_schema" in ours:
        _check_json_schema("/metadata/interlock/context_schema", ours["context_schema"], findings)
    if "name" in ours and not ("." in ours["name"] and is_qualified(ours["name"])):
        message = f"{quoted(ours['name'])} is no qualified name"
        findings.add_invalid("/metadata/interlock/name", message, "write segment.tool, like filesystem.read_file")


def _check_json_schema(pointer: str, schema: Any, findings: FileFindings) -> None:
    fault = fault_in_json_schema(schema)
    if fault is not None:  # AIP-14.front-1
        place, message, hint = fault
        findings.add_invalid(pointer + place, f"this is no JSON Schema: {message}", hint)
        return
    for key, value in schema.items():
        # A property beside `properties` is an unknown keyword: valid, and without any effect.
        is_schema = isinstance(value, Mapping) and not _SCHEMA_SIGNS.isdisjoint(value)
        if is_schema and key not in _KEYWORDS and not key.startswith(("$", "x-")):
            place = f"{pointer}/{pointer_step(key)}"
            message = f"{quoted(key)} is no keyword of JSON Schema, and describes nothing here"
            findings.add(place, "unknown_key", message, f"write it below properties of {pointer[1:]}", "warning")
