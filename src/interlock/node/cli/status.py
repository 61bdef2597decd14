"""The verbs `interlock status` and `interlock open`, which look at a running node: its tree of servers, its console."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import segments
from interlock.cli.terminal.drawing import poll, redraw
from interlock.cli.terminal.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from interlock.cli.client.operator import Answer

REDRAW_S = 1.0
CLOCKS = ("uptime_s",)  # what differs in every answer and is no change

app = verb_app("Show the tree of servers.")


@verb(app, "status")
def status(
    invocation: Invocation,
    segment: Annotated[str | None, typer.Argument(metavar="SEGMENT", autocompletion=segments)] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w")] = False,
) -> None:
    """Show the tree of servers, with the state of each and why.

    Also what each offers, how quickly it answers, and which of its tools are withheld.

    Options:
        segment: One server only, in detail.
        watch: Draw again every second until Ctrl-C.

    Examples:
        interlock status
        interlock status --watch
        interlock status github
        interlock status --json | jq '.links[] | select(.state != "ready")'
    """
    out = invocation.out
    if watch:
        _watch(invocation, segment)
        return
    answer = _ask(invocation, segment)
    if out.as_json:
        out.raw_json(answer.raw)
    else:
        out.draw(*_lines(answer, segment, out.console))


def _ask(invocation: Invocation, segment: str | None) -> "Answer":
    """Ask the node for the status of one server, or of everything if `segment` is None."""
    from interlock.links.api import GET_LINK
    from interlock.operator.api import GET_STATUS

    return invocation.node.call(GET_LINK, segment=segment) if segment else invocation.node.call(GET_STATUS)


def _lines(answer: "Answer", segment: str | None, console: "Console") -> "list[Text]":
    """Return the lines that show an answer of the node on a terminal."""

    from interlock.links.api import Link
    from interlock.links.cli import detail_lines
    from interlock.node.cli.tree import tree_lines
    from interlock.operator.api import Status

    now = datetime.now(UTC)
    ascii_only = console.options.ascii_only
    if segment:
        return detail_lines(answer.as_(Link), width=console.width, now=now, ascii_only=ascii_only)
    return tree_lines(answer.as_(Status), width=console.width, now=now, ascii_only=ascii_only)


def _watch(invocation: Invocation, segment: str | None) -> None:
    """Show the status again and again until Ctrl-C. Output that is not a terminal gets a new block after each
    change.
    """
    answers = poll(lambda: _ask(invocation, segment), every_s=REDRAW_S)
    try:
        if invocation.out.as_json or not invocation.out.console.is_terminal:
            _print_changes(invocation, segment, answers)
        else:
            console = invocation.out.console
            redraw(console, answers, lambda answer: _lines(answer, segment, console))
    except KeyboardInterrupt:
        pass


def _print_changes(invocation: Invocation, segment: str | None, answers: "Iterator[Answer | Unreachable]") -> None:
    """Print each answer that differs from the one before, as a block of lines or as a line of JSON."""
    out = invocation.out
    before: Any = None
    for answer in answers:
        state = answer.code if isinstance(answer, Unreachable) else _without_clocks(answer.value)
        if state == before:
            continue
        before = state
        if isinstance(answer, Unreachable):
            out.failure(answer, in_stream=True)
        elif out.as_json:
            out.json_line(answer.value)
        else:
            out.draw(*_lines(answer, segment, out.console))
            out.line()
            out.console.file.flush()


def _without_clocks(value: Any) -> Any:
    """Return a status without the members that differ in every answer, such as `uptime_s`."""
    if isinstance(value, dict):
        return {key: _without_clocks(inner) for key, inner in value.items() if key not in CLOCKS}
    return value


open_app = verb_app("Open the console in a browser.")


@verb(open_app, "open")
def open_console(
    invocation: Invocation,
    print_only: Annotated[bool, typer.Option("--print", show_default=False)] = False,
) -> None:
    """Open the operator page in a browser, logged in.

    The link works once and for a minute. Where there is no browser it is printed. The session may look and administer;
    approving takes a passkey or the operator key's passphrase on the page.

    Options:
        print_only: Print the link and open nothing.

    Examples:
        interlock open
        interlock open --print
        interlock open --json | jq -r .url
    """
    from interlock.access.api import MAKE_LOGIN

    if (login := invocation.call_or_print(MAKE_LOGIN)) is None:
        return
    out, url = invocation.out, login.url
    if not print_only and _show(url, None if invocation.remote_url else invocation.data_folder / "run"):
        out.advice(f"opened {url.partition('#')[0]} in your browser; interlock open --print shows the link instead")
        return
    out.line(url)
    out.remark("open it in a browser within a minute; it works once")


def _show(url: str, folder: Path | None) -> bool:
    """Open a URL in a browser. Return whether that worked.

    The browser is given a file that redirects to the URL, because other users can read the arguments of a program.
    """
    import webbrowser

    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        return False
    if folder is None:
        return False
    page = folder / "open.html"
    try:
        page.unlink(missing_ok=True)
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={url}">\n')
        return webbrowser.open(page.as_uri())
    except (OSError, webbrowser.Error):
        return False
