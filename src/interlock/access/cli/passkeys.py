"""interlock access passkey"""

from typing import Annotated

import typer

from interlock.cli.command import Invocation, verb


def register(app: typer.Typer) -> None:
    verb(
        app,
        "passkey",
        examples="""
        interlock access passkey ada >> interlock.toml
        interlock access passkey ada --approves 'files.*'
        interlock access passkey ada --url https://operator.example.com
        """,
    )(passkey)


def passkey(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose passkey it is.")],
    *,
    approves: Annotated[
        list[str] | None,
        typer.Option("--approves", metavar="GLOB", help="Tools it may approve; may be repeated.  [default: *]"),
    ] = None,
) -> None:
    """Make a passkey in a browser and print its [[anchor]].

    Needs a running node. It prints an address to open once; the browser makes the passkey there. The node believes it
    once these lines are in its interlock.toml.
    """
    from interlock.approvals.cli.operator_keys import anchor_lines
    from interlock.approvals.cli.passkey_enrolment import enrol

    tools = approves or ["*"]
    made = enrol(invocation, name)
    out = invocation.out
    if out.as_json:
        anchor = {"name": made.name, "passkey": made.passkey, "approves": tools}
        out.json({"anchor": anchor, "thumbprint": made.thumbprint})
        return
    for line in anchor_lines(made.name, made.passkey or "", tools, source="passkey"):
        out.line(line)
    out.remark(
        "the lines above belong into interlock.toml of the node, where it is enrolled first: interlock approvals"
    )
