"""Output about drivers for the terminal: the table of all drivers, one driver in detail, and the steps of `interlock
add`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from interlock.ax.protocol.names import normalise
from interlock.catalog.cli.classify import reason
from interlock.cli.terminal.drawing import in_columns, labelled_lines
from interlock.cli.terminal.text import count, local_time, one_line, printable
from interlock.drivers.api import (
    DriverDetail,
    DriverExamples,
    Drivers,
    DriverSummary,
    DriverUpdate,
    Problem,
    ServedContract,
)
from interlock.drivers.protocol.authoring import SUGGESTED
from interlock.drivers.protocol.server_name import exposed_segment, server_name

if TYPE_CHECKING:
    from interlock.cli.terminal.output import Output
    from interlock.drivers.add import AddedServer
    from interlock.drivers.protocol.authoring import ToolProposal
    from interlock.drivers.protocol.problems import FileProblem

_STYLES = {
    "ready": "green",
    "partial": "yellow",
    "untrusted": "magenta",
    "unauthed": "magenta",
    "unavailable": "red",
    "rejected": "red",
    "installing": "cyan",
    "checking": "cyan",
}
_DIFFERENCE = {"+": "green", "-": "red", "@": "cyan"}
_SEVERITY = {"error": "red", "warning": "yellow", "note": "dim"}


def draw_update(out: "Output", newer: DriverUpdate) -> None:
    """Print how the newest release of a driver's server differs from the release in use."""
    if newer.candidate is None:
        out.line(f"{one_line(server_name(newer.key))} is the newest: {one_line(newer.to or 'as installed')}")
        return
    width = out.console.width
    lines = [Text(one_line(server_name(newer.key)), style="bold")]
    for number, change in enumerate(newer.changes):
        lines += labelled_lines("changes" if number == 0 else "", one_line(change), width)
    for label, names in (("new tools", newer.added), ("tools gone", newer.removed), ("other tools", newer.changed)):
        if names:
            lines += labelled_lines(label, one_line(", ".join(names)), width, style="yellow")
    if not (newer.added or newer.removed or newer.changed):
        lines += labelled_lines("tools", "as before", width)
    if newer.state != "ready":
        lines += labelled_lines(newer.state, one_line(newer.reason or ""), width, style="red")
    out.draw(*lines)
    for line in newer.difference:
        out.console.print(Text(printable(line, keep="\t"), style=_DIFFERENCE.get(line[:1], "")), soft_wrap=True)


def draw_contract(out: "Output", served: ServedContract) -> None:
    """Print which driver serves a contract, why it was chosen, and why each other driver was not."""
    width = out.console.width
    head = Text.assemble(
        (one_line(served.name), "bold"), "  ", (f"{one_line(served.contract)}@{served.version}", "dim")
    )
    lines = [head, *labelled_lines("file", one_line(served.file), width)]
    if served.ranked:
        first, *others = served.ranked
        lines += labelled_lines("served by", one_line(server_name(first.driver)), width, style="green")
        lines += labelled_lines("because", _BECAUSE.get(served.decided_by, one_line(served.decided_by)), width)
        for number, each in enumerate(others):
            lines += labelled_lines(
                "else" if number == 0 else "", f"{one_line(server_name(each.driver))}, {each.cost_units:g} units", width
            )
    else:
        lines += labelled_lines("served by", f"no driver: {one_line(served.error or 'no_route')}", width, style="red")
    for other in served.rejected:
        rejection = one_line(f"{server_name(other.driver)} in phase {other.phase}: {other.reason} [{other.code}]")
        lines += labelled_lines("not", rejection, width, style="yellow")
    out.draw(*lines)


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


def draw_examples(out: "Output", run: DriverExamples) -> None:
    """Print the outcome of each contract example that was run through a driver."""
    if not run.examples:
        out.remark(f"the contracts of {one_line(server_name(run.key))} have no examples")
        return
    for example in run.examples:
        style = _OUTCOMES.get(example.outcome, "")
        name = one_line(f"{example.contract}: {example.example}")
        out.console.print(
            Text.assemble((f"{example.outcome:<8}", style), name, (f"  by {server_name(example.driver)}", "dim")),
            soft_wrap=True,
        )
        for line in example.difference:
            out.console.print(Text(f"         {one_line(line)}"), soft_wrap=True)
    passed = sum(example.outcome == "passed" for example in run.examples)
    out.line(f"{passed} of {count(len(run.examples), 'example')} passed")


