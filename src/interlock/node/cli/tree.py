"""The tree of a node as people see it: its servers, how each stands and why, in as many columns as there are.

Pure apart from rich's types: a `Status` in, lines of styled text out.
"""

import textwrap
from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec import UNSET
from rich.text import Text

from interlock.approvals.api import Approver
from interlock.ax.api import Parent
from interlock.cli.terminal.drawing import GAP, in_columns, total_width
from interlock.cli.terminal.output import shortened_line
from interlock.cli.terminal.text import count, duration, latency, one_line, since
from interlock.drivers.api import IdleDriver
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.links.api import Below, Link
from interlock.links.cli import STATE_STYLES, budget_lines, budget_style, budget_text, state_sign
from interlock.operator.api import NameCounts, NodeFacts, Status

GONE = ("degraded", "failed")

SEGMENT_WIDTH_MIN = 8
DENIED_SHOWN = 3
BRANCH_WIDTH = 5


def approver_step(approvers: tuple[Approver, ...]) -> tuple[str, str]:
    """Return the command with which somebody becomes an approver next, and what it does."""
    waiting = next(
        ((approver.name, approver.approval_id) for approver in approvers if approver.approval_id is not None), None
    )
    if waiting is None:
        return "interlock init", "makes a key"
    name, id = waiting
    command, does = f"interlock approve {id[:8]}", f"enrols {one_line(name)}"
    if any(approver.approves for approver in approvers):
        return command, does
    return f"{command} --code CODE", f"{does}, with the setup code on the terminal of the node"


def _names_told(names: NameCounts) -> Iterator[str]:
    if names.overdue:
        yield f"{count(names.overdue, 'review')} of registered names overdue: interlock names list"
    if names.unconfirmed:
        yield f"{count(names.unconfirmed, 'public name')} to be confirmed: interlock names list --public"


def _approver_text(approver: Approver) -> str:
    """Return the remark about an approver that is not enrolled, or an empty text."""
    name = one_line(approver.name)
    if approver.wants:
        return f"approver {name} is configured and not enrolled: interlock approvals; if it is not yours, remove it"
    return ""


