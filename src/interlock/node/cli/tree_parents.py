"""What stands above a node: the lines of `interlock status` about its parents (MCP-AX 13.3).

Pure apart from rich's types: parents in, lines of styled text out.
"""

import textwrap
from datetime import datetime

from rich.text import Text

from interlock.ax.api import Parent
from interlock.cli.terminal.columns import GAP
from interlock.cli.terminal.text import count, one_line, since
from interlock.node.cli.budgets import budget_style, budget_text

_STYLES = {"registered": "green", "connecting": "cyan", "waiting": "red", "standby": "dim", "stopped": "dim"}


def parent_lines(parents: tuple[Parent, ...], *, width: int, now: datetime, ascii_only: bool) -> list[Text]:
    lines = []
    several = len({parent.tree for parent in parents}) > 1
    for parent in parents:
        style = _STYLES.get(parent.state, "")
        age = since(parent.since, now)
        lines.append(
            Text.assemble(
                ("^ " if ascii_only else "↑ ", style),
                (one_line(parent.url), "cyan"),
                GAP,
                (one_line(parent.state), style),
                f" as {one_line(parent.assigned_segment)}" if parent.assigned_segment else "",
                f" in {one_line(parent.tree)}" if several else "",
                (f"{GAP}for {age}" if age else "", "dim"),
            )
        )
        remarks = []
        if parent.reason and parent.state != "registered":
            remarks.append((one_line(parent.reason), "red" if parent.state == "waiting" else "dim"))
            if parent.next_step:
                remarks.append((one_line(parent.next_step), "dim"))
        remarks += [(said, "yellow") for said in _not_listed(parent)]
        if parent.secure_by:
            remarks.append((f"secure by {one_line(parent.secure_by)}", "dim"))
        if parent.budget:
            remarks.append((f"it gave us {budget_text(parent.budget)}", budget_style(parent.budget)))
        for text, said in remarks:
            wrapped = textwrap.wrap(text, max(20, width - len(GAP)), break_on_hyphens=False)
            lines += [Text(f"{GAP}{line}", style=said) for line in wrapped]
    return lines


def _not_listed(parent: Parent) -> list[str]:
    """One line per reason; what the parent gave none for is counted."""
    by_reason = sorted(parent.not_listed_because.items(), key=lambda each: -each[1])
    lines = [f"it does not list {count(number, 'tool')} of ours: {one_line(reason)}" for reason, number in by_reason]
    if unexplained := parent.not_listed - sum(parent.not_listed_because.values()):
        more = "more " if lines else ""
        lines.append(f"it does not list {unexplained} {more}of ours and names no reason")
    return lines
