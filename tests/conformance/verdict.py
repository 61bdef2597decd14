"""The results of a trial against what is known to fail there, and all results kept for the page.

What is known to fail stands with its reason in expected/. A failure that does not stand there and one that stands there
but does not happen both make the run red, and a warning is a failure. What a foreign fixture fails alone is its own.
Scenarios of extensions that the fixture does not offer, and of tasks across eras, which the node refuses, are never
judged.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from tests.conformance import toolbox
from tests.conformance.foreign import Foreign
from tests.conformance.suite import Scenario
from tests.conformance.trials import Trial

EXPECTED = Path(__file__).parent / "expected"
RESULTS = toolbox.CACHE / "conformance-suite.json"
NOT_OFFERED = ("sep-2640-",)
WITHIN_AN_ERA = ("tasks-",)


def is_judged(trial: Trial, scenario: str) -> bool:
    if scenario.startswith(WITHIN_AN_ERA) and not isinstance(trial, Foreign):
        return trial.client == trial.server
    return not scenario.startswith((*NOT_OFFERED, *WITHIN_AN_ERA) if isinstance(trial, Foreign) else NOT_OFFERED)


def failing_alone(trial: Trial, scenario: str) -> set[str]:
    """What a foreign fixture fails without a node, as it was kept: all that this trial may fail without a word."""
    if not isinstance(trial, Foreign):
        return set()
    alone = trial if trial.is_alone else trial.alone
    found = kept()["trials"].get(alone.name, {}).get(scenario) if alone else None
    return {*found["failing"], *found["warnings"]} if found else set()


def expected(known_as: str) -> dict[str, dict[str, str]]:
    """What is known to fail: scenario -> check -> reason."""
    path = EXPECTED / f"{known_as}.yml"
    return (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def judge(trial: Trial, results: dict[str, Scenario]) -> list[str]:
    """Every way in which the results differ from what is expected, in words."""
    known = expected(trial.known_as)
    failing = {
        name: scenario.failing | dict.fromkeys(scenario.warnings, "a warning")
        for name, scenario in results.items()
        if is_judged(trial, name)
    }
    complaints = [
        f"{name}: {check} fails: {said}"
        for name, checks in failing.items()
        for check, said in checks.items()
        if check not in known.get(name, {}) and check not in failing_alone(trial, name)
    ]
    stale = [
        f"{name}: {check} is expected to fail but does not; remove it from expected/{trial.known_as}.yml"
        for name, checks in known.items()
        for check in checks
        if check not in failing.get(name, {})
    ]
    return complaints + stale


def keep(trial: Trial, results: dict[str, Scenario]) -> None:
    """Put the results of one trial beside those of the others, which another process may be writing."""
    RESULTS.parent.mkdir(exist_ok=True)
    with toolbox.locked("conformance-suite"):
        found = kept()
        found["trials"][trial.name] = {name: asdict(scenario) for name, scenario in results.items()}
        found.setdefault("runs", {})[trial.name] = os.environ.get("PYTEST_XDIST_TESTRUNUID")
        half = RESULTS.with_suffix(".half")
        half.write_text(json.dumps(found, indent=1) + "\n")
        half.replace(RESULTS)


def kept() -> dict[str, Any]:
    suite = toolbox.PACKAGES["@modelcontextprotocol/conformance"]
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found if found.get("suite") == suite and "trials" in found else {"suite": suite, "trials": {}}