def tree_lines(status: Status, *, width: int, now: datetime, ascii_only: bool = False) -> list[Text]:
    node = status.node
    lines = [
        Text.assemble(
            (one_line(node.name), "bold"),
            GAP,
            (node.mcp_url, "cyan"),
            GAP,
            (f"up {duration(node.uptime_s)}", "dim"),
            *(() if node.replicas is None else (GAP, (f"one of {count(node.replicas, 'replica')}", "dim"))),
        )
    ]
    if node.audit_trouble:
        trouble = f"the audit log cannot be written: {one_line(node.audit_trouble)}"
        lines += [Text(line, style="red") for line in _wrapped_lines(trouble, width)]
    if node.store_trouble:
        trouble = f"{one_line(node.store_trouble)}; what needs it is refused"
        lines += [Text(line, style="red") for line in _wrapped_lines(trouble, width)]
    if node.require_proof == "never":
        trouble = 'ax.require_proof = "never": subservers change things without proof of who they are'
        lines += [Text(line, style="yellow") for line in _wrapped_lines(trouble, width)]
    lines += [Text(line, style="yellow") for told in _changes(status) for line in _wrapped_lines(told, width)]
    if status.gate.without_approver:
        tools = count(status.gate.without_approver, "tool")
        next_step = " ".join(approver_step(status.approvers))
        trouble = f"no one can approve calls yet ({tools} need it): {next_step}"
        lines += [Text(line, style="yellow") for line in _wrapped_lines(trouble, width)]
    if status.loosened:
        told = f"the configuration was loosened, and no approver signed for it: {'; '.join(status.loosened)}"
        lines += [Text(line, style="red") for line in _wrapped_lines(one_line(told), width)]
    for approver in status.approvers:
        lines += [Text(line, style="yellow") for line in _wrapped_lines(_approver_text(approver), width) if line]
    if status.approvals.waiting:
        waits = f"{count(status.approvals.waiting, 'decision')} for you: interlock approvals"
        lines += [Text(line, style="yellow") for line in _wrapped_lines(waits, width)]
    if status.safety.blocked:
        blocked = f"{count(status.safety.blocked, 'agent')} blocked: interlock agents list"
        lines += [Text(line, style="red") for line in _wrapped_lines(blocked, width)]
    for told in _names_told(status.names):
        lines += [Text(line, style="yellow") for line in _wrapped_lines(told, width)]
    for channel, trouble in status.approvals.channels.items():
        text = f"operators are not told by {one_line(channel)}: {one_line(trouble)}"
        lines += [Text(line, style="red") for line in _wrapped_lines(text, width)]
    lines += parent_lines(status.parents, width=width, now=now, ascii_only=ascii_only)
    if not status.links:
        lines += [Text(line, style="dim") for line in _wrapped_lines(_no_servers(node), width)]
    rows = _rows(status.links, width - BRANCH_WIDTH)
    branches = ("|- ", "`- ", "|  ", "   ") if ascii_only else ("├─ ", "└─ ", "│  ", "   ")
    for number, (link, row) in enumerate(zip(status.links, rows, strict=True), start=1):
        is_last = number == len(rows)
        sign = state_sign(link.state, ascii_only=ascii_only)
        branch = Text(branches[1] if is_last else branches[0], style="dim")
        lines.append(Text.assemble(branch, (sign, STATE_STYLES.get(link.state, "")), " ", row))
        stem = Text(branches[3] if is_last else branches[2], style="dim")
        remarks = _remarks(link, width - BRANCH_WIDTH, now)
        remarks += below_lines(link.segment, link.below, width=width - BRANCH_WIDTH, ascii_only=ascii_only)
        lines.extend(Text.assemble(stem, GAP, remark) for remark in remarks)
    for idle in status.idle_drivers:
        lines += [Text(line, style="yellow") for line in _wrapped_lines(_idle_text(idle), width)]
    lines += budget_lines(status.budgets, width=width)
    lines.append(_totals(status, separator=" - " if ascii_only else " · "))
    return lines


def _changes(status: Status) -> list[str]:
    """Return remarks about changes of the configuration that are not in effect."""
    state = status.configuration
    if state is None:
        return []
    remarks = []
    if state.problem:
        remarks.append(f"the changed configuration cannot be used: {one_line(state.problem)}")
    if state.restart_for:
        remarks.append(f"changed, from the next start: {one_line(', '.join(state.restart_for))}")
    return remarks


def _idle_text(driver: IdleDriver) -> str:
    name = one_line(exposed_segment(driver.id))
    if driver.state == "untrusted":
        return f"driver {name} waits for you: interlock drivers trust {name}"
    return f"driver {name} cannot be used: {one_line(driver.reason or driver.state)}; interlock drivers show {name}"


def _no_servers(node: NodeFacts) -> str:
    address = node.url.replace("http", "ws", 1).rstrip("/") + "/ax"
    return (
        f"no servers yet: interlock add npm:PACKAGE, or a [servers.NAME] table, or let subservers register at {address}"
    )


def _rows(links: tuple[Link, ...], width: int) -> list[Text]:
    """Return a line per link. On a narrow terminal the protocol version goes first, then the ends of long segments."""
    rows = [_cells(link, " ".join(part for part in (link.era, link.protocol_version) if part)) for link in links]
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    if total_width(widths) > width:
        rows = [_cells(link, link.era or "") for link in links]
    return in_columns(rows, width=width, shrink={0: SEGMENT_WIDTH_MIN}, right=frozenset((2, 5)))


