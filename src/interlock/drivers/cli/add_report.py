"""What `interlock add` proposes and did, for a person and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from interlock.ax.protocol.names import normalise
from interlock.catalog.cli.classify import reason
from interlock.cli.terminal.output import Output
from interlock.cli.terminal.text import count, one_line
from interlock.drivers.add import AddedServer
from interlock.drivers.api import DriverSummary
from interlock.drivers.protocol.authoring import SUGGESTED, ToolProposal
from interlock.drivers.protocol.problems import FileProblem


def show_proposals(out: Output, proposals: Sequence[ToolProposal]) -> None:
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


def proposal_lines(proposals: Sequence[ToolProposal]) -> list[str]:
    """Return one line per proposal for stderr, to use when stdout is JSON."""
    return [f"{one_line(each.tool_name)}: {each.tool_class}, {reason(each.by, each.question)}" for each in proposals]


def show_added(out: Output, added: AddedServer, *, state: DriverSummary | None) -> None:
    composed, proposals = added.composed, added.proposals
    driver = composed.driver.driver
    if out.as_json:
        out.json(msgspec.to_builtins(added.describe(state)))
        return
    show_proposals(out, proposals)
    out.line()
    out.line(f"wrote {added.folder} ({count(len(added.files), 'file')})" if added.files else f"{added.folder} stands")
    for line in _problem_lines(added.problems):
        out.line(line)
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


def _problem_lines(problems: Sequence[FileProblem]) -> list[str]:
    """Return one line per kind of problem; further problems of the same kind are only counted."""
    by_code: dict[tuple[str, str], list[FileProblem]] = {}
    for each in problems:
        by_code.setdefault((each.severity, each.code), []).append(each)
    lines = []
    for (severity, _), several in by_code.items():
        more = f" (and {len(several) - 1} more of this kind)" if len(several) > 1 else ""
        lines.append(f"{severity}: {one_line(str(several[0]))}{more}")
    return lines


def _sandbox_lines(sandbox: Mapping[str, Any]) -> list[str]:
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
