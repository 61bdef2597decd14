"""interlock links list | logs | restart | release"""

import textwrap
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET
from rich.text import Text

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import segments
from interlock.cli.terminal.drawing import labelled_lines
from interlock.cli.terminal.errors import Unreachable
from interlock.cli.terminal.text import count, duration, latency, local_time, one_line, since
from interlock.guard.api import Budget, Spent
from interlock.links.api import Device, Link, OwnLink, Registration

if TYPE_CHECKING:
    from interlock.cli.client.operator import Answer
    from interlock.links.api import LogLine, RestartedLink

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


def detail_lines(link: Link, *, width: int, now: datetime, ascii_only: bool) -> list[Text]:
    age = since(link.since, now)
    head = Text.assemble((one_line(link.segment), "bold"), "  ", state_text(link.state, ascii_only=ascii_only))
    if age:
        head.append(f" for {age}", style="dim")
    lines = [head]
    if link.reason:
        lines += labelled_lines("because", one_line(link.reason), width)
    elif link.state == "asleep":
        lines += labelled_lines("because", "it was idle; the next call starts it", width)
    if link.server:
        lines += labelled_lines("server", one_line(f"{link.server.name} {link.server.version}"), width)
    if link.driver:
        lines += labelled_lines("driver", one_line(link.driver), width)
    reach = f"{link.kind} over {link.transport}" + (f", process {link.pid}" if link.pid else "")
    reach += {True: ", in a sandbox", False: ", in no sandbox", None: ""}[link.sandbox]
    lines += labelled_lines("reached", reach, width)
    if link.registration is not UNSET:
        lines += _registration(link.registration, link.hops, width)
    if link.device is not None:
        lines += _device_lines(link.device, width)
    spoken = " ".join(part for part in (link.protocol_version, f"({link.era})" if link.era else None) if part)
    if link.device is None:
        lines += labelled_lines("speaks", spoken or "not known yet", width)
    first = count(link.tools, "tool") if link.contracts is None else count(link.contracts, "contract")
    offers = [first, count(link.prompts, "prompt"), count(link.resources, "resource")]
    lines += labelled_lines("offers", ", ".join(offers), width)
    usage = f"{link.calls}, {link.errors} failed, {link.in_flight} in flight"
    if link.parked:
        usage += f", {link.parked} wait for their clients"
    lines += labelled_lines("calls", usage, width)
    if link.latency_ms is not None:
        lines += labelled_lines("latency", f"{latency(link.latency_ms)} (median)", width)
    if link.budget:
        lines += labelled_lines("budget", budget_text(link.budget), width, style=budget_style(link.budget))
    if link.token is not None:
        ends = f"until {local_time(link.token.expires_at)}" if link.token.expires_at else "without a known end"
        lines += labelled_lines("token", ends, width)
    if link.users is not None:
        lines += labelled_lines("users", f"{count(link.users, 'user')} connected, each with their own token", width)
    if link.own_because:
        lines += labelled_lines("not shared", f"{one_line(link.own_because)}: clients get other links", width)
    for number, own in enumerate(link.own):
        lines += labelled_lines("own links" if number == 0 else "", _own_text(own), width)
    if link.restarts:
        lines += labelled_lines("restarts", str(link.restarts), width)
    if link.stderr_lines:
        remarks = f"{count(link.stderr_lines, 'line')}: interlock links logs {one_line(link.segment)}"
        lines += labelled_lines("stderr", remarks, width)
    for number, denied in enumerate(link.denied):
        text = f"{one_line(denied.place)}: {one_line(denied.why)}; {one_line(denied.remedy)}"
        lines += labelled_lines("kept from" if number == 0 else "", text, width, style="yellow")
    if link.since:
        lines += labelled_lines("since", local_time(link.since), width)
    for number, withheld in enumerate(link.withheld):
        text = f"{one_line(withheld.name)}: {one_line(withheld.reason)}"
        lines += labelled_lines("withheld" if number == 0 else "", text, width, style="yellow")
    for number, (reason, tools) in enumerate((link.not_listed_because or {}).items()):
        text = f"{count(tools, 'tool')}: {one_line(reason)}"
        lines += labelled_lines("not offered" if number == 0 else "", text, width)
    for number, noted in enumerate(link.noted):
        text = f"{one_line(noted.name)}: {one_line(noted.note)}"
        lines += labelled_lines("names" if number == 0 else "", text, width, style="yellow")
    return lines