def _cells(link: Link, era: str) -> list[Text]:
    return [
        Text(one_line(link.segment), style="bold"),
        Text(one_line(link.state), style=STATE_STYLES.get(link.state, "")),
        Text(count(link.tools if link.contracts is None else link.contracts, "tool")),
        Text(_reach(link), style="dim"),
        Text(era, style="dim"),
        Text(latency(link.latency_ms) if link.latency_ms is not None else "", style="dim"),
    ]


def _reach(link: Link) -> str:
    if link.registration is UNSET:
        return link.transport
    return f"{link.transport} {link.kind}" + (f", {count(link.hops, 'hop')}" if link.hops > 1 else "")


def _remarks(link: Link, width: int, now: datetime) -> list[Text]:
    remarks = []
    if link.reason:
        age = since(link.since, now)
        reason = f"{one_line(link.reason)} (for {age})" if age and link.state != "ready" else one_line(link.reason)
        remarks += [Text(line, style=STATE_STYLES.get(link.state, "")) for line in _wrapped_lines(reason, width)]
    if link.state in GONE and link.stderr_lines:
        if link.last_words is not None and link.last_words not in (link.reason or ""):
            remarks.append(Text(shortened_line(f"it wrote: {one_line(link.last_words)}", width), style="dim"))
        note = f"what it wrote: interlock links logs {one_line(link.segment)}"
        remarks += [Text(line, style="dim") for line in _wrapped_lines(note, width)]
    for denied in link.denied[:DENIED_SHOWN]:
        text = f"kept from {one_line(denied.place)}: {one_line(denied.why)}; {one_line(denied.remedy)}"
        remarks += [Text(line, style="yellow") for line in _wrapped_lines(text, width)]
    if len(link.denied) > DENIED_SHOWN:
        rest = count(len(link.denied) - DENIED_SHOWN, "more host")
        remarks.append(Text(shortened_line(f"{rest}: interlock status {link.segment}", width), style="yellow"))
    if link.own:
        owned = [entry.principal for entry in link.own if entry.principal]
        summary = f"{count(len(owned), 'link')} of clients' own, of {count(len(set(owned)), 'principal')}"
        if len(owned) < len(link.own):
            among = count(len(link.own) - len(owned), "link")
            summary = f"{summary}; {among}" if owned else among
            summary += " of clients that can be asked the same"
        remarks += [Text(line, style="dim") for line in _wrapped_lines(summary, width)]
    if link.budget:
        remarks += [
            Text(line, style=budget_style(link.budget))
            for line in _wrapped_lines(f"budget {budget_text(link.budget)}", width)
        ]
    for reason, number in (link.not_listed_because or {}).items():
        note = f"does not offer {count(number, 'tool')} here: {one_line(reason)}"
        remarks += [Text(line, style="dim") for line in _wrapped_lines(note, width)]
    is_untold = link.not_listed_because is None
    if is_untold and link.registration is not UNSET and link.registration.auth_scope == "read":
        who = one_line(link.registration.principal)
        note = f"offers only tools that read: {who} has scope read, which an [[access]] entry may widen"
        remarks += [Text(line, style="dim") for line in _wrapped_lines(note, width)]
    for reason, names in grouped_reasons((entry.reason, entry.name) for entry in link.withheld).items():
        text = f"withheld {named_few(names, 'tool')}: {one_line(reason)}"
        remarks += [Text(line, style="yellow") for line in _wrapped_lines(text, width)]
    return remarks


def _wrapped_lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(20, width), break_on_hyphens=False) or [""]


def _totals(status: Status, separator: str) -> Text:
    catalog, calls = status.catalog, status.calls
    parts = [count(catalog.tools, "tool")]
    parts += [
        count(number, noun) for number, noun in ((catalog.prompts, "prompt"), (catalog.resources, "resource")) if number
    ]
    parts.append(count(calls.total, "call"))
    if calls.failed:
        parts.append(f"{calls.failed} failed")
    if calls.in_flight:
        parts.append(f"{calls.in_flight} in flight")
    if calls.parked:
        parts.append(f"{calls.parked} wait for their clients")
    if status.clients.sessions:
        parts.append(count(status.clients.sessions, "session"))
        parts += [f"{one_line(each)}" for each in status.clients.surfaces if ": flat (" not in each]
    return Text(separator.join(parts), style="dim")


