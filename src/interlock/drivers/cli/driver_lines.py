"""Output about drivers for the terminal: the table of all drivers, one driver in detail, and the steps of `interlock
add`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from interlock.ax.protocol.names import normalise
from interlock.catalog.cli.classify import reason
from interlock.cli.terminal.drawing import Details
from interlock.cli.terminal.text import count, local_time, one_line
from interlock.drivers import api
from interlock.drivers.protocol.authoring import SUGGESTED
from interlock.drivers.protocol.server_name import exposed_segment, server_name

if TYPE_CHECKING:
    from interlock.cli.terminal.output import Output
    from interlock.drivers.protocol.authoring import ToolProposal

_STYLES = {"ready": "green", "partial": "yellow", "untrusted": "magenta", "unauthed": "magenta"}
_STYLES |= {"unavailable": "red", "rejected": "red", "installing": "cyan", "checking": "cyan"}
_DIFFERENCE = {"+": "green", "-": "red", "@": "cyan"}
_SEVERITY = {"error": "red", "warning": "yellow", "note": "dim"}


class _Labelled(Details):
    """Labelled lines about a driver or contract. All texts are untrusted."""

    def __init__(self, out: "Output", *head: tuple[str, str]) -> None:
        """Start with a head line made of these texts, each with its style."""
        super().__init__(Text("  ").join(Text(one_line(text), style=style) for text, style in head), out.console.width)
        self._out = out

    def draw(self, difference: Sequence[str] = ()) -> None:
        """Print the lines, and below them the coloured lines of a unified diff."""
        self._out.draw(*self)
        for line in difference:
            style = _DIFFERENCE.get(line[:1], "")
            self._out.console.print(Text(line, style=style), soft_wrap=True)


def draw_update(out: "Output", newer: api.DriverUpdate) -> None:
    """Print how the newest release of a driver's server differs from the release in use."""
    if newer.candidate is None:
        out.line(f"{server_name(newer.key)} is the newest: {newer.to or 'as installed'}")
        return
    lines = _Labelled(out, (server_name(newer.key), "bold"))
    lines.add("changes", *newer.changes)
    lines.add("new tools", ", ".join(newer.added), style="yellow")
    lines.add("tools gone", ", ".join(newer.removed), style="yellow")
    lines.add("other tools", ", ".join(newer.changed), style="yellow")
    if not (newer.added or newer.removed or newer.changed):
        lines.add("tools", "as before")
    if newer.state != "ready":
        lines.add(newer.state, newer.reason or " ", style="red")
    lines.draw(newer.difference)


def draw_contract(out: "Output", served: api.ServedContract) -> None:
    """Print which driver serves a contract, why it was chosen, and why each other driver was not."""
    lines = _Labelled(out, (served.name, "bold"), (f"{served.contract}@{served.version}", "dim"))
    lines.add("file", served.file)
    if served.ranked:
        first, *others = served.ranked
        lines.add("served by", server_name(first.driver), style="green")
        lines.add("because", _BECAUSE.get(served.decided_by, served.decided_by))
        lines.add("else", *(f"{server_name(each.driver)}, {each.cost_units:g} units" for each in others))
    else:
        lines.add("served by", f"no driver: {served.error or 'no_route'}", style="red")
    for other in served.rejected:
        rejection = f"{server_name(other.driver)} in phase {other.phase}: {other.reason} [{other.code}]"
        lines.add("not", rejection, style="yellow")
    lines.draw()


_BECAUSE = {
    "pin": "drivers.pins of the configuration names it",
    "only": "no other driver could",
    "default_implementation": "the contract prefers it",
    "cost": "it costs least",
    "kind": "of its kind",
    "health": "its health was checked last",
    "id": "its id comes first, and nothing else decides",
}
_OUTCOMES = {"passed": "green", "failed": "red", "held": "magenta", "skipped": "dim"}


def draw_examples(out: "Output", run: api.DriverExamples) -> None:
    """Print the outcome of each contract example that was run through a driver."""
    if not run.examples:
        out.remark(f"the contracts of {server_name(run.key)} have no examples")
        return
    for example in run.examples:
        outcome = (f"{example.outcome:<8}", _OUTCOMES.get(example.outcome, ""))
        name = one_line(f"{example.contract}: {example.example}")
        by = (f"  by {server_name(example.driver)}", "dim")
        out.console.print(Text.assemble(outcome, name, by), soft_wrap=True)
        for line in example.difference:
            out.console.print(Text(f"         {one_line(line)}"), soft_wrap=True)
    passed = sum(example.outcome == "passed" for example in run.examples)
    out.line(f"{passed} of {count(len(run.examples), 'example')} passed")


