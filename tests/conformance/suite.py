"""Running the official suite: its server mode against a URL, its client mode against a command; and reading its checks.

Scenarios are those that a revision's requirement set names, scored or not. Nothing is judged here.
"""

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.conformance import toolbox

REQUIREMENTS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
SUITE_SECONDS = 300
SCENARIO_SECONDS = 60
CLIENT_EXIT = "client-exit"  # not a check of the suite's: the client under test ended with an error

# Client scenarios that are not run, by how their names begin.
NOT_RUN = {
    "auth/dpop": "they are about an extension, tokens bound to a key (RFC 9449), and the node asks for bearer tokens",
    "auth/enterprise-managed-authorization": "it is about an extension, tokens by an identity provider's assertion, "
    "and the node has no identity provider",
    "auth/wif-jwt-bearer": "it is about an extension, tokens by a workload's own identity, and the node has none",
}


@dataclass
class Scenario:
    scored: bool
    passed: int = 0
    failing: dict[str, str] = field(default_factory=dict)  # check -> what it said
    warnings: list[str] = field(default_factory=list)


@cache
def requirements(revision: str) -> dict[str, Any]:
    path = toolbox.npm_packages() / "@modelcontextprotocol/conformance/requirements" / f"{revision}.yaml"
    return dict(yaml.safe_load(path.read_text()))


def client_scenarios(revision: str) -> dict[str, bool]:
    """Every client scenario of a revision, run or not: its name, and whether it is scored."""
    wanted = requirements(revision)
    unscored = [entry["scenario"] for entry in wanted["not_scored"] if entry["leg"] == "client"]
    return dict.fromkeys(wanted["client"], True) | dict.fromkeys(unscored, False)


def is_run(scenario: str) -> bool:
    return not scenario.startswith(tuple(NOT_RUN))


def environment() -> dict[str, str]:
    """Of the suite, which is compiled once and not at each of its many starts."""
    return {**os.environ, "NODE_COMPILE_CACHE": str(toolbox.SHARED / "node-compiled")}


def run_server(url: str, revision: str) -> dict[str, Scenario]:
    """Every server scenario of a revision, against a URL."""
    scored = set(requirements(revision)["server"])
    with tempfile.TemporaryDirectory() as folder:
        command = [*toolbox.suite(), "server", "--url", url, "--requirements", revision, "--output-dir", folder]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False, env=environment()
        )
        results = {
            re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", path.parent.name): path
            for path in sorted(Path(folder).glob("server-*/checks.json"))
        }
        missing = scored - results.keys()
        if missing:
            raise RuntimeError(f"the suite did not run {sorted(missing)}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return {name: read(path, scored=name in scored) for name, path in results.items()}


def run_client(command: list[str], scenario: str, revision: str) -> Scenario:
    """One client scenario, with a command that is given the URL of the suite's server."""
    scored = client_scenarios(revision)[scenario]
    with tempfile.TemporaryDirectory() as folder:
        suite = [*toolbox.suite(), "client", "--command", " ".join(command), "--scenario", scenario]
        suite += ["--spec-version", revision, "--output-dir", folder]
        suite += [] if scored else ["--force"]  # a scenario of an extension belongs to no revision
        done = subprocess.run(
            suite,
            cwd=toolbox.ROOT,
            env=environment() | {"NODE_NO_WARNINGS": "1"},
            capture_output=True,
            text=True,
            timeout=SCENARIO_SECONDS,
            check=False,
        )
        paths = list(Path(folder).rglob("checks.json"))
        if len(paths) != 1:
            raise RuntimeError(f"the suite did not run {scenario}: {done.stdout[-500:]}{done.stderr[-500:]}")
        result = read(paths[0], scored=scored)
        if done.returncode != 0 and not result.failing and not result.warnings:
            result.failing[CLIENT_EXIT] = (paths[0].parent / "stderr.txt").read_text()[-1500:] or done.stderr[-1500:]
        return result


def read(path: Path, *, scored: bool) -> Scenario:
    scenario = Scenario(scored)
    for check in json.loads(path.read_text()):
        match check["status"]:
            case "SUCCESS":
                scenario.passed += 1
            case "FAILURE":
                scenario.failing[check["id"]] = str(check.get("errorMessage") or check.get("description", ""))[:300]
            case "WARNING":
                scenario.warnings.append(check["id"])
    return scenario
