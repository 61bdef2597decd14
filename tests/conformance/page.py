"""docs/conformance-suite.md from .cache/conformance-suite.json."""

import json
from typing import Any

from tests.conformance.suite import CELLS, NOT_OFFERED, PAGE, REQUIREMENTS, RESULTS, expected

TITLES = {
    "none": "the fixture alone",
    "http": "through Interlock, server over HTTP",
    "stdio": "through Interlock, server over stdio",
}


def markdown(kept: dict[str, Any]) -> str:
    parts = [
        "# The official conformance suite",
        "Written by `python -m tests.conformance --write`. Do not edit.",
        f"`@modelcontextprotocol/conformance` {kept['suite']} against `/mcp/only/fixture` of a node in front of "
        "`tests/servers/everything.py`: checks passed of checks made. `w` marks warnings; a scenario in italics is "
        "reported by the suite and not scored. Extensions that the fixture does not offer are left out.",
    ]
    for era, revision in REQUIREMENTS.items():
        cells = [cell for cell in CELLS if cell.client == era and cell.name in kept["cells"]]
        if cells:
            parts += [
                f"## {revision}",
                table([cell.name for cell in cells], [TITLES[cell.pipe] for cell in cells], kept),
            ]
    reasons = [
        f"- {cell.name}, {scenario}, `{check}`: {reason}"
        for cell in CELLS
        for scenario, checks in expected(cell).items()
        for check, reason in checks.items()
    ]
    if reasons:
        parts += ["## What fails, and why", "\n".join(reasons)]
    return "\n\n".join(parts) + "\n"


def table(names: list[str], titles: list[str], kept: dict[str, Any]) -> str:
    results = [kept["cells"][name] for name in names]
    scenarios = list(dict.fromkeys(scenario for cell in results for scenario in sorted(cell)))
    lines = [f"| scenario | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for scenario in scenarios:
        if not scenario.startswith(NOT_OFFERED):
            shown = scenario if any(cell.get(scenario, {}).get("scored") for cell in results) else f"*{scenario}*"
            lines.append(f"| {shown} | {' | '.join(score(cell.get(scenario)) for cell in results)} |")
    return "\n".join(lines)


def score(scenario: dict[str, Any] | None) -> str:
    if scenario is None:
        return ""
    failed = len(scenario["failing"])
    words = f"{scenario['passed']}/{scenario['passed'] + failed}"
    if not scenario["passed"] and not failed:
        return "not applicable"
    return ("**" + words + "**" if failed else words) + (" w" if scenario["warnings"] else "")


def write() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(markdown(json.loads(RESULTS.read_text())))
