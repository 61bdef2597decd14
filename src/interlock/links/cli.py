"""interlock links list | logs | restart | release"""

import sys
import textwrap
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET
from rich.text import Text

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import segments
from interlock.cli.terminal.drawing import Details, poll, table_lines
from interlock.cli.terminal.errors import Unreachable
from interlock.cli.terminal.text import count, duration, latency, local_time, one_line, repeats, since
from interlock.guard.api import Budget, Spent
from interlock.links import api

if TYPE_CHECKING:
    from interlock.cli.client.operator import Answer

STATE_STYLES = {
    "ready": "green",
    "connecting": "cyan",
    "slow": "yellow",
    "degraded": "yellow",
    "unauthorised": "magenta",
    "failed": "red",
    "stopped": "dim",
    "asleep": "dim",
}
_SIGNS = {"ready": "●", "connecting": "○", "slow": "◐", "degraded": "◐", "unauthorised": "!", "failed": "✗"}
_ASCII_SIGNS = {"ready": "*", "connecting": ".", "slow": "~", "degraded": "~", "unauthorised": "!", "failed": "x"}


def state_sign(state: str, *, ascii_only: bool = False) -> str:
    return (_ASCII_SIGNS if ascii_only else _SIGNS).get(state, "-")


def state_text(state: str, *, ascii_only: bool = False) -> Text:
    return Text(f"{state_sign(state, ascii_only=ascii_only)} {one_line(state)}", style=STATE_STYLES.get(state, ""))


def detail_lines(link: api.Link, *, width: int, now: datetime, ascii_only: bool) -> list[Text]:
    head = Text.assemble((one_line(link.segment), "bold"), "  ", state_text(link.state, ascii_only=ascii_only))
    if age := since(link.since, now):
        head.append(f" for {age}", style="dim")
    lines = Details(head, width)
    asleep = "it was idle; the next call starts it" if link.state == "asleep" else None
    lines.add("because", link.reason or asleep)
    lines.add("server", f"{link.server.name} {link.server.version}" if link.server else None)
    lines.add("driver", link.driver)
    reach = f"{link.kind} over {link.transport}" + (f", process {link.pid}" if link.pid else "")
    lines.add("reached", reach + {True: ", in a sandbox", False: ", in no sandbox", None: ""}[link.sandbox])
    if link.registration is not UNSET:
        _add_registration(lines, link.registration, link.hops)
    if link.device is not None:
        _add_device(lines, link.device)
    else:
        spoken = " ".join(part for part in (link.protocol_version, f"({link.era})" if link.era else None) if part)
        lines.add("speaks", spoken or "not known yet")
    first = count(link.tools, "tool") if link.contracts is None else count(link.contracts, "contract")
    lines.add("offers", ", ".join([first, count(link.prompts, "prompt"), count(link.resources, "resource")]))
    parked = f", {link.parked} waiting for clients" if link.parked else ""
    lines.add("calls", f"{link.calls}, {link.errors} failed, {link.in_flight} in flight{parked}")
    lines.add("latency", f"{latency(link.latency_ms)} (median)" if link.latency_ms is not None else None)
    if link.budget:
        lines.add("budget", budget_text(link.budget), style=budget_style(link.budget))
    if link.token is not None:
        until = f"until {local_time(link.token.expires_at)}" if link.token.expires_at else "without a known end"
        lines.add("token", until)
    if link.users is not None:
        lines.add("users", f"{count(link.users, 'user')} connected, each with their own token")
    lines.add("not shared", f"{link.own_because}: clients get other links" if link.own_because else None)
    lines.add("own links", *map(_own_text, link.own))
    lines.add("restarts", str(link.restarts) if link.restarts else None)
    if link.stderr_lines:
        lines.add("stderr", f"{count(link.stderr_lines, 'line')}: interlock links logs {link.segment}")
    denied = (f"{host.place}: {host.why}; {host.remedy}" for host in link.denied)
    lines.add("kept from", *denied, style="yellow")
    lines.add("since", local_time(link.since) if link.since else None)
    lines.add("withheld", *(f"{tool.name}: {tool.reason}" for tool in link.withheld), style="yellow")
    left_out = (link.not_listed_because or {}).items()
    lines.add("not offered", *(f"{count(tools, 'tool')}: {reason}" for reason, tools in left_out))
    lines.add("changed", *(f"{tool.name}: {tool.note}" for tool in link.changed), style="yellow")
    lines.add("names", *(f"{noted.name}: {noted.note}" for noted in link.noted), style="yellow")
    return lines


def _add_device(lines: Details, device: api.Device) -> None:
    seen = f"last seen {local_time(device.seen)}" if device.seen else "never seen"
    at = f" at {device.port}" if device.port else ""
    gone = f", gone {count(device.unplugged, 'time')}" if device.unplugged else ""
    lines.add("device", f"profile {device.profile}{at}, {seen}{gone}")
    messages = f"{device.sent} sent, {device.received} received, {device.retries} repeated"
    lines.add("messages", messages + (f", {count(device.waiting, 'call')} waiting" if device.waiting else ""))
    dropped = ", ".join(f"{number} {reason}" for reason, number in device.discarded.items())
    lines.add("dropped", dropped, style="yellow")
    if device.missing:
        names = ", ".join(device.missing)
        lines.add("missing", f"{names}: described, and not announced by the device", style="yellow")


