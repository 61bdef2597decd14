"""The command `interlock check aql`, which runs the live suite and collects evidence for the specification's own
runner.

It checks a temporary node that has one sample server, and the AQL settings, limits and safety loop as configured.
Clients of both eras connect to it. The node opens no socket, has a temporary data folder, and starts none of the
configured servers, because the suite calls operations that change things.
"""

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from interlock import __version__
from interlock.aql.adapter import profile_of
from interlock.aql.cli import sample_server, suite
from interlock.aql.protocol.families import AqlEndpoints, Mode
from interlock.aql.protocol.model import SPEC_VERSION
from interlock.cli.command import Invocation, load_configuration
from interlock.cli.terminal.errors import EXIT_REFUSED, BadUsage
from interlock.cli.terminal.text import count
from interlock.config.plan import GatePlan, Plan, ServerPlan, Spawn
from interlock.node.node import Node
from interlock.wire.refusal import Refused

WORDS = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}


def check_aql(invocation: Invocation, evidence: str | None) -> None:
    """Check the AQL surfaces of a configuration, print the report, and write evidence into the named folder."""
    folder = None if evidence is None else Path(evidence).expanduser()
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadUsage("usage", f"{evidence} is not an empty folder", hint="name one that is empty or not there yet")
    plan = load_configuration(invocation, starting=False).plan
    outcome = check_live(plan)
    report, out = outcome[0], invocation.out
    files = 0
    if folder is not None:
        try:
            files = write_evidence(folder, outcome)
        except OSError as error:
            raise Refused("not_written", f"{folder} cannot be written: {error.strerror or error}") from None
    if out.as_json:
        out.json(report.shown())
    else:
        for section in report.sections:
            for test in section.tests:
                detail = f": {test.message}" if test.message else ""
                out.line(f"{WORDS[test.result]}  level {section.level}, {section.name} ({test.name}){detail}")
        counts = report.counts()
        out.line(f"{report.claim()}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
        if folder is not None:
            out.line(f"{folder}: {count(files, 'file')}")
    if not report.is_held:
        raise typer.Exit(EXIT_REFUSED)


START_S: Final = 30.0
LEVELS: Final = {"level-1": 1, "level-2": 2}

Exchanges = dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]  # by surface: requests with their answers


# The report, the evidence for the specification's runner (None if the claim does not hold), and the exchanges.
CheckOutcome = tuple[suite.SuiteReport, dict[str, Any] | None, Exchanges]


def check_live(plan: Plan) -> CheckOutcome:
    """Run the suite against a temporary node. Return the report and the evidence."""
    log = logging.getLogger("interlock")
    level = log.level
    log.setLevel(logging.CRITICAL)  # refusals are what the suite asks for
    program = (sys.executable, "-I", str(Path(sample_server.__file__)))
    try:
        with tempfile.TemporaryDirectory(prefix="interlock-check-") as name:
            folder = Path(name)
            checked_plan = Plan(
                workspace=folder,
                data=folder / "data",
                aql=plan.aql,
                limits=plan.limits,
                safety=msgspec.structs.replace(plan.safety, require=()),  # the suite's calls belong to no execution
                gate=GatePlan(mode="open"),  # no person could be asked
                servers=(ServerPlan(segment=suite.SAMPLE, reach=Spawn(command=program)),),
            )
            return asyncio.run(_check(checked_plan))
    finally:
        log.setLevel(level)


def write_evidence(folder: Path, outcome: CheckOutcome) -> int:
    """Write the report and the recorded exchanges, and return the number of files. Raise OSError if a file cannot be
    written.
    """
    report, bundle, exchanges_by_surface = outcome
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / "report.json": report.shown()}
    if bundle is not None:
        written[folder / "evidence.json"] = bundle
    for surface, exchanges in exchanges_by_surface.items():
        for number, (request, answer) in enumerate(exchanges, 1):
            stem = folder / surface / f"{number:03}-{request['method'].replace('/', '-')}"
            written[stem.with_suffix(".request.json")] = request
            written[stem.with_suffix(".answer.json")] = answer
    for path, value in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return len(written)


