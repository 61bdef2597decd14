"""interlock approvals [show ID] [--watch] [--kind KIND]"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from interlock.approvals.cli.passphrases import FromDescriptor
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import approval_ids
from interlock.cli.terminal.errors import BadUsage, Refused, Unreachable
from interlock.cli.terminal.live import redraw

if TYPE_CHECKING:
    from rich.text import Text

    from interlock.cli.client.operator import Answer, OperatorClient

WATCH_S = 1.0

Kind = Literal["call", "definition", "start", "step", "verify", "proposal", "request", "enrolment", "configuration"]
app = verb_app("Show what waits for a decision.")


@verb(
    app,
    "approvals",
    examples="""
    interlock approvals
    interlock approvals --watch
    interlock approvals show 3f9c0a1b
    interlock approvals show 3f9c0a1b --code
    interlock approvals --kind definition
    interlock approvals --all --json | jq '.approvals[].decision'
    """,
)
def approvals(
    invocation: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="show ID", help="One of them in full.", autocompletion=approval_ids),
    ] = None,
    *,
    kind: Annotated[
        Kind | None,
        typer.Option("--kind", metavar="KIND", help=f"One kind only: {', '.join(get_args(Kind))}.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also what was decided, and what lapsed.")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Show the code of an agent's challenge too; takes your key.")
    ] = False,
    key: Annotated[
        str | None, typer.Option("--key", metavar="NAME", help="Which of your keys signs.", show_default=False)
    ] = None,
    passphrase_fd: FromDescriptor = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes until Ctrl-C.")] = False,
) -> None:
    """Show what waits for a decision.

    Held calls, unclassified tools, tools whose definition changed, agents that wait: who asked, and how long is left.
    """
    reference = _reference(words or [])
    state = "all" if everything else "pending"
    if reference is not None:
        if watch:
            raise BadUsage("usage", "--watch shows all of them; leave show out")
        if code:
            reveal(invocation, reference, key, passphrase_fd)
        else:
            _show(invocation, reference)
    elif code:
        raise BadUsage("usage", "--code is of one approval", hint="interlock approvals show ID --code")
    elif watch:
        _watch(invocation, kind, state)
    else:
        _list(invocation, _ask(invocation.node, kind, state))


def _reference(words: list[str]) -> str | None:
    match words:
        case [] | ["list"]:
            return None
        case ["show", id]:
            return id
        case ["show"]:
            raise BadUsage("usage", "which one?", hint="interlock approvals show ID")
        case [word, *_]:
            raise BadUsage("usage", f"{word}: it takes show and an id", hint=f"interlock approvals show {word}")
        case _:
            raise AssertionError(words)


def _ask(node: "OperatorClient", kind: str | None, state: str) -> "Answer":
    query: dict[str, Any] = {"status": state} | ({"kind": kind} if kind is not None else {})
    return node.get("approvals", under="", **query)


def _list(invocation: Invocation, answer: "Answer") -> None:
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    lines = _lines(answer, out.console.width)
    if not lines:
        out.remark("nothing waits for a decision")
    out.draw(*lines)


def _lines(answer: "Answer", width: int) -> "list[Text]":
    from rich.text import Text

    from interlock.approvals.api import Approvals
    from interlock.approvals.cli.approval_lines import table

    listed = answer.as_(Approvals)
    if not listed.approvals:
        return []
    more = listed.total - len(listed.approvals)
    return table(listed.approvals, width) + ([Text(f"and {more} older ones", style="dim")] if more else [])


def _show(invocation: Invocation, reference: str) -> None:
    answer = invocation.node.get("approvals", reference, under="")
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    draw_preview(invocation, answer)
    from interlock.approvals.api import Approval

    one = answer.as_(Approval)
    if one.status == "pending":
        out.line()
        out.advice(f"interlock approve {one.id[:8]}")
        out.advice(f"interlock deny {one.id[:8]} --reason WHY")


def reveal(invocation: Invocation, reference: str, key: str | None, passphrase_fd: int | None) -> None:
    """Show the code or token of an approval. The node shows it only to one who signs."""
    import msgspec

    from interlock.approvals.api import Approval, RevealCode, RevealedCode
    from interlock.approvals.cli.signing import prove
    from interlock.approvals.protocol.digests import REVEAL

    answer, out = invocation.node.get("approvals", reference, under=""), invocation.out
    one = answer.as_(Approval)
    if one.source != "aql":
        raise Refused("no_code", "only what agents wait for has a code")
    proof = prove(answer, said=REVEAL, key=key, passphrase_fd=passphrase_fd)
    token = msgspec.json.decode(proof)["token"]
    revealed = invocation.node.post("approvals", one.id, "code", under="", body=RevealCode(proof=token))
    if out.as_json:
        out.raw_json(revealed.raw)
        return
    draw_preview(invocation, answer)
    out.line()
    out.line(f"{'code' if one.kind == 'verify' else 'token'}  {revealed.as_(RevealedCode).code}")


def draw_preview(invocation: Invocation, answer: "Answer") -> None:
    from interlock.approvals.api import Approval
    from interlock.approvals.cli.approval_lines import preview

    console = invocation.out.console
    invocation.out.draw(*preview(answer.as_(Approval), console.width, console.options.ascii_only))


def _watch(invocation: Invocation, kind: str | None, state: str) -> None:
    from interlock.cli.client.poll import poll

    answers = poll(lambda: _ask(invocation.node, kind, state), every_s=WATCH_S)
    try:
        if invocation.out.as_json or not invocation.out.console.is_terminal:
            _print_changes(invocation, answers)
        else:
            from rich.text import Text

            def lines(answer: "Answer") -> "list[Text]":
                return _lines(answer, console.width) or [Text("nothing waits for a decision", style="dim")]

            console = invocation.out.console
            redraw(console, answers, lines)
    except KeyboardInterrupt:
        pass


def _print_changes(invocation: Invocation, answers: "Iterator[Answer | Unreachable]") -> None:
    """Each one once, when it comes or changes: a line of JSON, or a line of the table."""
    from interlock.approvals.api import Approvals
    from interlock.approvals.cli.approval_lines import time_left
    from interlock.cli.terminal.text import one_line

    out = invocation.out
    seen: dict[str, str] = {}
    away = False
    for answer in answers:
        if isinstance(answer, Unreachable):
            if not away:
                out.failure(answer, in_stream=True)
            away = True
            continue
        away = False
        found = answer.as_(Approvals).approvals
        values = {one["id"]: one for one in answer.value["approvals"]}
        for one in found:
            if seen.get(one.id) == one.status:
                continue
            if out.as_json:
                out.json_line(values[one.id])
            else:
                out.line(f"{one.id}  {one.kind}  {one_line(one.name)}  {one_line(one.requested_by)}  {time_left(one)}")
        seen = {one.id: one.status for one in found}
        out.console.file.flush()