BELOW_SHOWN = 30  # lines; the rest is counted


def below_lines(segment: str, below: tuple[Below, ...], *, width: int, ascii_only: bool) -> list[Text]:
    lines = [_line(node, width, "." if ascii_only else "·") for node in below[:BELOW_SHOWN]]
    if len(below) > BELOW_SHOWN:
        rest = count(len(below) - BELOW_SHOWN, "more segment")
        lines.append(
            Text(shortened_line(f"{rest} below: interlock status {one_line(segment)} --json", width), style="dim")
        )
    return lines


def _line(node: Below, width: int, bullet: str) -> Text:
    facts = [count(node.tools, "tool"), count(node.hops, "hop")]
    if node.latency_class:
        facts.append(node.latency_class)
    troubled = [f"{node.degraded} degraded"] if node.degraded else []
    held = [f"{node.gated} gated"] if node.gated else []
    head = f"{'  ' * (len(node.path) - 1)}{bullet} {one_line(node.path[-1])}"
    return Text.assemble(
        shortened_line(head, max(10, width - 40)),
        (f"  {', '.join(facts)}", "dim"),
        (f", {', '.join(troubled)}" if troubled else "", "yellow"),
        (f", {', '.join(held)}" if held else "", "dim"),
    )


_PARENT_STYLES = {"registered": "green", "connecting": "cyan", "waiting": "red", "standby": "dim", "stopped": "dim"}


def parent_lines(parents: tuple[Parent, ...], *, width: int, now: datetime, ascii_only: bool) -> list[Text]:
    lines = []
    several = len({parent.tree for parent in parents}) > 1
    for parent in parents:
        style = _PARENT_STYLES.get(parent.state, "")
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
        remarks += [(remark_style, "yellow") for remark_style in _unlisted_reasons(parent)]
        if parent.secure_by:
            remarks.append((f"secure by {one_line(parent.secure_by)}", "dim"))
        if parent.budget:
            remarks.append((f"it gave us {budget_text(parent.budget)}", budget_style(parent.budget)))
        for text, remark_style in remarks:
            wrapped = textwrap.wrap(text, max(20, width - len(GAP)), break_on_hyphens=False)
            lines += [Text(f"{GAP}{line}", style=remark_style) for line in wrapped]
    return lines


def _unlisted_reasons(parent: Parent) -> list[str]:
    """Return a line for each reason why a parent does not list tools, and one for tools without a reason."""
    by_reason = sorted(parent.not_listed_because.items(), key=lambda each: -each[1])
    lines = [f"it does not list {count(number, 'tool')} of ours: {one_line(reason)}" for reason, number in by_reason]
    if unexplained := parent.not_listed - sum(parent.not_listed_because.values()):
        more = "more " if lines else ""
        lines.append(f"it does not list {unexplained} {more}of ours and names no reason")
    return lines


NAMES_SHOWN = 3


def grouped_reasons(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return names by reason from pairs of reason and name, beginning with the most common reason."""
    by_reason: dict[str, list[str]] = {}
    for reason, name in pairs:
        by_reason.setdefault(reason, []).append(name)
    return dict(sorted(by_reason.items(), key=lambda each: -len(each[1])))


def named_few(names: list[str], noun: str) -> str:
    """Return a single name, or the number of names with the first of them."""
    if len(names) == 1:
        return one_line(names[0])
    shown = ", ".join(map(one_line, names[:NAMES_SHOWN]))
    return f"{count(len(names), noun)} ({shown}{', ...' if len(names) > NAMES_SHOWN else ''})"