def _device_lines(device: Device, width: int) -> list[Text]:
    seen = f"last seen {local_time(device.seen)}" if device.seen else "never seen"
    at = f" at {one_line(device.port)}" if device.port else ""
    gone = f", gone {count(device.unplugged, 'time')}" if device.unplugged else ""
    lines = labelled_lines("device", f"profile {device.profile}{at}, {seen}{gone}", width)
    messages = f"{device.sent} sent, {device.received} received, {device.retries} repeated"
    waiting = f", {count(device.waiting, 'call')} waiting" if device.waiting else ""
    lines += labelled_lines("messages", messages + waiting, width)
    if device.discarded:
        dropped = ", ".join(f"{number} {one_line(reason)}" for reason, number in device.discarded.items())
        lines += labelled_lines("dropped", dropped, width, style="yellow")
    if device.missing:
        names = ", ".join(map(one_line, device.missing))
        lines += labelled_lines(
            "missing", f"{names}: described, and not announced by the device", width, style="yellow"
        )
    return lines


def _own_text(own: OwnLink) -> str:
    whose = f"{one_line(own.principal)}, {'a session' if own.per == 'session' else 'all sessions'}"
    if own.per == "capabilities":
        whose = "clients that can be asked the same"
    where = f", process {own.pid}" if own.pid else ""
    use = f"{own.in_flight} in flight" if own.in_flight else f"idle for {duration(own.idle_s)}"
    return f"{one_line(own.segment)}: {one_line(own.state)}, {whose}{where}, {count(own.calls, 'call')}, {use}"


def _registration(registration: Registration, hops: int, width: int) -> list[Text]:
    who = registration.principal
    if registration.authority:
        who += f", {registration.authority} ({'verified' if registration.verified else 'unverified'})"
    lines = labelled_lines(
        "registered", f"{one_line(who)}, scope {registration.auth_scope}, session {registration.session}", width
    )
    beat = (
        f"every {registration.heartbeat_interval_ms} ms"
        if registration.heartbeat_interval_ms
        else "none, the link tells"
    )
    lines += labelled_lines("heartbeat", beat, width)
    below = f", {count(registration.aggregators, 'aggregator')} below" if registration.aggregators else ""
    spoken = f"MCP-AX {one_line(registration.version)}" if registration.version else "MCP-AX, its version not said"
    lines += labelled_lines("away", f"{count(hops, 'hop')}{below}, {registration.transport_class}, {spoken}", width)
    if registration.secure_by:
        lines += labelled_lines("secure by", one_line(registration.secure_by), width)
    return lines


_LIMIT_NAMES = {
    "max_calls_per_minute": "calls a minute",
    "max_mutable_calls_per_session": "changing calls",
    "max_cost_units_per_session": "units",
}


def budget_text(limits: Mapping[str, Spent]) -> str:
    return ", ".join(
        f"{spent.used} of {spent.limit} {_LIMIT_NAMES.get(name, one_line(name))}" for name, spent in limits.items()
    )


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


@verb(
    app,
    "list",
    examples="""
    interlock links list
    interlock links list --json | jq -r '.links[].segment'
    """,
)
def list_links(invocation: Invocation) -> None:
    """List the servers with their counts."""
    from interlock.links.api import LIST_LINKS

    answer = invocation.node.call(LIST_LINKS)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from rich.text import Text

    from interlock.cli.terminal.drawing import in_columns
    from interlock.cli.terminal.text import latency, one_line
    from interlock.links.api import Links

    links = answer.as_(Links).links
    if not links:
        out.remark("no servers yet: interlock add npm:PACKAGE, or a [servers.NAME] table, or let subservers register")
        return
    heads = ("SEGMENT", "STATE", "VIA", "ERA", "TOOLS", "CALLS", "ERRORS", "LATENCY", "WHY")
    rows = [[Text(head, style="dim") for head in heads]]
    rows += [
        [
            Text(one_line(link.segment), style="bold"),
            state_text(link.state, ascii_only=out.console.options.ascii_only),
            Text(link.transport),
            Text(link.era or "-"),
            Text(str(link.tools if link.contracts is None else link.contracts)),
            Text(str(link.calls)),
            Text(str(link.errors)),
            Text(latency(link.latency_ms) if link.latency_ms is not None else "-"),
            Text(one_line(link.reason or "")),
        ]
        for link in links
    ]
    width = out.console.width
    wide = in_columns(rows, width=width, shrink={8: REASON_WIDTH_MIN}, right=NUMBERS)
    if max(line.cell_len for line in wide) > width:
        rows = [row[:-1] for row in rows]
        wide = in_columns(rows, width=width, shrink={0: 8}, right=NUMBERS)
    out.draw(*wide)


@verb(
    app,
    "logs",
    examples="""
    interlock links logs github
    interlock links logs github -n 20 --follow
    """,
)
def logs(
    invocation: Invocation,
    segment: Segment,
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, max=10_000, help="How many of the last lines.")] = 200,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines until Ctrl-C.")] = False,
) -> None:
    """Show what a server wrote to its stderr."""
    from interlock.links.api import GET_LINK_LOG, LinkLog

    out = invocation.out
    answer = invocation.node.call(GET_LINK_LOG, segment=segment, lines=lines)
    if follow:
        seen = answer.as_(LinkLog).lines
        _print_lines(invocation, seen)
        _follow(invocation, segment, seen)
    elif out.as_json:
        out.raw_json(answer.raw)
    else:
        last_lines = answer.as_(LinkLog).lines
        _print_lines(invocation, last_lines)
        if not last_lines:
            out.remark(f"{segment} has written nothing to its stderr")