async def _check(plan: Plan) -> CheckOutcome:
    """Open the node, run the suite on all surfaces, and collect the evidence."""
    node = Node(plan, _no_operator_endpoint, listen=False)
    try:
        await node.open()
        await node.readiness.settle(START_S)
        served: list[tuple[Mode, str]] = [] if plan.aql.mode == "single" else [(plan.aql.mode, "aql")]
        served.append(("single", "aql-single"))
        opened = [
            await _open(node, plan, mode, surface, version)
            for mode, surface in served
            for version in (suite.MODERN, suite.LEGACY)
        ]
        surfaces = tuple(surface for surface, _ in opened)
        report = await suite.run_suite(surfaces, opened[0][1])
        modes = [checked.mode for checked in surfaces]
        bundle = await gather_evidence(surfaces[0], report.level, [*modes]) if report.is_held else None
        exchanges = {f"{checked.mode}-{checked.client.version}": checked.client.exchanges for checked in surfaces}
        return report, bundle, exchanges
    finally:
        await node.close()


async def _open(node: Node, plan: Plan, mode: Mode, surface: str, version: str) -> tuple[suite.CheckedSurface, int]:
    """Connect a client to a surface. Return the surface and the conformance level that it claims."""
    client = suite.LiveClient(node, surface, version)
    await client.greet()
    endpoints = AqlEndpoints(mode=mode, profile=profile_of(plan), prefix=plan.aql.tool_prefix)
    tools = tuple(endpoints.by_name)
    reads, claimed = tools[0], 1
    asks = {"operation": "introspect", "params": {"query": "operations", "first": 1}}
    for tool in tools:  # what a client does that knows only the list
        answer = await client.request("tools/call", {"name": tool, "arguments": asks})
        if (conformance := _find_conformance(answer)) is not None:
            reads, claimed = tool, LEVELS.get(conformance, 1)
            break
    batch_max = plan.aql.limits.batch_operations
    return suite.CheckedSurface(client=client, mode=mode, tools=tools, reads=reads, batch_max=batch_max), claimed


def _find_conformance(answer: dict[str, Any]) -> str | None:
    try:
        return str(json.loads(answer["result"]["content"][0]["text"])["data"]["_protocol"]["conformance"])
    except (LookupError, TypeError, ValueError):
        return None


def _no_operator_endpoint(*_: Any) -> None:
    raise AssertionError("a check opens no endpoint")


UNKNOWN: Final = "page_size"  # a parameter that no operation of the sample server has
WRITTEN: Final = {"title": "Written and read", "body": "Kept"}
_VALUES: Final = {"query": "operations", "input": {}}  # of parameters for which a plain text is no value


async def gather_evidence(surface: suite.CheckedSurface, level: int, modes: list[str]) -> dict[str, Any]:
    """Collect the evidence of one surface. `modes` are the modes of all surfaces that were checked."""
    client, reads = surface.client, surface.reads
    listed = await client.send(reads, _introspect(query="operations", prefix=f"{suite.SAMPLE}__"))
    names = ["introspect", *(operation["name"] for operation in listed["data"]["operations"])]
    details = [await surface.details(name) for name in names]
    first = await client.send(reads, _introspect(query="operations", first=1))
    protocol = first["data"]["_protocol"]["capabilities"]
    evidence: dict[str, Any] = {
        "implementation": suite.IMPLEMENTATION,
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
        "accepted_parameters": {operation["name"]: await _accepted(surface, operation) for operation in details},
        "parameter_tests": {
            "missing_required": [case for operation in details for case in await _missing(surface, operation)],
            "unknown_parameter": [
                {"operation": operation["name"], "parameter": UNKNOWN, "response": await _unknown(surface, operation)}
                for operation in details
            ],
            "optional_defaults": [],
        },
        "error_tests": await _errors(surface),
        "constraint_tests": [await _constraint(surface)],
        "semantic_tests": [],
        **await _writing(surface),
    }
    if level >= 2:
        tool = next(operation["mcpTool"] for operation in details if operation["name"] == suite.GET)
        items = [{"operation": suite.GET, "params": suite.NOTE}]
        evidence["batch_example"] = await client.send(tool, {"operations": items})
    return evidence