def draw_list(out: "Output", listed: api.Drivers) -> None:
    for problem in listed.problems:
        out.remark(f"{problem.severity}: {_problem_text(problem)}")
    if not listed.drivers and not listed.drafts:
        out.remark("no drivers; a folder .drivers/ID with a DRIVER.md declares one")
        return
    rows: list[tuple[str | tuple[str, str], ...]] = []
    for driver in listed.drivers:
        server = " ".join(part for part in (driver.server_kind, driver.transport) if part)
        server += "" if driver.sandboxed else ", no sandbox"
        why = driver.reason or (count(driver.warnings, "warning") if driver.warnings else "")
        state = (driver.state, _STYLES.get(driver.state, ""))
        contracts = str(len(driver.contracts))
        rows.append(((driver.segment, "bold"), state, server or "-", contracts, (_driver_text(driver), "dim"), why))
    for draft in listed.drafts:
        name = exposed_segment(draft.id)
        finish = f"interlock add {one_line(name)} finishes it"
        rows.append(((name, "bold"), "draft", "-", "-", (draft.id, "dim"), finish))
    heads = "NAME|STATE|SERVER|CONTRACTS|DRIVER|WHY"
    out.draw_table(heads, rows, shrink={5: 24, 4: 12, 0: 12}, right=frozenset((3,)))


def _driver_text(driver: api.DriverSummary) -> str:
    return f"{driver.id} {driver.version or ''}".rstrip()


def draw(out: "Output", driver: api.DriverDetail) -> None:
    lines = _Labelled(out, (driver.segment, "bold"), (driver.state, _STYLES.get(driver.state, "")))
    lines.add("driver", _driver_text(driver))
    lines.add("because", driver.reason or "")
    lines.add("is", driver.description)
    if driver.server:
        _add_server_lines(lines, driver)
    lines.add("folder", f"{driver.folder}, {count(len(driver.files), 'file')}")
    if driver.accepted is not None:
        acceptance = f"by {driver.accepted.by}, {local_time(driver.accepted.at)}"
        lines.add("trusted", acceptance if driver.trusted else f"{acceptance}, and changed since")
    else:
        lines.add("trusted", "by the configuration" if driver.trusted else "not yet")
    lines.add("changed", ", ".join(driver.changed), style="yellow")
    for problem in driver.problems:
        lines.add(problem.severity, _problem_text(problem), style=_SEVERITY.get(problem.severity, ""))
    lines.draw(driver.difference)


def _add_server_lines(lines: _Labelled, driver: api.DriverDetail) -> None:
    """Add the lines that describe how a driver's server is started and what it may access."""
    server, running = driver.server, driver.running
    command = [str(server[key]) for key in ("path", "package", "image", "url") if key in server]
    if server.get("version"):
        command[0] += f"@{server['version']}"
    command += [str(each) for each in server.get("args", ())]
    lines.add("server", f"{driver.server_kind} over {driver.transport}: {' '.join(command)}")
    for key in ("env", "headers", "query"):
        lines.add(key, ", ".join(f"{name}={value}" for name, value in (server.get(key) or {}).items()))
    lines.add("install", ", ".join(driver.install))
    lines.add("sandbox", _sandbox_text(driver), style="" if driver.sandboxed else "red")
    if "driver.py" in driver.files:
        lines.add("hooks", "driver.py is run, in a sandbox of its own without network")
    no_host = "the host of its address" if driver.server_kind == "remote" else "none"
    lines.add("network", ", ".join(driver.egress) or no_host)
    secrets = (f"{name} = {slug}" if slug else f"{name} (described nowhere)" for name, slug in driver.secrets.items())
    lines.add("secrets", ", ".join(secrets))
    lines.add("tags", ", ".join(driver.policy_tags))
    spoken = f", and {running.protocol_version} is spoken" if running is not None and running.protocol_version else ""
    lines.add("speaks", f"MCP {driver.protocol_version}{spoken}")
    if running is not None:
        lines.add("ended", running.ended or "", style="yellow")
        if running.ended or driver.state not in ("ready", "partial"):
            lines.add("last words", *running.last_words, style="dim")
    lines.add("extensions", ", ".join(driver.extension_keys))
    modes = running.modes if running is not None else {}
    bindings = []
    for binding in driver.bindings:
        version = f"@{binding.version}" if binding.version else ""
        read = f", results read as {modes[binding.contract]}" if modes.get(binding.contract) else ""
        bindings.append(f"{binding.contract}{version} by {binding.tool_name}{read}")
    lines.add("contracts", *bindings)


