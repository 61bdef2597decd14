"""interlock links list | logs | restart | release"""

from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import segments
from interlock.cli.terminal.errors import Unreachable

if TYPE_CHECKING:
    from interlock.cli.client.operator import Answer
    from interlock.links.api import LogLine, RestartedLink

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
    answer = invocation.node.get("links")
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from rich.text import Text

    from interlock.cli.terminal.columns import in_columns
    from interlock.cli.terminal.text import latency, one_line
    from interlock.links.api import Links
    from interlock.links.cli.link_lines import state_text

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
    from interlock.links.api import LinkLog

    out = invocation.out
    answer = invocation.node.get("links", segment, "logs", lines=lines)
    if follow:
        seen = answer.as_(LinkLog).lines
        _print_lines(invocation, seen)
        _follow(invocation, segment, seen)
    elif out.as_json:
        out.raw_json(answer.raw)
    else:
        found = answer.as_(LinkLog).lines
        _print_lines(invocation, found)
        if not found:
            out.remark(f"{segment} has written nothing to its stderr")


def _follow(invocation: Invocation, segment: str, seen: "tuple[LogLine, ...]") -> None:
    from interlock.cli.terminal.watch import poll
    from interlock.links.api import LinkLog

    def ask() -> "tuple[LogLine, ...]":
        return invocation.node.get("links", segment, "logs", lines=FOLLOW_LINES).as_(LinkLog).lines

    try:
        for newest in poll(ask, every_s=FOLLOW_S):
            if not isinstance(newest, Unreachable):
                _print_lines(invocation, unseen(seen, newest))
                seen = newest
    except KeyboardInterrupt:
        pass


def unseen(seen: "tuple[LogLine, ...]", newest: "tuple[LogLine, ...]") -> "tuple[LogLine, ...]":
    """The lines of `newest` that come after those already seen: both are windows onto one growing text."""
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
        for times, line in repeats(lines, lambda one: one.text):
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
    from interlock.links.api import Link, RestartedLink

    node, out = invocation.node, invocation.out
    if not authorize:
        answer = node.post("links", segment, "restart", timeout=RESTART_TIMEOUT_S)
        restarted = answer.as_(RestartedLink)
        if restarted.state != "unauthorised" or not node.get("links", segment).as_(Link).consent:
            _show_restarted(invocation, restarted, answer)
            return
    answer = node.post("links", segment, "authorize", timeout=RESTART_TIMEOUT_S)
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from interlock.cli.terminal.text import local_time, printable
    from interlock.credentials.api import Consent

    asked = answer.as_(Consent)
    out.line(printable(asked.url))
    scopes = f", for {printable(' '.join(asked.scopes))}" if asked.scopes else ""
    out.remark(f"open this page of {printable(asked.issuer)} and agree to a token for {segment}{scopes}")
    out.remark(
        f"it is good once, until {local_time(asked.expires_at, '%H:%M')}; interlock status --watch shows the rest"
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
    answer = invocation.node.post("links", segment, "release")
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    from interlock.links.api import ReleasedSegment

    is_held = answer.as_(ReleasedSegment).held
    invocation.out.line(f"{segment} has no owner any more" if is_held else f"{segment} is free")