def _own_text(own: api.OwnLink) -> str:
    whose = f"{own.principal}, {'a session' if own.per == 'session' else 'all sessions'}"
    if own.per == "capabilities":
        whose = "clients that can be asked the same"
    where = f", process {own.pid}" if own.pid else ""
    use = f"{own.in_flight} in flight" if own.in_flight else f"idle for {duration(own.idle_s)}"
    return f"{own.segment}: {own.state}, {whose}{where}, {count(own.calls, 'call')}, {use}"


def _add_registration(lines: Details, registration: api.Registration, hops: int) -> None:
    who = registration.principal
    if registration.authority:
        who += f", {registration.authority} ({'verified' if registration.verified else 'unverified'})"
    lines.add("registered", f"{who}, scope {registration.auth_scope}, session {registration.session}")
    interval_ms = registration.heartbeat_interval_ms
    lines.add("heartbeat", f"every {interval_ms} ms" if interval_ms else "none, the link tells")
    below = f", {count(registration.aggregators, 'aggregator')} below" if registration.aggregators else ""
    spoken = f"MCP-AX {registration.version}" if registration.version else "MCP-AX of an unknown version"
    lines.add("away", f"{count(hops, 'hop')}{below}, {registration.transport_class}, {spoken}")
    lines.add("secure by", registration.secure_by)


_LIMIT_NAMES = {
    "max_calls_per_minute": "calls a minute",
    "max_mutable_calls_per_session": "changing calls",
    "max_cost_units_per_session": "units",
}


def budget_text(limits: Mapping[str, Spent]) -> str:
    names = {name: _LIMIT_NAMES.get(name, one_line(name)) for name in limits}
    return ", ".join(f"{spent.used} of {spent.limit} {names[name]}" for name, spent in limits.items())


def budget_style(limits: Mapping[str, Spent]) -> str:
    return "yellow" if any(spent.used >= spent.limit for spent in limits.values()) else "dim"


def budget_lines(budgets: tuple[Budget, ...], *, width: int) -> list[Text]:
    """Return the lines that show the budget of each caller and tool that has used some of it."""
    lines = []
    for budget in budgets:
        text = f"budget of {one_line(budget.name)}: {budget_text(budget.limits)}"
        wrapped = textwrap.wrap(text, max(20, width), break_on_hyphens=False, subsequent_indent="  ")
        lines += [Text(line, style=budget_style(budget.limits)) for line in wrapped]
    return lines


REASON_WIDTH_MIN = 24  # less says nothing; interlock status shows it whole
NUMBERS = frozenset((4, 5, 6, 7))
FOLLOW_S = 0.5
FOLLOW_LINES = 1000  # more than a child writes between two looks, or the oldest of them are lost
RESTART_TIMEOUT_S = 60.0  # a child gets its time to end

Segment = Annotated[str, typer.Argument(metavar="SEGMENT", help="The server's segment.", autocompletion=segments)]

app = verb_app(
    "List servers, read their stderr, restart one, free a segment.",
    examples="""
    interlock links list
    interlock links logs github --follow
    interlock links restart github
    interlock links release greenhouse
    """,
)


@verb(app, "list")
def list_links(invocation: Invocation) -> None:
    """List the servers with their counts.

    Examples:
        interlock links list
        interlock links list --json | jq -r '.links[].segment'
    """
    if (listed := invocation.call_or_print(api.LIST_LINKS)) is None:
        return
    out = invocation.out
    if not listed.links:
        out.remark("no servers yet: interlock add npm:PACKAGE, or a [servers.NAME] table, or let subservers register")
        return
    rows = []
    for link in listed.links:
        state = state_text(link.state, ascii_only=out.console.options.ascii_only)
        offered = link.tools if link.contracts is None else link.contracts
        took = latency(link.latency_ms) if link.latency_ms is not None else "-"
        numbers = (str(offered), str(link.calls), str(link.errors), took)
        rows.append(((link.segment, "bold"), state, link.transport, link.era or "-", *numbers, Text(link.reason or "")))
    heads, width = "SEGMENT|STATE|VIA|ERA|TOOLS|CALLS|ERRORS|LATENCY", out.console.width
    wide = table_lines(f"{heads}|WHY", rows, width=width, shrink={8: REASON_WIDTH_MIN}, right=NUMBERS)
    if max(line.cell_len for line in wide) > width:
        wide = table_lines(heads, [row[:-1] for row in rows], width=width, shrink={0: 8}, right=NUMBERS)
    out.draw(*wide)


