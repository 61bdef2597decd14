"""interlock deny ID"""

from typing import Annotated

import typer

from interlock.approvals.cli.approve import Reference
from interlock.cli.command import Invocation, verb, verb_app

app = verb_app("Say no to what waits.")


@verb(
    app,
    "deny",
    examples="""
    interlock deny 3f9c0a1b
    interlock deny 3f9c0a1b --reason 'not on a Friday'
    interlock deny 3f9c0a1b --return --reason 'name a revision of the draft'
    """,
)
def deny(
    invocation: Invocation,
    id: Reference,
    *,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Why; the caller is told.", show_default=False),
    ] = None,
    return_: Annotated[
        bool,
        typer.Option("--return", help="Of a request to the registry: to be revised.", show_default=False),
    ] = False,
) -> None:
    """Say no to what waits.

    Also to what was approved and is not used yet. A definition that is denied is withheld until it changes.
    """
    from interlock.approvals.api import DecideApproval

    body = DecideApproval(decision="return" if return_ else "deny", reason=reason)
    done = invocation.node.post("approvals", id, under="", body=body)
    out = invocation.out
    if out.as_json:
        out.raw_json(done.raw)
        return
    from interlock.approvals.api import Approval
    from interlock.cli.terminal.text import one_line

    one = done.as_(Approval)
    out.line(f"{'returned' if return_ else 'denied'}: {one_line(one.name)}, asked by {one_line(one.requested_by)}")
