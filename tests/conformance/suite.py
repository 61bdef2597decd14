"""Running the official suite against a URL, and judging its result against what is known to fail.

A cell is one era in front and one behind. What fails in a cell is listed with its reason in expected/CELL.yml; a
failure that is not listed and a listed one that no longer fails both make the run red. Scenarios of extensions that the
fixture does not offer are counted, never judged.
"""

import contextlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml
from tests.conformance import toolbox
from tests.conformance.gateway import node
from tests.servers.start import everything, serving

EXPECTED = Path(__file__).parent / "expected"
RESULTS = toolbox.CACHE / "conformance-suite.json"
PAGE = toolbox.ROOT / "docs" / "conformance-suite.md"
SUITE_SECONDS = 300
NOT_OFFERED = ("tasks-", "sep-2640-")
REQUIREMENTS = {"legacy": "2025-11-25", "modern": "2026-07-28"}


@dataclass(frozen=True)
class Cell:
    """Which era the suite speaks, which the fixture behind speaks, and over which pipe."""

    client: str
    server: str
    pipe: str  # http, stdio; or none: the suite speaks to the fixture itself

    @property
    def name(self) -> str:
        return f"fixture-{self.server}" if self.pipe == "none" else f"{self.client}-{self.server}-{self.pipe}"


CELLS = [
    Cell("legacy", "legacy", "none"),
    Cell("modern", "modern", "none"),
    Cell("legacy", "legacy", "http"),
    Cell("legacy", "legacy", "stdio"),
    Cell("modern", "modern", "http"),
    Cell("modern", "modern", "stdio"),
]


@dataclass
class Scenario:
    scored: bool
    passed: int = 0
    failing: dict[str, str] = field(default_factory=dict)  # check -> what it said
    warnings: list[str] = field(default_factory=list)


@contextlib.contextmanager
def target(cell: Cell) -> Iterator[str]:
    """The URL the suite is run against in this cell."""
    options = ("--era", cell.server)
    if cell.pipe == "stdio":
        with node({"fixture": everything("--stdio", *options)}) as base:
            yield f"{base}/mcp/only/fixture"
    else:
        with serving(everything(*options)) as url:
            if cell.pipe == "none":
                yield url
            else:
                with node({"fixture": url}) as base:
                    yield f"{base}/mcp/only/fixture"


def run(cell: Cell, url: str) -> dict[str, Scenario]:
    """Run every scenario the revision requires, and those it only reports."""
    revision = REQUIREMENTS[cell.client]
    with tempfile.TemporaryDirectory() as folder:
        command = [*toolbox.suite(), "server", "--url", url, "--requirements", revision, "--output-dir", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False)
        results = read(Path(folder), scored(revision))
    missing = scored(revision) - results.keys()
    if missing:
        raise RuntimeError(f"the suite did not run {sorted(missing)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return results


def scored(revision: str) -> set[str]:
    path = toolbox.npm_packages() / "@modelcontextprotocol/conformance/requirements" / f"{revision}.yaml"
    return set(yaml.safe_load(path.read_text())["server"])


def read(folder: Path, scored_ones: set[str]) -> dict[str, Scenario]:
    results = {}
    for path in sorted(folder.glob("server-*/checks.json")):
        name = re.sub(r"^server-|-\d{4}-\d\d-\d\dT[\d-]+Z$", "", path.parent.name)
        scenario = results[name] = Scenario(scored=name in scored_ones)
        for check in json.loads(path.read_text()):
            match check["status"]:
                case "SUCCESS":
                    scenario.passed += 1
                case "FAILURE":
                    scenario.failing[check["id"]] = str(check.get("errorMessage", ""))[:300]
                case "WARNING":
                    scenario.warnings.append(check["id"])
    return results


def expected(cell: Cell) -> dict[str, dict[str, str]]:
    """What is known to fail: scenario -> check -> reason."""
    path = EXPECTED / f"{cell.name}.yml"
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def judge(cell: Cell, results: dict[str, Scenario]) -> list[str]:
    """Every way in which the results differ from what is expected, in words."""
    known = expected(cell)
    complaints = [
        f"{name}: {check} fails: {said}"
        for name, scenario in results.items()
        if not name.startswith(NOT_OFFERED)
        for check, said in scenario.failing.items()
        if check not in known.get(name, {})
    ]
    stale = [
        f"{name}: {check} is expected to fail but does not; remove it from expected/{cell.name}.yml"
        for name, checks in known.items()
        for check in checks
        if name not in results or check not in results[name].failing
    ]
    return complaints + stale


def keep(cell: Cell, results: dict[str, Scenario]) -> None:
    """Put the results of one cell into .cache/conformance-suite.json, beside those of the others."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    suite = toolbox.PACKAGES["@modelcontextprotocol/conformance"]
    cells = kept["cells"] if kept.get("suite") == suite else {}
    cells[cell.name] = {name: asdict(scenario) for name, scenario in results.items()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"suite": suite, "cells": cells}, indent=1) + "\n")
