"""The command `interlock explain`, which explains error codes and named reasons: the meaning, who is at fault, and what
to do next.

The texts are in codes.toml, grouped by the connection on which a code appears, such as that to clients or to servers.
"""

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Annotated

import msgspec
import typer

from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import codes as known_codes
from interlock.cli.terminal.drawing import in_columns, labelled_lines
from interlock.cli.terminal.errors import BadUsage
from interlock.wire.refusal import Refused


class ExplainedCode(msgspec.Struct, frozen=True, kw_only=True):
    """An error code or named reason with its explanation. `whose` says who is at fault, and `where` on which connection
    the code appears.
    """

    name: str
    numbers: tuple[int, ...] = ()
    where: str
    means: str
    whose: str
    next: str


@cache
def every_code() -> tuple[ExplainedCode, ...]:
    text = files("interlock.cli").joinpath("codes.toml").read_text(encoding="utf-8")
    edges = tomllib.loads(text)["edge"]
    codes = [{**code, "where": edge["where"]} for edge in edges for code in edge["code"]]
    return msgspec.convert(codes, tuple[ExplainedCode, ...])


def every_key() -> list[str]:
    """Return the numbers and names that `interlock explain` accepts, for completion."""
    numbers = (str(number) for code in every_code() for number in code.numbers)
    return list(dict.fromkeys([*numbers, *(code.name for code in every_code())]))


def codes_for(key: str) -> list[ExplainedCode]:
    """Return the codes that a number or a name refers to. A number can have several meanings, one for each kind of
    connection; a name has only one. Case and dashes do not matter.

    A number with the wrong sign and an unambiguous part of a name are accepted too, because people quote from memory.
    """
    wanted = _folded_key(key)
    spellings = [wanted]
    if wanted.lstrip("-").isdecimal():
        spellings.append(wanted[1:] if wanted.startswith("-") else f"-{wanted}")
    for spelling in spellings:
        codes = [each for each in every_code() if spelling in (_folded_key(each.name), *map(str, each.numbers))]
        if codes:
            return codes
    partial = _codes_with_words(wanted)
    return partial if len(partial) == 1 else []


def nearest_keys(key: str) -> list[str]:
    """Return the known names and numbers that are most similar to an unknown key."""
    wanted = _folded_key(key)[:64]
    parts = [code.name for code in _codes_with_words(wanted)]
    folded = {_folded_key(each): each for each in every_key()}
    return parts[:6] or [folded[near] for near in get_close_matches(wanted, folded, n=3, cutoff=0.6)]


def _codes_with_words(wanted: str) -> list[ExplainedCode]:
    """Return the codes whose name contains the words of `wanted` next to each other."""
    return [code for code in every_code() if wanted and f"_{wanted}_" in f"_{_folded_key(code.name)}_"]


def _folded_key(key: str) -> str:
    """Return a key in lower case, with underscores for dashes and spaces. A negative number such as -32601 keeps its
    sign.
    """
    key = key.strip()
    sign = "-" if key.startswith("-") and key[1:].isdecimal() else ""
    return sign + key.removeprefix(sign).lower().replace("-", "_").replace(" ", "_")


app = verb_app("Explain an error code.")


# -32002 is a code and no option
@verb(app, "explain", context_settings={"ignore_unknown_options": True})
def explain(
    invocation: Invocation,
    code: Annotated[str | None, typer.Argument(metavar="CODE", autocompletion=known_codes)] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
) -> None:
    """Explain an error code or a named reason.

    What it means, whose fault it is, what to do next.

    Options:
        code: A number, or a name as in an error.
        every: List every code.

    Examples:
    interlock explain -32002
    interlock explain tool_degraded
    interlock explain --all
    """
    if every == (code is not None):
        raise BadUsage("usage", "name one code, or ask for --all", hint="interlock explain --help")
    codes = list(every_code()) if code is None else codes_for(code)
    if code is not None and not codes:
        nearest = nearest_keys(code)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else "interlock explain --all lists every code"
        raise Refused("unknown_code", f"there is no code {code}", hint=hint, details={"nearest": nearest})
    if invocation.out.as_json:
        invocation.out.json({"codes": msgspec.to_builtins(codes)})
        return
    if code is None:
        _draw_all(invocation)
        return
    for number, entry in enumerate(codes):
        if number:
            invocation.out.line()
        _draw(invocation, entry)


def _draw(invocation: Invocation, code: ExplainedCode) -> None:
    from rich.text import Text

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


def _draw_all(invocation: Invocation) -> None:
    from rich.text import Text

    out = invocation.out
    for number, (where, group) in enumerate(groupby(every_code(), key=lambda code: code.where)):
        rows = [
            [Text(", ".join(map(str, code.numbers)), style="cyan"), Text(code.name, style="bold"), Text(code.means)]
            for code in group
        ]
        lines = in_columns(rows, width=out.console.width - 2, shrink={2: 24, 1: 20})
        if number:
            out.line()
        out.draw(Text(where, style="dim"), *(Text.assemble("  ", line) for line in lines))
