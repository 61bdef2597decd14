"""The tree of a node as people see it: its servers, the state of each and why, in as many columns as fit.

A `Status` comes in, lines of styled text go out. Apart from rich's types this module is pure. Text from servers,
parents and devices is reduced to one line without control characters (`one_line`) before it is shown, because it is
printed on the terminal of an operator. Every remark names the command that helps.
"""

import textwrap
from collections.abc import Iterable, Iterator
from datetime import datetime

from msgspec import UNSET
from rich.text import Text

from interlock.approvals.api import Approver
from interlock.cli.terminal.drawing import GAP, in_columns, total_width
from interlock.cli.terminal.output import shortened_line
from interlock.cli.terminal.text import count, duration, latency, one_line, since
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.links.api import Below, Link, Parent
from interlock.links.cli import STATE_STYLES, budget_lines, budget_style, budget_text, state_sign
from interlock.operator.api import Status

GONE = ("degraded", "failed")

SEGMENT_WIDTH_MIN = 8
DENIED_SHOWN = 3
BRANCH_WIDTH = 5


def approver_step(approvers: tuple[Approver, ...]) -> tuple[str, str]:
    """Return the next command on the way to the first approver, and what the command does."""
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


def tree_lines(status: Status, *, width: int, now: datetime, ascii_only: bool = False) -> list[Text]:
    """Return the lines that `interlock status` prints: the node with remarks, its parents, its links and totals."""
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
    for text, style in _node_remarks(status):
        lines += _paragraph(text, width, style)
    lines += parent_lines(status.parents, width=width, now=now, ascii_only=ascii_only)
    if not status.links:
        address = node.url.replace("http", "ws", 1).rstrip("/") + "/ax"
        ways = f"interlock add npm:PACKAGE, or a [servers.NAME] table, or let subservers register at {address}"
        lines += _paragraph(f"no servers yet: {ways}", width, "dim")
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
        name = one_line(exposed_segment(idle.id))
        reason = f"driver {name} cannot be used: {one_line(idle.reason or idle.state)}; interlock drivers show {name}"
        if idle.state == "untrusted":
            reason = f"driver {name} waits for you: interlock drivers trust {name}"
        lines += _paragraph(reason, width, "yellow")
    lines += budget_lines(status.budgets, width=width)
    lines.append(_totals(status, separator=" - " if ascii_only else " · "))
    return lines


def _node_remarks(status: Status) -> Iterator[tuple[str, str]]:
    """Yield remarks about the node as a whole, each with a style. Problems are red."""
    node, configuration, names = status.node, status.configuration, status.names
    if node.audit_trouble:
        yield f"the audit log cannot be written: {one_line(node.audit_trouble)}", "red"
    if node.store_trouble:
        yield f"{one_line(node.store_trouble)}; what needs it is refused", "red"
    if node.require_proof == "never":
        yield 'ax.require_proof = "never": subservers change things without proof of who they are', "yellow"
    if configuration is not None and configuration.problem:
        yield f"the changed configuration cannot be used: {one_line(configuration.problem)}", "yellow"
    if configuration is not None and configuration.restart_for:
        yield f"changed, from the next start: {one_line(', '.join(configuration.restart_for))}", "yellow"
    if status.gate.without_approver:
        tools = count(status.gate.without_approver, "tool")
        command, does = approver_step(status.approvers)
        verb = "needs" if status.gate.without_approver == 1 else "need"
        yield f"no one can approve calls yet ({tools} {verb} it). Run {command}: it {does}", "yellow"
    if status.loosened:
        loosened = one_line("; ".join(status.loosened))
        yield f"the configuration would let through more than was signed for: {loosened}", "red"
    for name in (one_line(approver.name) for approver in status.approvers if approver.wants):
        state = "is configured and not enrolled"
        yield f"approver {name} {state}: interlock approvals; if it is not yours, remove it", "yellow"
    if status.approvals.waiting:
        yield f"{count(status.approvals.waiting, 'decision')} for you: interlock approvals", "yellow"
    if status.safety.blocked:
        yield f"{count(status.safety.blocked, 'agent')} blocked: interlock agents list", "red"
    if names.overdue:
        yield f"{count(names.overdue, 'review')} of registered names overdue: interlock names list", "yellow"
    if names.unconfirmed:
        public_names = count(names.unconfirmed, "public name")
        yield f"{public_names} to be confirmed: interlock names list --public", "yellow"
    for channel, trouble in status.approvals.channels.items():
        yield f"operators are not told by {one_line(channel)}: {one_line(trouble)}", "red"


