"""interlock grants list | show | sign | revoke"""

from typing import TYPE_CHECKING, Annotated

import typer

from interlock.approvals.cli.grant_options import (
    Below,
    Calls,
    Equal,
    For,
    Free,
    Least,
    Most,
    OneOf,
    rules_of,
    seconds_of,
)
from interlock.approvals.cli.passphrases import FromDescriptor
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import tool_names

if TYPE_CHECKING:
    from interlock.approvals.grants_api import Grant

app = verb_app(
    "Sign, see and revoke standing grants: one yes for many calls.",
    examples="""
    interlock grants list
    interlock approve 3f9c0a1b --standing
    interlock grants revoke 7e57ab1e
    """,
)

Reference = Annotated[str, typer.Argument(metavar="ID", help="Its id, or how it begins.")]


@verb(
    app,
    "list",
    examples="""
    interlock grants list
    interlock grants list --all
    interlock grants list --json | jq '.grants[].terms.tool'
    """,
)
def list_grants(
    invocation: Invocation,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
) -> None:
    """List standing grants: for whom, which tool, how often used, how long still."""
    from interlock.approvals.grants_api import Grants

    answer = invocation.node.get("grants")
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from rich.text import Text

    from interlock.cli.terminal.columns import in_columns
    from interlock.cli.terminal.text import one_line

    found = [one for one in answer.as_(Grants).grants if everything or one.state == "active"]
    if not found:
        out.remark("there is no standing grant; interlock approve ID --standing signs one from a held call")
        return
    rows = [[Text(head, style="dim") for head in ("ID", "TOOL", "WHO", "USED", "UNTIL", "SIGNED BY")]]
    rows += [
        [
            Text(one.terms.id[:8], style="bold"),
            Text(one_line(one.terms.tool)),
            Text(one_line(one.terms.who)),
            Text(_uses(one)),
            Text(_end(one), style="" if one.state == "active" else "dim"),
            Text(one_line(one.anchor)),
        ]
        for one in found
    ]
    out.draw(*in_columns(rows, width=out.console.width, shrink={1: 16, 2: 12, 4: 12}))


@verb(
    app,
    "show",
    examples="""
    interlock grants show 7e57ab1e
    interlock grants show 7e57ab1e --json
    """,
)
def show(invocation: Invocation, id: Reference) -> None:
    """Show a grant in full, and the latest calls under it."""
    from interlock.approvals.cli.grant_signing import grant_lines
    from interlock.approvals.grants_api import Grant
    from interlock.cli.terminal.text import local_time, one_line

    answer = invocation.node.get("grants", id)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    one = answer.as_(Grant)
    for line in grant_lines(one.words):
        out.line(line)
    out.line()
    out.line(f"id      {one.terms.id}")
    out.line(f"state   {one.state}" + (f": it {one_line(one.over)}" if one.over else ""))
    out.line(f"used    {_uses(one)}" + (f", last {local_time(one.used_at)}" if one.used_at else ""))
    out.line(f"signed  by {one_line(one.anchor)} at {local_time(one.signed_at)}, brought by {one_line(one.signed_by)}")
    if one.terms.reason:
        out.line(f"reason  {one_line(one.terms.reason)}")
    for approval in one.approvals:
        out.advice(f"call    interlock approvals show {approval[:8]}")


@verb(
    app,
    "sign",
    examples="""
    interlock grants sign files.move --who client:me --below to=/srv --for 8h
    interlock grants sign greenhouse.water_beds --who local --max litres=5
    interlock grants sign mail.send --who local --one-of to=me,you --any text
    """,
)
def sign(
    invocation: Invocation,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name.", autocompletion=tool_names)],
    *,
    who: Annotated[str, typer.Option("--who", metavar="CALLER", help="The caller, as interlock approvals names it.")],
    below: Below = None,
    one_of: OneOf = None,
    most: Most = None,
    least: Least = None,
    equal: Equal = None,
    free: Free = None,
    calls: Calls = None,
    time: For = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is signed too.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="NAME", help="Which of your keys signs.", show_default=False)
    ] = None,
    passphrase_fd: FromDescriptor = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: I have read what it lets pass.")] = False,
) -> None:
    """Sign a standing grant: calls of a tool by one caller run without being held, within limits.

    An argument that no option names may not be there. A grant ends with its time or its number of calls, when you
    revoke it, when the tool's definition changes, and when your key may no longer approve.
    """
    from interlock.approvals.cli.grant_signing import sign_drafted
    from interlock.approvals.grants_api import DraftGrant, GrantDraft

    rules = rules_of(below=below, one_of=one_of, most=most, least=least, equal=equal, free=free)
    wanted = DraftGrant(tool=tool, who=who, rules=tuple(rules), calls=calls, seconds=seconds_of(time), reason=reason)
    draft = invocation.node.post("grants", "draft", body=wanted).as_(GrantDraft)
    sign_drafted(invocation, draft, yes=yes, key=key, passphrase_fd=passphrase_fd)


@verb(
    app,
    "revoke",
    examples="""
    interlock grants revoke 7e57ab1e
    interlock grants revoke 7e57ab1e --json
    """,
)
def revoke(invocation: Invocation, id: Reference) -> None:
    """Revoke a grant. From now on its calls are held again; it takes no signature."""
    from interlock.approvals.grants_api import Grant
    from interlock.cli.terminal.text import count, one_line

    answer = invocation.node.post("grants", id, "revoke")
    if invocation.out.as_json:
        invocation.out.raw_json(answer.raw)
        return
    one = answer.as_(Grant)
    passed = f"it let {count(one.used, 'call')} of {one_line(one.terms.tool)} pass"
    invocation.out.line(f"{one.terms.id[:8]} {one_line(one.over or '')}; {passed}")


def _uses(one: "Grant") -> str:
    return str(one.used) if one.terms.calls is None else f"{one.used} of {one.terms.calls}"


def _end(one: "Grant") -> str:
    from interlock.cli.terminal.text import local_time, one_line

    if one.over is not None:
        return one_line(one.over)
    return local_time(one.until) if one.until else "no limit"
