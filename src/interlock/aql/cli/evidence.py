"""Evidence of the live surface in the form that the specification's own runner reads (`run-conformance-tests.mjs`).

Everything in it was asked of the surface: what introspection documents, what is accepted, how wrong requests are
answered, and whether what was written is read again.
"""

from typing import Any, Final

from interlock import __version__
from interlock.aql.cli.report import IMPLEMENTATION
from interlock.aql.cli.suite import GET, NOTE, NOWHERE, SAMPLE, Checked
from interlock.aql.protocol.model import SPEC_VERSION

UNKNOWN: Final = "page_size"
WRITTEN: Final = {"title": "Written and read", "body": "Kept"}
_VALUES: Final = {"query": "operations", "input": {}}  # of parameters for which a plain text is no value


async def gather_evidence(surface: Checked, level: int, modes: list[str]) -> dict[str, Any]:
    """`modes`: as `mode` of the surfaces that were looked at says them."""
    client, reads = surface.client, surface.reads
    listed = await client.send(reads, _introspect(query="operations", prefix=f"{SAMPLE}__"))
    names = ["introspect", *(one["name"] for one in listed["data"]["operations"])]
    details = [await surface.details(name) for name in names]
    protocol = listed["data"]["_protocol"]["capabilities"]
    evidence: dict[str, Any] = {
        "implementation": IMPLEMENTATION,
        "version": __version__,
        "spec_version": SPEC_VERSION,
        "expected_level": level,
        "expected_exit_code": 0,
        # The runner calls semantic mode by its older name.
        "endpoint_modes": sorted({"single" if mode == "single" else "crude" for mode in modes}),
        "capabilities": {"field_selection": protocol["field_selection"], "batch_operations": protocol["batch"]},
        "introspection": {
            "operations_list": listed,
            "types_list": await client.send(reads, _introspect(query="types")),
            "operation_details": details,
        },
        "accepted_parameters": {one["name"]: await _accepted(surface, one) for one in details},
        "parameter_tests": {
            "missing_required": [case for one in details for case in await _missing(surface, one)],
            "unknown_parameter": [await _unknown(surface, one) for one in details],
            "optional_defaults": [],
        },
        "error_tests": await _errors(surface),
        "constraint_tests": [await _constraint(surface)],
        "semantic_tests": [],
        **await _writing(surface),
    }
    if level >= 2:
        tool = next(one["mcpTool"] for one in details if one["name"] == GET)
        items = [{"operation": GET, "params": NOTE}]
        evidence["batch_example"] = await client.send(tool, {"operations": items})
    return evidence


def _introspect(**params: Any) -> dict[str, Any]:
    return {"operation": "introspect", "params": params}


def _required(details: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: _VALUES.get(one["name"], "n1") for one in details["parameters"] if one["required"]}


async def _call(surface: Checked, details: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    return await surface.client.send(details["mcpTool"], {"operation": details["name"], "params": params})


async def _accepted(surface: Checked, details: dict[str, Any]) -> list[str]:
    """As the refusal of an unknown parameter names them; that of introspect has its words alone."""
    error = (await _call(surface, details, {**_required(details), UNKNOWN: 1}))["error"]
    if "details" in error:
        return list(error["details"]["valid_params"])
    return str(error["message"]).rpartition(": ")[2].split(", ")


async def _missing(surface: Checked, details: dict[str, Any]) -> list[dict[str, Any]]:
    given = _required(details)
    cases = []
    for name in given:
        rest = {key: value for key, value in given.items() if key != name}
        response = await _call(surface, details, rest)
        cases.append({"operation": details["name"], "parameter": name, "response": response})
    return cases


async def _unknown(surface: Checked, details: dict[str, Any]) -> dict[str, Any]:
    response = await _call(surface, details, {**_required(details), UNKNOWN: 1})
    return {"operation": details["name"], "parameter": UNKNOWN, "response": response}


async def _errors(surface: Checked) -> list[dict[str, Any]]:
    asked: tuple[tuple[str, str, dict[str, Any], list[str]], ...] = (
        ("unknown-operation", NOWHERE, {}, [NOWHERE, "introspect"]),
        ("unknown-parameter", GET, {**NOTE, UNKNOWN: 1}, [UNKNOWN]),
        ("missing-parameter", GET, {}, ["note_id", "string"]),
        ("wrong-type", GET, {"note_id": 5}, ["note_id", "string"]),
    )
    tool = (await surface.details(GET))["mcpTool"]
    return [
        {
            "name": name,
            "must_mention": mentions,
            "response": await surface.client.send(tool, {"operation": operation, "params": params}),
        }
        for name, operation, params, mentions in asked
    ]


async def _constraint(surface: Checked) -> dict[str, Any]:
    update = await surface.details(f"{SAMPLE}__update_note")
    response = await _call(surface, update, {**NOTE, "input": {"created_at": "now"}})
    declared = next(one["type"] for one in update["parameters"] if one["name"] == "input")
    shown = await surface.client.introspect(surface.reads, query="types", name=declared)
    fields = [one["name"] for one in (shown["type"] or {}).get("fields", ())]
    return {"name": "fields-of-a-note", "documented": bool(fields) and "created_at" not in fields, "response": response}


async def _writing(surface: Checked) -> dict[str, Any]:
    made = (await surface.do(f"{SAMPLE}__create_note", dict(WRITTEN)))["data"]
    found = await surface.do(GET, {"note_id": made["id"]})
    await surface.do(f"{SAMPLE}__update_note", {"note_id": made["id"], "input": {"title": "Changed"}})
    changed = await surface.do(GET, {"note_id": made["id"]})
    expected = {f"data.{key}": value for key, value in WRITTEN.items()}
    preserved = {"data.body": WRITTEN["body"], "data.title": "Changed"}
    return {
        "round_trip_tests": [{"name": "note", "expected_fields": expected, "read_response": found}],
        "update_preservation_tests": [{"name": "note", "preserved_fields": preserved, "read_response": changed}],
    }