def _rows(links: tuple[Link, ...], width: int) -> list[Text]:
    """Return one line for each link, in columns that fit into `width`.

    If the terminal is narrow, the protocol version is dropped first, then long segments are cut.
    """
    rows = [_cells(link, " ".join(part for part in (link.era, link.protocol_version) if part)) for link in links]
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    if total_width(widths) > width:
        rows = [_cells(link, link.era or "") for link in links]
    return in_columns(rows, width=width, shrink={0: SEGMENT_WIDTH_MIN}, right=frozenset((2, 5)))


def _cells(link: Link, era: str) -> list[Text]:
    """Return the columns of the line about a link: segment, state, number of tools, transport, era and latency."""
    reach = link.transport
    if link.registration is not UNSET:
        reach += f" {link.kind}" + (f", {count(link.hops, 'hop')}" if link.hops > 1 else "")
    return [
        Text(one_line(link.segment), style="bold"),
        Text(one_line(link.state), style=STATE_STYLES.get(link.state, "")),
        Text(count(link.tools if link.contracts is None else link.contracts, "tool")),
        Text(reach, style="dim"),
        Text(era, style="dim"),
        Text(latency(link.latency_ms) if link.latency_ms is not None else "", style="dim"),
    ]


def _remarks(link: Link, width: int, now: datetime) -> list[Text]:
    """Return the lines below a link: why it has its state, and which tools or hosts were refused."""
    remarks: list[Text] = []
    if link.reason:
        age = since(link.since, now)
        reason = f"{one_line(link.reason)} (for {age})" if age and link.state != "ready" else one_line(link.reason)
        remarks += _paragraph(reason, width, STATE_STYLES.get(link.state, ""))
    if link.state in GONE and link.stderr_lines:
        if link.last_words is not None and link.last_words not in (link.reason or ""):
            remarks.append(Text(shortened_line(f"it wrote: {one_line(link.last_words)}", width), style="dim"))
        note = f"what it wrote: interlock links logs {one_line(link.segment)}"
        remarks += _paragraph(note, width, "dim")
    for denied in link.denied[:DENIED_SHOWN]:
        text = f"kept from {one_line(denied.place)}: {one_line(denied.why)}; {one_line(denied.remedy)}"
        remarks += _paragraph(text, width, "yellow")
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
        remarks += _paragraph(summary, width, "dim")
    if link.budget:
        remarks += _paragraph(f"budget {budget_text(link.budget)}", width, budget_style(link.budget))
    for reason, number in (link.not_listed_because or {}).items():
        note = f"does not offer {count(number, 'tool')} here: {one_line(reason)}"
        remarks += _paragraph(note, width, "dim")
    is_untold = link.not_listed_because is None
    if is_untold and link.registration is not UNSET and link.registration.auth_scope == "read":
        who = one_line(link.registration.principal)
        note = f"offers only tools that read: {who} has scope read, which an [[access]] entry may widen"
        remarks += _paragraph(note, width, "dim")
    for reason, names in grouped_reasons((entry.reason, entry.name) for entry in link.withheld).items():
        text = f"withheld {named_few(names, _noun(names))}: {one_line(reason)}"
        remarks += _paragraph(text, width, "yellow")
    for reason, names in grouped_reasons((entry.note, entry.name) for entry in link.changed).items():
        remarks += _paragraph(f"changed {named_few(names, _noun(names))}: {one_line(reason)}", width, "yellow")
    return remarks