def _follow(invocation: Invocation, segment: str, seen: "tuple[LogLine, ...]") -> None:
    from interlock.cli.terminal.drawing import poll
    from interlock.links.api import GET_LINK_LOG, LinkLog

    def ask() -> "tuple[LogLine, ...]":
        return invocation.node.call(GET_LINK_LOG, segment=segment, lines=FOLLOW_LINES).as_(LinkLog).lines

    try:
        for newest in poll(ask, every_s=FOLLOW_S):
            if not isinstance(newest, Unreachable):
                _print_lines(invocation, unseen(seen, newest))
                seen = newest
    except KeyboardInterrupt:
        pass


def unseen(seen: "tuple[LogLine, ...]", newest: "tuple[LogLine, ...]") -> "tuple[LogLine, ...]":
    """Return the lines of `newest` that come after those already seen. Both are windows onto one growing text."""
    if not seen:
        return newest
    for end in range(len(newest), 0, -1):
        overlap = min(end, len(seen))
        if newest[end - 1] == seen[-1] and newest[end - overlap : end] == seen[-overlap:]:
            return newest[end:]
    return newest


def _print_lines(invocation: Invocation, lines: "tuple[LogLine, ...]") -> None:
    import sys

    from interlock.cli.terminal.text import local_time, printable, repeats

    out = invocation.out
    if out.as_json:
        for line in lines:
            out.json_line({"at": line.at, "text": line.text})
    else:
        for times, line in repeats(lines, lambda entry: entry.text):
            again = f" (×{times})" if times > 1 else ""
            out.line(f"{local_time(line.at, '%H:%M:%S')}  {printable(line.text, keep=chr(9))}{again}")
    sys.stdout.flush()


@verb(
    app,
    "restart",
    examples="""
    interlock links restart github
    interlock links restart github --authorize
    """,
)
def restart(
    invocation: Invocation,
    segment: Segment,
    authorize: Annotated[
        bool, typer.Option("--authorize", help="Show the page to agree to a new token, also when there is one.")
    ] = False,
) -> None:
    """End a server's process or connection and start it afresh.

    A subserver that dialled in is disconnected, and dials again by itself.
    A server that wants a token somebody has to agree to: show the page to open.
    """
    from interlock.credentials.api import AUTHORIZE_LINK
    from interlock.links.api import GET_LINK, RESTART_LINK, Link, RestartedLink

    node, out = invocation.node, invocation.out
    if not authorize:
        answer = node.call(RESTART_LINK, segment=segment, timeout=RESTART_TIMEOUT_S)
        restarted = answer.as_(RestartedLink)
        if restarted.state != "unauthorised" or not node.call(GET_LINK, segment=segment).as_(Link).consent:
            _show_restarted(invocation, restarted, answer)
            return
    answer = node.call(AUTHORIZE_LINK, segment=segment, timeout=RESTART_TIMEOUT_S)
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.cli.terminal.text import local_time, printable
    from interlock.credentials.api import Consent

    consent = answer.as_(Consent)
    out.line(printable(consent.url))
    scopes = f", for {printable(' '.join(consent.scopes))}" if consent.scopes else ""
    out.remark(f"open this page of {printable(consent.issuer)} and agree to a token for {segment}{scopes}")
    out.remark(
        f"it is good once, until {local_time(consent.expires_at, '%H:%M')}; interlock status --watch shows the rest"
    )


def _show_restarted(invocation: Invocation, restarted: "RestartedLink", answer: "Answer") -> None:
    from msgspec import UNSET

    from interlock.cli.terminal.text import one_line

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
    why = f": {one_line(restarted.reason)}" if restarted.reason and state != "ready" else ""
    out.line(f"{segment} restarted, now {state}{why}")
    if state != "ready":
        out.remark("interlock status --watch shows how it comes up")


@verb(
    app,
    "release",
    examples="""
    interlock links release greenhouse
    """,
)
def release(
    invocation: Invocation,
    segment: Annotated[str, typer.Argument(metavar="SEGMENT", help="The segment to free.")],
) -> None:
    """Forget who owns a segment, so that another subserver can have it. One that is connected keeps it meanwhile."""
    from interlock.links.api import RELEASE_LINK

    answer = invocation.node.call(RELEASE_LINK, segment=segment)
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    from interlock.links.api import ReleasedSegment

    is_held = answer.as_(ReleasedSegment).held
    invocation.out.line(f"{segment} has no owner any more" if is_held else f"{segment} is free")