def draw_list(out: "Output", listed: Drivers) -> None:
    for problem in listed.problems:
        out.remark(f"{problem.severity}: {_problem_text(problem)}")
    if not listed.drivers and not listed.drafts:
        out.remark("no drivers; a folder .drivers/ID with a DRIVER.md declares one")
        return
    rows = [[Text(head, style="dim") for head in ("NAME", "STATE", "SERVER", "CONTRACTS", "DRIVER", "WHY")]]
    for driver in listed.drivers:
        server = " ".join(part for part in (driver.server_kind, driver.transport) if part)
        if not driver.sandboxed:
            server += ", no sandbox"
        why = driver.reason or (count(driver.warnings, "warning") if driver.warnings else "")
        rows.append(
            [
                Text(one_line(driver.segment), style="bold"),
                Text(driver.state, style=_STYLES.get(driver.state, "")),
                Text(server or "-"),
                Text(str(len(driver.contracts))),
                Text(_driver_text(driver), style="dim"),
                Text(one_line(why)),
            ]
        )
    for draft in listed.drafts:
        name, id = one_line(exposed_segment(draft.id)), one_line(draft.id)
        finish = Text(f"interlock add {name} finishes it")
        rows.append([Text(name, style="bold"), Text("draft"), Text("-"), Text("-"), Text(id, style="dim"), finish])
    out.draw(*in_columns(rows, width=out.console.width, shrink={5: 24, 4: 12, 0: 12}, right=frozenset((3,))))


def _driver_text(driver: DriverSummary) -> str:
    return one_line(f"{driver.id} {driver.version or ''}".rstrip())


def draw(out: "Output", driver: DriverDetail) -> None:
    width = out.console.width
    lines = [Text.assemble((one_line(driver.segment), "bold"), "  ", (driver.state, _STYLES.get(driver.state, "")))]
    lines += labelled_lines("driver", _driver_text(driver), width)
    if driver.reason:
        lines += labelled_lines("because", one_line(driver.reason), width)
    if driver.description:
        lines += labelled_lines("is", one_line(driver.description), width)
    if driver.server:
        lines += _server_lines(driver, width)
    lines += labelled_lines("folder", f"{one_line(driver.folder)}, {count(len(driver.files), 'file')}", width)
    if driver.accepted is not None:
        acceptance = f"by {one_line(driver.accepted.by)}, {local_time(driver.accepted.at)}"
        lines += labelled_lines("trusted", acceptance if driver.trusted else f"{acceptance}, and changed since", width)
    else:
        lines += labelled_lines("trusted", "by the configuration" if driver.trusted else "not yet", width)
    if driver.changed:
        lines += labelled_lines("changed", one_line(", ".join(driver.changed)), width, style="yellow")
    for problem in driver.problems:
        style = _SEVERITY.get(problem.severity, "")
        lines += labelled_lines(problem.severity, _problem_text(problem), width, style=style)
    out.draw(*lines)
    for line in driver.difference:
        out.console.print(Text(printable(line, keep="\t"), style=_DIFFERENCE.get(line[:1], "")), soft_wrap=True)


def _server_lines(driver: DriverDetail, width: int) -> list[Text]:
    """Return the lines that describe how a driver's server is started and what it may access."""
    server = driver.server
    command = [str(server[key]) for key in ("path", "package", "image", "url") if key in server]
    if server.get("version"):
        command[0] += f"@{server['version']}"
    command += [str(each) for each in server.get("args", ())]
    lines = labelled_lines(
        "server", one_line(f"{driver.server_kind} over {driver.transport}: {' '.join(command)}"), width
    )
    for key in ("env", "headers", "query"):
        if server.get(key):
            written = ", ".join(f"{name}={value}" for name, value in server[key].items())
            lines += labelled_lines(key, one_line(written), width)
    if driver.install:
        lines += labelled_lines("install", one_line(", ".join(driver.install)), width)
    lines += labelled_lines("sandbox", _sandbox_text(driver), width, style="" if driver.sandboxed else "red")
    if "driver.py" in driver.files:
        lines += labelled_lines("hooks", "driver.py is run, in a sandbox of its own without network", width)
    no_host = "the host of its address" if driver.server_kind == "remote" else "none"
    lines += labelled_lines("network", one_line(", ".join(driver.egress)) or no_host, width)
    if driver.secrets:
        secrets = (
            f"{name} = {slug}" if slug else f"{name} (described nowhere)" for name, slug in driver.secrets.items()
        )
        lines += labelled_lines("secrets", one_line(", ".join(secrets)), width)
    if driver.policy_tags:
        lines += labelled_lines("tags", one_line(", ".join(driver.policy_tags)), width)
    version = driver.running.protocol_version if driver.running is not None else None
    spoken = f", and {one_line(version)} is spoken" if version else ""
    lines += labelled_lines("speaks", f"MCP {driver.protocol_version}{spoken}", width)
    ended = driver.running.ended if driver.running is not None else None
    if ended:
        lines += labelled_lines("ended", one_line(ended), width, style="yellow")
    if ended or driver.state not in ("ready", "partial"):
        for number, words in enumerate(driver.running.last_words if driver.running is not None else ()):
            lines += labelled_lines("last words" if number == 0 else "", one_line(words), width, style="dim")
    if driver.extension_keys:
        lines += labelled_lines("extensions", one_line(", ".join(driver.extension_keys)), width)
    for number, binding in enumerate(driver.bindings):
        version = f"@{binding.version}" if binding.version else ""
        mode = driver.running.modes.get(binding.contract) if driver.running is not None else None
        read = f", results read as {mode}" if mode else ""
        text = one_line(f"{binding.contract}{version} by {binding.tool_name}{read}")
        lines += labelled_lines("contracts" if number == 0 else "", text, width)
    return lines


