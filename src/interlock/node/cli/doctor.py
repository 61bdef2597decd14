"""interlock doctor"""

from typing import TYPE_CHECKING

import typer
from msgspec import to_builtins

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.terminal.errors import EXIT_REFUSED
from interlock.cli.terminal.text import as_typed, count, one_line

if TYPE_CHECKING:
    from interlock.node.cli.set_up_checks import Finding

app = verb_app("Find what is wrong with a set-up.")


@verb(app, "doctor")
def doctor(invocation: Invocation) -> None:
    """Find what is wrong with a set-up, and say how to fix it.

    The configuration, addresses, permissions, programs and their versions, secrets, tokens, certificates, the clock,
    unsafe settings, the sandbox; of a node that runs also its servers, drivers and parents. Exit code 1: something is
    wrong. Nothing is changed.

    Examples:
        interlock doctor
        interlock doctor --config team.toml
        interlock doctor --json | jq -r '.findings[].command'
    """

    from interlock.node.cli.set_up_checks import examine

    examined = examine(invocation)
    out = invocation.out
    if out.as_json:
        out.json({"ok": not examined.findings, "running": examined.running, "findings": to_builtins(examined.findings)})
    else:
        for finding in examined.findings:
            _draw(invocation, finding)
        node = "a node is running" if examined.running else "no node is running"
        result = count(len(examined.findings), "finding") if examined.findings else "nothing is wrong"
        out.line(f"{result} ({count(examined.checks, 'check')}, {node})")
    if examined.findings:
        raise typer.Exit(EXIT_REFUSED)


def _draw(invocation: Invocation, finding: "Finding") -> None:
    from rich.text import Text

    console = invocation.out.console
    console.print(Text.assemble((finding.check, "bold yellow"), ": ", one_line(finding.problem)), soft_wrap=True)
    for label, text in (("fix", finding.remedy), ("run", finding.command)):
        if text:
            console.print(Text.assemble((f"  {label}: ", "dim"), as_typed(one_line(text))), soft_wrap=True)
