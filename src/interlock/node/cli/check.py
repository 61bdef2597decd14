"""The verb `interlock check`: one way in for everything that can be checked before a node runs.

PATH decides what is checked: a configuration, a driver (a folder or a Markdown file), or the description of a device.
Options that do not fit what is checked are refused. Imports are inside the functions, so that a check of one kind does
not load what the others need.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from interlock.cli.command import Invocation, problem_value, read_configuration, verb, verb_app
from interlock.cli.terminal.errors import EXIT_REFUSED, BadUsage
from interlock.cli.terminal.text import count, one_line

if TYPE_CHECKING:
    from interlock.config.load import Loaded, Problem
    from interlock.links.api import Link

    Links = tuple[Link, ...]

app = verb_app("Check the configuration.")


@verb(app, "check")
def check(
    invocation: Invocation,
    path: Annotated[str | None, typer.Argument(metavar="PATH")] = None,
    effective: Annotated[bool, typer.Option("--effective")] = False,
    schema: Annotated[bool, typer.Option("--schema")] = False,
    strict: Annotated[bool, typer.Option("--strict")] = False,
    upstream: Annotated[bool, typer.Option("--upstream")] = False,
    against: Annotated[str | None, typer.Option("--against", metavar="OLD", show_default=False)] = None,
    aql: Annotated[bool, typer.Option("--aql")] = False,
    evidence: Annotated[str | None, typer.Option("--evidence", metavar="DIR", show_default=False)] = None,
) -> None:
    """Find the mistakes in the configuration and in driver files.

    Each is shown with its file, its line and what was probably meant. Warnings name what the node can run without: a
    program, script or folder that is not there, tools whose names collide.

    Options:
        path: The file to check, if not the usual one; or a driver's folder or file, or a device's description.
        effective: Print every setting as it will apply.
        schema: Print the JSON Schema of the file, for editors.
        strict: Warnings count as errors.
        upstream: Start or dial every server too, and report what only they can tell; of driver files, also what other
            hosts would refuse.
        against: Compare a driver with an older one.
        aql: Run the conformance suite of MCP-AQL against the AQL surface that the configuration gives.
        evidence: With --aql: write every request and answer there.

    Examples:
        interlock check
        interlock check staging.toml --strict
        interlock check --upstream
        interlock check .drivers/filesystem-mcp --against ../released/filesystem-mcp
        interlock check .devices/thermostat.toml
        interlock check --effective
        interlock check --schema > interlock.schema.json
        interlock check --aql
        interlock check --aql --evidence evidence --json
    """
    if evidence is not None and not aql:
        raise BadUsage("usage", "--evidence is what --aql has seen: ask for both")
    if aql and (schema or effective or strict or upstream or against is not None):
        raise BadUsage("usage", "--aql runs a suite of its own: beside it go PATH, --evidence and --json alone")
    if schema and (effective or upstream or path):
        raise BadUsage("usage", "--schema is about every file and takes neither PATH nor --effective or --upstream")
    if effective and upstream:
        raise BadUsage("usage", "--effective prints settings and --upstream looks at servers: ask for one of them")
    if schema:
        from interlock.config.schema import json_schema

        invocation.out.json(json_schema())
        return
    if not aql and path is not None and (path.endswith(".md") or Path(path).is_dir()):
        if effective:
            raise BadUsage("usage", "--effective is about the configuration, and takes no driver")
        _check_driver(invocation, path, strict=strict, upstream=upstream, against=against)
        return
    if against is not None:
        raise BadUsage("usage", "--against compares one driver: name its folder too")
    if not aql and path is not None and _is_description(Path(path)):
        if effective or upstream:
            raise BadUsage("usage", "--effective and --upstream are about the configuration, and take no device")
        _check_device(invocation, Path(path))
        return
    if path is not None and invocation.config is not None:
        raise BadUsage("usage", "name the file once: either PATH or --config")
    invocation.config = path or invocation.config
    if aql:
        from interlock.aql.cli.check import check_aql

        check_aql(invocation, evidence)
        return
    _check(invocation, effective=effective, strict=strict, upstream=upstream)


def _is_description(path: Path) -> bool:
    """Return whether a file describes a device, and is not a configuration."""
    from interlock.config.load import DEVICE_FOLDER

    if path.suffix != ".toml" or not path.is_file():
        return False
    if path.absolute().parent.name == DEVICE_FOLDER:
        return True
    from interlock.config.layers import file_layer
    from interlock.config.problems import Findings

    layer = file_layer(path, Findings(), None)
    return layer is not None and "profile" in layer.tree and isinstance(layer.tree.get("link"), dict)


def _check_device(invocation: Invocation, path: Path) -> None:
    from interlock.config.load import read_device_file

    read = read_device_file(path)
    problems = read if isinstance(read, tuple) else ()
    _report(invocation, errors=problems, warnings=(), ok=not problems)
    if isinstance(read, tuple):
        raise typer.Exit(EXIT_REFUSED)
    if not invocation.out.as_json:
        invocation.out.line(f"{path}: in order, profile {read.profile}, {count(len(read.tools), 'tool')}")


def _check_driver(invocation: Invocation, path: str, *, strict: bool, upstream: bool, against: str | None) -> None:
    """Check one driver, and print what was found. The configuration around it may be invalid."""
    from interlock.config.load import ConfigInvalid
    from interlock.config.plan import Plan
    from interlock.drivers.cli.folder_check import check_drivers

    try:
        plan = read_configuration(invocation, starting=False).plan
    except ConfigInvalid:
        plan = Plan(workspace=Path.cwd(), data=Path.cwd() / ".interlock")
    checked = check_drivers(plan, path, upstream=upstream, against=against)
    failed = bool(checked.errors) or (strict and bool(checked.warnings))
    _report(invocation, errors=checked.errors, warnings=checked.warnings, ok=not failed, notes=checked.notes)
    if failed:
        raise typer.Exit(EXIT_REFUSED)
    if not invocation.out.as_json:
        state = f"usable, {count(len(checked.warnings), 'warning')}" if checked.warnings else "in order"
        invocation.out.line(f"{path}: {state}")


def _check(invocation: Invocation, *, effective: bool, strict: bool, upstream: bool) -> None:
    """Check the configuration, and print what was found."""
    from interlock.config.effective import effective as effective_values
    from interlock.config.load import ConfigInvalid
    from interlock.config.plan import Spawn
    from interlock.drivers.workspace.scan import scan_workspace
    from interlock.node.cli.machine import is_sandboxed, list_tokens, missing_on_machine, unmatched_principals

    out = invocation.out
    try:
        loaded = read_configuration(invocation)
    except ConfigInvalid as invalid:
        _report(invocation, errors=invalid.problems, warnings=())
        raise typer.Exit(EXIT_REFUSED) from None
    warnings = (*loaded.warnings, *missing_on_machine(loaded))
    if loaded.plan.safety.require:
        warnings += tuple(unmatched_principals(loaded, list_tokens(invocation)))
    scan = scan_workspace(loaded.plan)
    drivers = None  # whose checks are imported only if there are any
    if scan.folders or scan.contracts or scan.problems:
        from interlock.drivers.cli.folder_check import check_drivers

        drivers = check_drivers(loaded.plan, None, upstream=upstream, against=None)
    errors = drivers.errors if drivers is not None else ()
    warnings += drivers.warnings if drivers is not None else ()
    survey = None
    if upstream:
        from interlock.node.cli.upstream import survey_of, warnings_of

        if not out.as_json and sys.stderr.isatty():
            out.remark(f"asking {count(len(loaded.plan.servers), 'server')}")
        survey = survey_of(loaded)
        warnings += warnings_of(survey, loaded, warnings)
    failed = bool(errors) or (strict and bool(warnings))
    if effective and not failed:
        for warning in warnings:
            out.remark(f"warning: {warning}")
        values = effective_values(loaded.plan)
        if out.as_json or not out.console.is_terminal:
            out.json(values)
        else:
            from rich.json import JSON

            out.console.print(JSON.from_data(values))
        return
    links = survey.links if survey else None
    notes = drivers.notes if drivers is not None else ()
    started = [server for server in loaded.plan.servers if isinstance(server.reach, Spawn)]
    sandboxed = {server.segment: is_sandboxed(server) for server in started}
    _report(invocation, errors=errors, warnings=warnings, ok=not failed, links=links, notes=notes, sandboxed=sandboxed)
    if failed:
        raise typer.Exit(EXIT_REFUSED)
    if not out.as_json:
        out.line(_summary(loaded, len(warnings), links, drivers.drivers if drivers is not None else 0))
        inside = [segment for segment, is_in_sandbox in sandboxed.items() if is_in_sandbox]
        outside = [segment for segment, is_in_sandbox in sandboxed.items() if not is_in_sandbox]
        sentences = [f"in a sandbox: {', '.join(inside)}"] if inside else []
        if outside:
            how = "egress or files puts a server into one"
            sentences.append(f"without a sandbox: {', '.join(outside)} ({how})")
        if sentences:
            out.line("; ".join(sentences))


def _report(
    invocation: Invocation,
    *,
    errors: "tuple[Problem, ...]",
    warnings: "tuple[Problem, ...]",
    ok: bool = False,
    links: "Links | None" = None,
    notes: "tuple[Problem, ...]" = (),
    sandboxed: dict[str, bool] | None = None,
) -> None:
    out = invocation.out
    if out.as_json:
        out.json(
            {
                "ok": ok,
                "problems": [problem_value(problem) for problem in errors],
                "warnings": [problem_value(problem) for problem in warnings],
            }
            | ({} if links is None else {"links": to_builtins(links)})
            | ({} if sandboxed is None else {"sandboxed": sandboxed})
            | ({"notes": [problem_value(problem) for problem in notes]} if notes else {})
        )
        return
    from rich.text import Text

    kinds = ((errors, "error", "bold red"), (warnings, "warning", "bold yellow"), (notes, "note", "dim"))
    for problems, word, style in kinds:
        for problem in problems:
            _draw_problem(invocation, problem, word, style)
    if not ok:
        totals = [
            count(len(problems), noun) for problems, noun in ((errors, "error"), (warnings, "warning")) if problems
        ]
        out.draw(Text(", ".join(totals), style="bold"))


def _draw_problem(invocation: Invocation, problem: "Problem", word: str, style: str) -> None:
    from rich.text import Text

    # Each on one line however long: editors and terminals turn file:line into a link.
    console = invocation.out.console
    head = Text.assemble((problem.prefix, "bold"), (word, style), ": ", one_line(problem.message))
    if problem.code is not None:
        head.append(f" [{problem.code}]", style="dim")
    console.print(head, soft_wrap=True)
    if problem.hint:
        console.print(Text.assemble(("  hint: ", "dim"), one_line(problem.hint)), soft_wrap=True)


def _summary(loaded: "Loaded", warnings: int, links: "Links | None", drivers: int) -> str:
    """Return the last line that a successful check prints: the number of files, servers and warnings."""
    plan, here = loaded.plan, Path.cwd()
    paths = (path.relative_to(here) if path.is_relative_to(here) else path for path in loaded.paths)
    files = " and ".join(map(str, paths)) or "the configuration"
    state = f"usable, {count(warnings, 'warning')}" if warnings else "in order"
    servers = count(len(plan.servers), "server")
    if drivers:
        servers += f", {count(drivers, 'driver')}"
    if plan.devices.described:
        servers += f", {count(len(plan.devices.described), 'device')}"
    if links is not None:
        answering = sum(link.state in ("ready", "slow") for link in links)
        tools = sum(link.tools if link.contracts is None else link.contracts for link in links)
        servers += f", {answering} of {len(links)} answering with {count(tools, 'tool')}"
    return f"{files}: {state}, {servers}, listening on {plan.node.listen}"