def _introspect(**params: Any) -> dict[str, Any]:
    return {"operation": "introspect", "params": params}


def _required(details: dict[str, Any]) -> dict[str, Any]:
    return {
        parameter["name"]: _VALUES.get(parameter["name"], "n1")
        for parameter in details["parameters"]
        if parameter["required"]
    }


async def _call(surface: suite.CheckedSurface, details: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    return await surface.client.send(details["mcpTool"], {"operation": details["name"], "params": params})


async def _accepted(surface: suite.CheckedSurface, details: dict[str, Any]) -> list[str]:
    """Return the parameters that an operation accepts, as listed in the refusal of an unknown parameter.

    Introspect lists them only in its message.
    """
    error = (await _unknown(surface, details))["error"]
    if "details" in error:
        return list(error["details"]["valid_params"])
    return str(error["message"]).rpartition(": ")[2].split(", ")


async def _missing(surface: suite.CheckedSurface, details: dict[str, Any]) -> list[dict[str, Any]]:
    required = _required(details)
    cases = []
    for name in required:
        rest = {key: value for key, value in required.items() if key != name}
        response = await _call(surface, details, rest)
        cases.append({"operation": details["name"], "parameter": name, "response": response})
    return cases


async def _unknown(surface: suite.CheckedSurface, details: dict[str, Any]) -> dict[str, Any]:
    return await _call(surface, details, {**_required(details), UNKNOWN: 1})


async def _errors(surface: suite.CheckedSurface) -> list[dict[str, Any]]:
    cases: tuple[tuple[str, str, dict[str, Any], list[str]], ...] = (
        ("unknown-operation", suite.NOWHERE, {}, [suite.NOWHERE, "introspect"]),
        ("unknown-parameter", suite.GET, {**suite.NOTE, UNKNOWN: 1}, [UNKNOWN]),
        ("missing-parameter", suite.GET, {}, ["note_id", "string"]),
        ("wrong-type", suite.GET, {"note_id": 5}, ["note_id", "string"]),
    )
    tool = (await surface.details(suite.GET))["mcpTool"]
    return [
        {
            "name": name,
            "must_mention": mentions,
            "response": await surface.client.send(tool, {"operation": operation, "params": params}),
        }
        for name, operation, params, mentions in cases
    ]


async def _constraint(surface: suite.CheckedSurface) -> dict[str, Any]:
    update = await surface.details(f"{suite.SAMPLE}__update_note")
    response = await _call(surface, update, {**suite.NOTE, "input": {"created_at": "now"}})
    declared = next(item["type"] for item in update["parameters"] if item["name"] == "input")
    shown = await surface.client.introspect(surface.reads, query="types", name=declared)
    fields = [item["name"] for item in (shown["type"] or {}).get("fields", ())]
    return {"name": "fields-of-a-note", "documented": bool(fields) and "created_at" not in fields, "response": response}


async def _writing(surface: suite.CheckedSurface) -> dict[str, Any]:
    created = (await surface.do(f"{suite.SAMPLE}__create_note", dict(WRITTEN)))["data"]
    read = await surface.do(suite.GET, {"note_id": created["id"]})
    await surface.do(f"{suite.SAMPLE}__update_note", {"note_id": created["id"], "input": {"title": "Changed"}})
    changed = await surface.do(suite.GET, {"note_id": created["id"]})
    expected = {f"data.{key}": value for key, value in WRITTEN.items()}
    preserved = {"data.body": WRITTEN["body"], "data.title": "Changed"}
    return {
        "round_trip_tests": [{"name": "note", "expected_fields": expected, "read_response": read}],
        "update_preservation_tests": [{"name": "note", "preserved_fields": preserved, "read_response": changed}],
    }