def _paragraph(text: str, width: int, style: str) -> list[Text]:
    """Return a text as lines of a style that fit into `width`."""
    return [Text(line, style=style) for line in textwrap.wrap(text, max(20, width), break_on_hyphens=False)]


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
        parts.append(f"{calls.parked} waiting for clients")
    if status.clients.sessions:
        parts.append(count(status.clients.sessions, "session"))
        parts += [f"{one_line(each)}" for each in status.clients.surfaces if ": flat (" not in each]
    return Text(separator.join(parts), style="dim")


BELOW_SHOWN = 30  # lines; the rest is counted


def below_lines(segment: str, below: tuple[Below, ...], *, width: int, ascii_only: bool) -> list[Text]:
    """Return a line for each aggregator or server below a subserver, indented by its depth."""
    bullet = "." if ascii_only else "·"
    lines: list[Text] = []
    for node in below[:BELOW_SHOWN]:
        facts = [count(node.tools, "tool"), count(node.hops, "hop")]
        if node.latency_class:
            facts.append(node.latency_class)
        head = f"{'  ' * (len(node.path) - 1)}{bullet} {one_line(node.path[-1])}"
        lines.append(
            Text.assemble(
                shortened_line(head, max(10, width - 40)),
                (f"  {', '.join(facts)}", "dim"),
                (f", {node.degraded} degraded" if node.degraded else "", "yellow"),
                (f", {node.gated} gated" if node.gated else "", "dim"),
            )
        )
    if len(below) > BELOW_SHOWN:
        rest = count(len(below) - BELOW_SHOWN, "more segment")
        lines.append(
            Text(shortened_line(f"{rest} below: interlock status {one_line(segment)} --json", width), style="dim")
        )
    return lines


_PARENT_STYLES = {"registered": "green", "connecting": "cyan", "waiting": "red", "standby": "dim", "stopped": "dim"}


def parent_lines(parents: tuple[Parent, ...], *, width: int, now: datetime, ascii_only: bool) -> list[Text]:
    """Return a line for each parent aggregator of the node, each followed by remarks."""
    lines: list[Text] = []
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
        remarks: list[tuple[str, str]] = []
        if parent.reason and parent.state != "registered":
            remarks.append((one_line(parent.reason), "red" if parent.state == "waiting" else "dim"))
            if parent.next_step:
                remarks.append((one_line(parent.next_step), "dim"))
        # One remark for each reason why the parent does not list tools, and one for tools without a reason.
        by_reason = sorted(parent.not_listed_because.items(), key=lambda each: -each[1])
        for reason, number in by_reason:
            remarks.append((f"it does not list {count(number, 'tool')} of ours: {one_line(reason)}", "yellow"))
        if unexplained := parent.not_listed - sum(parent.not_listed_because.values()):
            more = "more " if by_reason else ""
            remarks.append((f"it does not list {unexplained} {more}of ours and names no reason", "yellow"))
        if parent.secure_by:
            remarks.append((f"secure by {one_line(parent.secure_by)}", "dim"))
        if parent.budget:
            remarks.append((f"it gave us {budget_text(parent.budget)}", budget_style(parent.budget)))
        for text, remark_style in remarks:
            lines += [Text.assemble(GAP, line) for line in _paragraph(text, width - len(GAP), remark_style)]
    return lines


NAMES_SHOWN = 3


def grouped_reasons(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group names by reason, and put the reason with the most names first. Each pair is a reason and a name."""
    by_reason: dict[str, list[str]] = {}
    for reason, name in pairs:
        by_reason.setdefault(reason, []).append(name)
    return dict(sorted(by_reason.items(), key=lambda each: -len(each[1])))


def _noun(names: list[str]) -> str:
    """Return what names of a server are called together: prompts and instructions have a "/" in theirs."""
    return "definition" if any("/" in name for name in names) else "tool"


def named_few(names: list[str], noun: str) -> str:
    """Return the only name, or the number of names followed by the first few of them."""
    if len(names) == 1:
        return one_line(names[0])
    shown = ", ".join(map(one_line, names[:NAMES_SHOWN]))
    return f"{count(len(names), noun)} ({shown}{', ...' if len(names) > NAMES_SHOWN else ''})"
