"""docs/conformance-suite.md from what the trials left in .cache/."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from tests.conformance import suite, toolbox, verdict
from tests.conformance.foreign import FIXTURES, FOREIGN, FOREIGN_ALONE, Foreign
from tests.conformance.suite import CLIENT_EXIT, NOT_RUN, REQUIREMENTS
from tests.conformance.trials import ALONE, CELLS, ERAS, LEGS, Cell, Trial

PAGE = toolbox.ROOT / "docs" / "conformance-suite.md"
WAYS = {
    "alone": "the fixture alone",
    "http": "{} server, HTTP",
    "stdio": "{} server, stdio",
    "prefixed": "{} server, prefixed",
}

CLIENTS = ("/client", "/inspector", "/sdk")  # of the npm packages

Results = dict[str, dict[str, dict[str, Any]]]  # trial -> scenario -> what asdict(Scenario) gave


def markdown(kept: dict[str, Any]) -> str:
    trials: Results = kept["trials"]
    parts = [
        "# The official conformance suite",
        "Written by `python -m tests.conformance --write` from the last `make conformance`. Do not edit.",
        f"`@modelcontextprotocol/conformance` {kept['suite']}. A legacy client or server speaks "
        f"{REQUIREMENTS['legacy']}, a modern one {REQUIREMENTS['modern']}; neither understands the other. Numbers are "
        "checks passed of checks made; a scenario in italics is reported by the suite and not scored; what fails is "
        "bold, and its reason stands below.",
        "## Interlock as the server",
        "The suite's clients, a node, and `tests/servers/everything.py` behind it: as `/mcp/only/fixture` over HTTP "
        "and over stdio, and under `/mcp`, where its names are prefixed and a renaming proxy puts them back for the "
        "suite. Left out: scenarios of an extension that the fixture does not offer (skills), and of tasks "
        "across eras, which the node refuses by name.",
        totals(trials),
    ]
    for era in ERAS:
        cells = [cell for cell in [*ALONE, *CELLS] if cell.client == era]
        parts += [f"### Clients of {REQUIREMENTS[era]}", table(cells, [heading(cell) for cell in cells], trials)]
    parts += ["## Fixtures of others behind Interlock", *foreign(trials)]
    parts += ["## Servers and clients of others", *others()]
    parts += [
        "## Interlock as the client",
        "The suite's servers, a node in front of them, and an SDK client of either era in front of the node. In auth/* "
        "the suite plays the authorization server too, and somebody opens every page that the node asks for.",
    ]
    for era in ERAS:
        legs = [leg for leg in LEGS if leg.server == era]
        titles = [f"{leg.client} client" for leg in legs]
        parts += [f"### Servers of {REQUIREMENTS[era]}", table(legs, titles, trials)]
    parts += ["## What is not run", not_run()]
    if known := reasons({trial.known_as: trial for trial in [*ALONE, *CELLS, *LEGS]}):
        parts += ["## What fails, and why", "\n".join(known)]
    return "\n\n".join(parts) + "\n"


def foreign(trials: Results) -> list[str]:
    parts = [
        "The same with servers on the SDKs of others, over HTTP: each alone, in the eras that it speaks, and behind a "
        "node, as `/mcp/only/fixture`, in both. Those of the Python SDK are the ones it is tested with. That of the "
        "TypeScript SDK is in no package that can be installed; `tests/conformance/typescript_fixture.mjs`, on that "
        "SDK, stands in for it. What a fixture fails alone it may fail behind a node. Left out: scenarios of "
        "extensions (skills, tasks), which none of these offers.",
    ]
    for era in ERAS:
        columns = [one for one in [*FOREIGN_ALONE, *FOREIGN] if one.client == era]
        columns.sort(key=lambda one: (list(FIXTURES).index(one.fixture), not one.is_alone))
        titles = [f"{FIXTURES[one.fixture].title}{' alone' if one.is_alone else ', Interlock'}" for one in columns]
        parts += [f"### Clients of {REQUIREMENTS[era]}, fixtures of others", table(columns, titles, trials)]
    parts += ["### What fails with fixtures of others, and why"]
    lines = [line for one in FOREIGN for line in foreign_reasons(one, trials[one.name])]
    return [*parts, "\n".join(lines)]


def foreign_reasons(trial: Foreign, results: dict[str, dict[str, Any]]) -> list[str]:
    """Every check that fails, those of one reason together."""
    known, found = verdict.expected(trial.known_as), dict[str, list[str]]()
    for name, scenario in sorted(results.items()):
        for check in sorted(failed(scenario)) if verdict.is_judged(trial, name) else ():
            reason = known.get(name, {}).get(check, "It fails with the fixture alone too.")
            found.setdefault(reason, []).append(f"{name}, `{check}`" if check != name else f"`{check}`")
    return [f"- {trial.title}. {reason} {'; '.join(checks)}" for reason, checks in found.items()]


def others() -> list[str]:
    npm = [f"{name} {version}" for name, version in toolbox.PACKAGES.items() if is_server(name)]
    pypi = [one.replace("==", " ") for one in (*toolbox.LEGACY_SERVERS, *toolbox.MODERN_SERVERS)]
    sdks = [f"{name} {toolbox.PACKAGES[name]}" for name in toolbox.PACKAGES if name.endswith(CLIENTS)]
    libraries = [one.replace("==", " ") for one in (*toolbox.LEGACY_LIBRARIES, *toolbox.MODERN_LIBRARIES)]
    return [
        "These servers stand behind one node. Every tool is listed to clients of either era as the server itself "
        "defines it (a 2026-07-28 client does not see `execution`, which that revision has not), and a call of each is "
        "answered as by the server alone.",
        "\n".join(f"- `{one}`" for one in [*npm, *pypi]),
        "These clients use one node. Each lists, calls and reads the text of a held call. All but the inspector, "
        "openai-agents and mcp-use hear progress, and all but the inspector and openai-agents answer a server's "
        "question.",
        "\n".join(f"- `{one}`" for one in [f"mcp {toolbox.SDK_V1}", f"mcp {toolbox.SDK_V2}", *sdks, *libraries]),
    ]


def is_server(package: str) -> bool:
    scope, _, name = package.partition("/")
    return scope != "@modelcontextprotocol" or name.startswith("server-")


def heading(cell: Cell) -> str:
    return WAYS[cell.way].format(cell.server)


def totals(trials: Results) -> str:
    lines = ["| | legacy server | modern server |", "|---|---|---|"]
    for client, way in product(ERAS, ("http", "stdio", "prefixed")):
        cells = [Cell(client, server, way) for server in ERAS]
        scores = [total(cell, trials[cell.name]) for cell in cells]
        lines.append(f"| {client} client, {way} | {' | '.join(scores)} |")
    return "\n".join(lines)


def total(cell: Cell, results: dict[str, dict[str, Any]]) -> str:
    judged = [one for name, one in results.items() if verdict.is_judged(cell, name)]
    passed = sum(one["passed"] for one in judged)
    return f"{passed}/{passed + sum(len(failed(one)) for one in judged)}"


def table(columns: Sequence[Trial], titles: list[str], trials: Results) -> str:
    results = [trials[trial.name] for trial in columns]
    scenarios = sorted({scenario for one in results for scenario in one})
    lines = [f"| scenario | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for scenario in scenarios:
        judged = [verdict.is_judged(trial, scenario) for trial in columns]
        if any(judged):
            shown = scenario if any(one[scenario]["scored"] for one in results if scenario in one) else f"*{scenario}*"
            scores = [
                score(one[scenario]) if said else "across eras" for one, said in zip(results, judged, strict=True)
            ]
            lines.append(f"| {shown} | {' | '.join(scores)} |")
    return "\n".join(lines)


def score(scenario: dict[str, Any]) -> str:
    wrong = len(failed(scenario))
    if not scenario["passed"] and not wrong:
        return "nothing to check"
    words = f"{scenario['passed']}/{scenario['passed'] + wrong}"
    return f"**{words}**" if wrong else words


def failed(scenario: dict[str, Any]) -> set[str]:
    return {*scenario["failing"], *scenario["warnings"]}


def not_run() -> str:
    lines = []
    for beginning, reason in NOT_RUN.items():
        every = {one for revision in REQUIREMENTS.values() for one in suite.client_scenarios(revision)}
        names = sorted(one for one in every if one.startswith(beginning))
        lines.append(f"- {len(names)} client scenarios, because {reason}: {', '.join(f'`{name}`' for name in names)}")
    return "\n".join(lines)


def reasons(trials: dict[str, Trial]) -> list[str]:
    return [
        f"- {trial.title}: {scenario}, {'the client' if check == CLIENT_EXIT else f'`{check}`'}. {reason}"
        for name, trial in trials.items()
        for scenario, checks in verdict.expected(name).items()
        for check, reason in checks.items()
    ]


def write() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(markdown(verdict.kept()))
