"""The node that is checked: the AQL settings of a configuration over a sample server, with clients of both eras.

The node opens no socket, has a data folder of its own, and starts none of the configured servers, because the
suite calls operations.
"""

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.aql.adapter import profile_of
from interlock.aql.cli import sample_server
from interlock.aql.cli.evidence import gather_evidence
from interlock.aql.cli.live_client import LEGACY, MODERN, LiveClient
from interlock.aql.cli.report import Report
from interlock.aql.cli.suite import SAMPLE, Checked, run_suite
from interlock.aql.protocol.families import Endpoints, Mode
from interlock.config.plan import GatePlan, Plan, ServerPlan, Spawn
from interlock.node.node import Node

START_S: Final = 30.0
LEVELS: Final = {"level-1": 1, "level-2": 2}

Exchanges = dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]  # by surface: requests with their answers


class Evidence(msgspec.Struct, frozen=True):
    bundle: dict[str, Any] | None  # for the specification's runner; None where the claim does not hold
    exchanges: Exchanges


def check_live(plan: Plan) -> tuple[Report, Evidence]:
    log = logging.getLogger("interlock")
    level = log.level
    log.setLevel(logging.CRITICAL)  # refusals are what the suite asks for
    try:
        with tempfile.TemporaryDirectory(prefix="interlock-check-") as folder:
            return asyncio.run(_check(_checked_plan(plan, Path(folder))))
    finally:
        log.setLevel(level)


def write_evidence(folder: Path, report: Report, evidence: Evidence) -> int:
    """The number of files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / "report.json": report.shown()}
    if evidence.bundle is not None:
        written[folder / "evidence.json"] = evidence.bundle
    for surface, exchanges in evidence.exchanges.items():
        for number, (request, answer) in enumerate(exchanges, 1):
            stem = folder / surface / f"{number:03}-{request['method'].replace('/', '-')}"
            written[stem.with_suffix(".request.json")] = request
            written[stem.with_suffix(".answer.json")] = answer
    for path, value in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", "utf-8")
    return len(written)


def _checked_plan(plan: Plan, folder: Path) -> Plan:
    program = (sys.executable, "-I", str(Path(sample_server.__file__)))
    return Plan(
        workspace=folder,
        data=folder / "data",
        aql=plan.aql,
        limits=plan.limits,
        safety=msgspec.structs.replace(plan.safety, require=()),  # the suite's calls belong to no execution
        gate=GatePlan(mode="open"),  # no person could be asked
        servers=(ServerPlan(segment=SAMPLE, reach=Spawn(command=program)),),
    )


async def _check(plan: Plan) -> tuple[Report, Evidence]:
    node = Node(plan, _no_operator_endpoint, listen=False)
    try:
        await node.open()
        await node.readiness.settle(START_S)
        served: list[tuple[Mode, str]] = [] if plan.aql.mode == "single" else [(plan.aql.mode, "aql")]
        served.append(("single", "aql-single"))
        opened = [
            await _open(node, plan, mode, surface, version) for mode, surface in served for version in (MODERN, LEGACY)
        ]
        surfaces = tuple(surface for surface, _ in opened)
        report = await run_suite(surfaces, opened[0][1])
        modes = [one.mode for one in surfaces]
        bundle = await gather_evidence(surfaces[0], report.level, [*modes]) if report.is_held else None
        return report, Evidence(bundle, {f"{one.mode}-{one.client.version}": one.client.kept for one in surfaces})
    finally:
        await node.close()


async def _open(node: Node, plan: Plan, mode: Mode, surface: str, version: str) -> tuple[Checked, int]:
    """With the level that the surface claims."""
    client = LiveClient(node, surface, version)
    await client.greet()
    tools = tuple(
        tool.name for tool in Endpoints(mode=mode, profile=profile_of(plan), prefix=plan.aql.tool_prefix).tools
    )
    reads, claimed = tools[0], 1
    asks = {"operation": "introspect", "params": {"query": "operations", "first": 1}}
    for tool in tools:  # what a client does that knows only the list
        answer = await client.request("tools/call", {"name": tool, "arguments": asks})
        said = _maybe_conformance(answer)
        if said is not None:
            reads, claimed = tool, LEVELS.get(said, 1)
            break
    made = Checked(client=client, mode=mode, tools=tools, reads=reads, batch_max=plan.aql.limits.batch_operations)
    return made, claimed


def _maybe_conformance(answer: dict[str, Any]) -> str | None:
    try:
        return str(json.loads(answer["result"]["content"][0]["text"])["data"]["_protocol"]["conformance"])
    except (LookupError, TypeError, ValueError):
        return None


def _no_operator_endpoint(*_: Any) -> None:
    raise AssertionError("a check opens no endpoint")