def _sandbox_text(driver: api.DriverDetail) -> str:
    if not driver.sandboxed:
        return "off, by drivers.sandbox of the configuration"
    if driver.server_kind == "remote":
        return "none: it runs elsewhere"
    fs, programs, env = ((driver.sandbox or {}).get(key) or {} for key in ("fs", "exec", "env"))
    permissions = [f"{use} {', '.join(fs[use])}" for use in ("read", "write", "deny") if fs.get(use)]
    if programs.get("allow"):
        permissions.append("starts any program")
    elif programs.get("spawn"):
        permissions.append(f"starts {', '.join(programs['spawn'])}")
    if env.get("pass"):
        permissions.append(f"sees {', '.join(env['pass'])}")
    return "; ".join(permissions) or "its own files and the paths among its arguments"


def _problem_text(problem: api.Problem) -> str:
    place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    field = f"{problem.field}: " if problem.field else ""
    return one_line(f"{place}: {field}{problem.message}; {problem.hint} [{problem.code}]")


def show_proposals(out: "Output", proposals: "Sequence[ToolProposal | api.AddedTool]") -> None:
    rows = []
    for each in proposals:
        contract = each.contract_id if each.is_new else f"{each.contract_id} (is there)"
        why = (reason(each.by, each.question), "yellow" if each.question else "")
        rows.append(((each.tool_name, "bold"), contract, each.tool_class, why))
    out.draw_table("TOOL|CONTRACT|CLASS|BECAUSE", rows, shrink={3: 12, 1: 16, 0: 16})


def show_added(out: "Output", added: api.AddedDriver, *, state: api.DriverSummary | None) -> None:
    """Print the result of `interlock add`. `state` is the driver after an attempt to trust it, None with --no-trust."""
    if out.as_json:
        now = {} if state is None else {"trusted": state.trusted, "state": state.state}
        out.json({**msgspec.to_builtins(added), **now})
        return
    show_proposals(out, added.tools)
    out.line()
    out.line(f"wrote {added.folder} ({count(len(added.files), 'file')})" if added.files else f"{added.folder} stands")
    by_code: dict[tuple[str, str], list[api.Problem]] = {}  # one line per kind of problem
    for problem in added.problems:
        by_code.setdefault((problem.severity, problem.code), []).append(problem)
    for (severity, _), several in by_code.items():
        more = f" (and {len(several) - 1} more of this kind)" if len(several) > 1 else ""
        out.line(f"{severity}: {_problem_text(several[0])}{more}")
    for review in added.reviews:
        out.line(f"review: {review}")
    segment = exposed_segment(added.id)
    for line in _sandbox_lines(added.sandbox):
        out.line(line)
    open_ = [each for each in added.tools if each.by in SUGGESTED and each.question is None]
    if open_:
        remark = f"{count(len(open_), 'tool')} without a class: the first call of each waits for your decision"
        out.advice(f"open: {remark} (interlock approvals)")
    if state is None:
        out.advice(f"not trusted yet: interlock drivers trust {segment}")
    elif not state.trusted:
        steps = f"start the node with interlock serve, then interlock drivers trust {segment}"
        out.advice(f"{segment} is written, and waits for an approver's signature: {steps}")
    elif state.state == "stopped":
        out.advice(f"{segment} is trusted and starts with the node: interlock serve")
    else:
        out.line(f"{segment} is trusted, and the node has it: {state.state}")
    fresh = next((each.tool_name for each in added.tools if each.is_new), None)
    if state is not None and state.trusted and fresh is not None:
        out.advice(f"try: interlock tools show {segment}.{normalise(fresh)}")


def _sandbox_lines(sandbox: "Mapping[str, Any]") -> list[str]:
    """Return the lines that describe what a server can access. `sandbox` is the result of `describe_sandbox`."""
    match sandbox.get("kind"):
        case None:
            return []
        case "none" | "off":
            return [f"sandbox: none; {sandbox['reason']}"]
        case "container":
            return [f"sandbox: its container; it reaches {', '.join(sandbox['egress']) or 'no host'}"]
    home = f"its own home {sandbox['home']}"
    reads, starts = (", ".join(sandbox[key]) for key in ("read", "programs"))
    return [
        f"sandbox: writes {', '.join([*sandbox['write'], home])}",
        *([f"         reads {reads}"] if reads else []),
        f"         reaches {', '.join(sandbox['egress']) or 'no host'}",
        *([f"         starts {starts}"] if starts else []),
    ]