@verb(app, "logs")
def logs(
    invocation: Invocation,
    segment: Segment,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=10_000, help="How many of the last lines.")] = 200,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new lines until Ctrl-C.")] = False,
) -> None:
    """Show what a server wrote to its stderr.

    Examples:
        interlock links logs github
        interlock links logs github -n 20 --follow
    """
    out = invocation.out
    answer = invocation.node.call(api.GET_LINK_LOG, segment=segment, lines=lines)
    if out.as_json and not follow:
        out.raw_json(answer.raw)
        return
    last_lines = answer.as_(api.LinkLog).lines
    _print_lines(invocation, last_lines)
    if follow:
        _follow(invocation, segment, last_lines)
    elif not last_lines:
        out.remark(f"{segment} has written nothing to its stderr")


def _follow(invocation: Invocation, segment: str, seen: tuple[api.LogLine, ...]) -> None:
    def ask() -> tuple[api.LogLine, ...]:
        return invocation.node.call(api.GET_LINK_LOG, segment=segment, lines=FOLLOW_LINES).as_(api.LinkLog).lines

    try:
        for newest in poll(ask, every_s=FOLLOW_S):
            if not isinstance(newest, Unreachable):
                _print_lines(invocation, unseen(seen, newest))
                seen = newest
    except KeyboardInterrupt:
        pass


def unseen(seen: tuple[api.LogLine, ...], newest: tuple[api.LogLine, ...]) -> tuple[api.LogLine, ...]:
    """Return the lines of `newest` that come after those already seen. Both are windows onto one growing text."""
    if not seen:
        return newest
    for end in range(len(newest), 0, -1):
        overlap = min(end, len(seen))
        if newest[end - 1] == seen[-1] and newest[end - overlap : end] == seen[-overlap:]:
            return newest[end:]
    return newest


def _print_lines(invocation: Invocation, lines: tuple[api.LogLine, ...]) -> None:
    out = invocation.out
    if out.as_json:
        for line in lines:
            out.json_line({"at": line.at, "text": line.text})
    else:
        for times, line in repeats(lines, lambda entry: entry.text):
            again = f" (×{times})" if times > 1 else ""
            out.line(f"{local_time(line.at, '%H:%M:%S')}  {line.text}{again}")
    sys.stdout.flush()


@verb(app, "restart")
def restart(
    invocation: Invocation,
    segment: Segment,
    authorize: Annotated[bool, typer.Option("--authorize")] = False,
) -> None:
    """End a server's process or connection and start it afresh.

    A subserver that dialled in is disconnected, and dials again by itself.
    A server that wants a token somebody has to agree to: show the page to open.

    Options:
        authorize: Show the page to agree to a new token, also when there is one.

    Examples:
        interlock links restart github
        interlock links restart github --authorize
    """
    from interlock.credentials.api import AUTHORIZE_LINK, Consent

    node, out = invocation.node, invocation.out
    if not authorize:
        answer = node.call(api.RESTART_LINK, segment=segment, timeout=RESTART_TIMEOUT_S)
        restarted = answer.as_(api.RestartedLink)
        if restarted.state != "unauthorised" or not node.call(api.GET_LINK, segment=segment).as_(api.Link).consent:
            _show_restarted(invocation, restarted, answer)
            return
    answer = node.call(AUTHORIZE_LINK, segment=segment, timeout=RESTART_TIMEOUT_S)
    if out.as_json:
        out.raw_json(answer.raw)
        return
    consent = answer.as_(Consent)
    out.line(consent.url)
    scopes = f", for {' '.join(consent.scopes)}" if consent.scopes else ""
    out.remark(f"open this page of {consent.issuer} and agree to a token for {segment}{scopes}")
    until = local_time(consent.expires_at, "%H:%M")
    out.remark(f"it is good once, until {until}; interlock status --watch shows the rest")


def _show_restarted(invocation: Invocation, restarted: api.RestartedLink, answer: "Answer") -> None:
    out = invocation.out
    segment, state = restarted.segment, restarted.state
    if out.as_json:
        out.raw_json(answer.raw)
        return
    if restarted.disconnected is not UNSET:
        gone = "was disconnected" if restarted.disconnected else "is not connected"
        out.line(f"{segment} {gone}, now {state}: it dialled in, and only it can dial again")
        out.remark(f"interlock links release {segment} forgets what it listed, if it does not come back")
        return
    why = f": {restarted.reason}" if restarted.reason and state != "ready" else ""
    out.line(f"{segment} restarted, now {state}{why}")
    if state != "ready":
        out.remark("interlock status --watch shows how it comes up")


Owned = Annotated[str, typer.Argument(metavar="SEGMENT", help="The segment to free.")]


@verb(app, "release")
def release(invocation: Invocation, segment: Owned) -> None:
    """Forget who owns a segment, so that another subserver can have it. One that is connected keeps it meanwhile.

    Examples:
        interlock links release greenhouse
    """
    if (released := invocation.call_or_print(api.RELEASE_LINK, segment=segment)) is not None:
        invocation.out.line(f"{segment} has no owner any more" if released.held else f"{segment} is free")