def _sandbox_text(driver: DriverDetail) -> str:
    if not driver.sandboxed:
        return "off, by drivers.sandbox of the configuration"
    if driver.server_kind == "remote":
        return "none: it runs elsewhere"
    block = driver.sandbox or {}
    permissions = [
        f"{use} {', '.join(block['fs'][use])}" for use in ("read", "write", "deny") if (block.get("fs") or {}).get(use)
    ]
    programs = block.get("exec") or {}
    if programs.get("allow"):
        permissions.append("starts any program")
    elif programs.get("spawn"):
        permissions.append(f"starts {', '.join(programs['spawn'])}")
    if (block.get("env") or {}).get("pass"):
        permissions.append(f"sees {', '.join(block['env']['pass'])}")
    return one_line("; ".join(permissions)) or "its own files and the paths among its arguments"


def _problem_text(problem: Problem) -> str:
    place = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    field = f"{problem.field}: " if problem.field else ""
    return one_line(f"{place}: {field}{problem.message}; {problem.hint} [{problem.code}]")


def show_proposals(out: "Output", proposals: "Sequence[ToolProposal]") -> None:
    from rich.text import Text

    from interlock.cli.terminal.drawing import in_columns

    rows = [[Text(head, style="dim") for head in ("TOOL", "CONTRACT", "CLASS", "BECAUSE")]]
    for each in proposals:
        contract = each.contract_id if each.is_new else f"{each.contract_id} (is there)"
        cells = (
            Text(one_line(each.tool_name), style="bold"),
            Text(contract),
            Text(each.tool_class),
            Text(reason(each.by, each.question), style="yellow" if each.question else ""),
        )
        rows.append(list(cells))
    out.draw(*in_columns(rows, width=out.console.width, shrink={3: 12, 1: 16, 0: 16}))


def proposal_lines(proposals: "Sequence[ToolProposal]") -> list[str]:
    """Return one line per proposed tool, to print on stderr when stdout is JSON."""
    return [f"{one_line(each.tool_name)}: {each.tool_class}, {reason(each.by, each.question)}" for each in proposals]


def show_added(out: "Output", added: "AddedServer", *, state: DriverSummary | None) -> None:
    """Print the result of `interlock add`. `state` is the driver after an attempt to trust it, None with --no-trust."""
    composed, proposals = added.composed, added.proposals
    driver = composed.driver.driver
    if out.as_json:
        out.json(msgspec.to_builtins(added.describe(state)))
        return
    show_proposals(out, proposals)
    out.line()
    out.line(f"wrote {added.folder} ({count(len(added.files), 'file')})" if added.files else f"{added.folder} stands")
    by_code: dict[tuple[str, str], list[FileProblem]] = {}  # one line per kind of problem
    for problem in added.problems:
        by_code.setdefault((problem.severity, problem.code), []).append(problem)
    for (severity, _), several in by_code.items():
        more = f" (and {len(several) - 1} more of this kind)" if len(several) > 1 else ""
        out.line(f"{severity}: {one_line(str(several[0]))}{more}")
    for review in composed.reviews:
        out.line(f"review: {one_line(review)}")
    for line in _sandbox_lines(added.sandbox):
        out.line(line)
    open_ = [each for each in proposals if each.by in SUGGESTED and each.question is None]
    if open_:
        remark = f"{count(len(open_), 'tool')} without a class: the first call of each waits for your decision"
        out.advice(f"open: {remark} (interlock approvals)")
    if state is None:
        out.advice(f"not trusted yet: interlock drivers trust {driver.segment}")
    elif not state.trusted:
        steps = f"start the node with interlock serve, then interlock drivers trust {driver.segment}"
        out.advice(f"{driver.segment} is written, and waits for an approver's signature: {steps}")
    elif state.state == "stopped":
        out.advice(f"{driver.segment} is trusted and starts with the node: interlock serve")
    else:
        out.line(f"{driver.segment} is trusted, and the node has it: {state.state}")
    fresh = next((each.tool_name for each in proposals if each.is_new), None)
    if state is not None and state.trusted and fresh is not None:
        out.advice(f"try: interlock tools show {driver.segment}.{normalise(fresh)}")


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
    lines = [f"sandbox: writes {', '.join([*sandbox['write'], home])}"]
    if sandbox["read"]:
        lines.append(f"         reads {', '.join(sandbox['read'])}")
    lines.append(f"         reaches {', '.join(sandbox['egress']) or 'no host'}")
    if sandbox["programs"]:
        lines.append(f"         starts {', '.join(sandbox['programs'])}")
    return lines
