"""interlock explain CODE | --all"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import codes as known_codes
from interlock.cli.terminal.errors import BadUsage
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.codes import Code

app = verb_app("Explain an error code.")


@verb(
    app,
    "explain",
    examples="""
    interlock explain -32002
    interlock explain tool_degraded
    interlock explain --all
    """,
    # -32002 is a code and no option
    context_settings={"ignore_unknown_options": True},
)
def explain(
    invocation: Invocation,
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A number, or a name as in an error.", autocompletion=known_codes),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every code.")] = False,
) -> None:
    """Explain an error code or a named reason.

    What it means, whose fault it is, what to do next.
    """
    from interlock.cli.codes import codes_for, every_code, nearest_keys

    if every == (code is not None):
        raise BadUsage("usage", "name one code, or ask for --all", hint="interlock explain --help")
    if code is None:
        _list(invocation, every_code())
        return
    codes = codes_for(code)
    if not codes:
        nearest = nearest_keys(code)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else "interlock explain --all lists every code"
        raise Refused("unknown_code", f"there is no code {code}", hint=hint, details={"nearest": nearest})
    if invocation.out.as_json:
        invocation.out.json({"codes": [_value(entry) for entry in codes]})
        return
    for number, entry in enumerate(codes):
        if number:
            invocation.out.line()
        _draw(invocation, entry)


def _value(code: "Code") -> dict[str, Any]:
    return {
        "name": code.name,
        "numbers": list(code.numbers),
        "where": code.where,
        "means": code.means,
        "whose": code.whose,
        "next": code.next,
    }


def _draw(invocation: Invocation, code: "Code") -> None:
    from rich.text import Text

    from interlock.cli.terminal.columns import labelled_lines

    width = min(invocation.out.console.width, 100)  # a paragraph wider than that is hard to read
    head = Text.assemble((code.name, "bold"), "  ", (", ".join(map(str, code.numbers)), "cyan"))
    head.rstrip()
    invocation.out.draw(
        head,
        *labelled_lines("means", code.means, width),
        *labelled_lines("fault of", f"the {code.whose}" if code.whose != "nobody" else "no one", width),
        *labelled_lines("next", code.next, width),
        *labelled_lines("seen on", code.where, width),
    )


def _list(invocation: Invocation, codes: "tuple[Code, ...]") -> None:
    out = invocation.out
    if out.as_json:
        out.json({"codes": [_value(code) for code in codes]})
        return
    from itertools import groupby

    from rich.text import Text

    from interlock.cli.terminal.columns import in_columns

    for number, (where, group) in enumerate(groupby(codes, key=lambda code: code.where)):
        rows = [
            [Text(", ".join(map(str, code.numbers)), style="cyan"), Text(code.name, style="bold"), Text(code.means)]
            for code in group
        ]
        lines = in_columns(rows, width=out.console.width - 2, shrink={2: 24, 1: 20})
        if number:
            out.line()
        out.draw(Text(where, style="dim"), *(Text.assemble("  ", line) for line in lines))
