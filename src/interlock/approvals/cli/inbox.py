"""Commands about the inbox: show what waits for a decision, approve it, deny it.

A person signs what they have read, so the preview of an approval shows everything that is signed. Long values are
folded to their size, and approving them takes a second confirmation. Text of callers and servers is escaped, so that it
can neither move the cursor nor imitate a line of the preview.
"""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import msgspec
import typer
from msgspec import UNSET, Raw
from rich.text import Text

from interlock.approvals import api, grants_api
from interlock.approvals.cli.grants import GrantLimits, seconds_of
from interlock.approvals.cli.keys import KeyChoice, can_ask, require_terminal
from interlock.approvals.protocol import approval as records
from interlock.approvals.protocol.approval import Status
from interlock.approvals.protocol.digests import REVEAL, SURFACE, definition_effect, is_changed
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.completion import approval_ids
from interlock.cli.terminal.drawing import labelled_lines, poll, redraw, table_lines
from interlock.cli.terminal.errors import BadUsage, Unreachable, Waits
from interlock.cli.terminal.output import confirm, prompt
from interlock.cli.terminal.text import duration, local_time
from interlock.wire.jsontext.display import Shown, plain
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.client.operator import Answer

SHORT_ID: Final = 8
LINES_MAX: Final = 200  # of arguments or a definition; longer ones are folded, and --json has all
CHARS_MAX: Final = 20_000
FOLDED: Final = "long values are folded to their sizes; every key is shown; --json has everything"

_STYLES: Final = {"pending": "yellow", "approved": "green", "done": "green", "used": "cyan"}
_DIFF_STYLES: Final = {"+": "green", "-": "red"}


def table(approvals: Sequence[api.ApprovalSummary], width: int) -> list[Text]:
    # The ids are shortened to the number of characters that is enough to distinguish them.
    ids = [approval.id for approval in approvals]
    length = next((n for n in range(SHORT_ID, 36) if len({id[:n] for id in ids}) == len(ids)), 36)
    rows = []
    for approval in approvals:
        who = f"{approval.requested_by} ({approval.agent})" if approval.agent else approval.requested_by
        left = time_left(approval), _STYLES.get(approval.status, "dim")
        shown_id = plain(approval.id[:length]), "bold"
        rows.append((shown_id, plain(approval.kind), Text(plain(approval.name)), Text(plain(who)), left))
    return table_lines("ID|KIND|TOOL OR ITEM|ASKED BY|EXPIRES", rows, width=width, shrink={3: 12, 2: 16})


def time_left(approval: api.ApprovalSummary) -> str:
    if approval.status not in ("pending", "approved"):
        return plain(approval.status)
    time = "never" if approval.left_s is None else duration(approval.left_s)
    return time if approval.status == "pending" else f"approved, {time}"


def preview(approval: api.Approval, width: int, ascii_only: bool) -> list[Text]:
    style = _STYLES.get(approval.status, "dim")
    lines = [Text.assemble((plain(approval.name), "bold"), "  ", (plain(approval.status), style))]
    for label, text in _facts(approval, " -> " if ascii_only else " → "):
        lines += labelled_lines(plain(label), plain(text), width)
    if approval.tool != approval.name:
        lines += labelled_lines("signed as", plain(approval.tool), width, style="dim")
    lines += labelled_lines("digest", plain(approval.digest), width, style="dim")
    return lines + _content(approval, width)


def _facts(approval: api.Approval, arrow: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of a label and a text: the facts about an approval that a person reads before its arguments or its
    definition.
    """
    yield "id", approval.id
    yield "kind", approval.kind
    yield "what happens", _happens(approval)
    yield "asked by", approval.requested_by + (f", through {approval.agent}" if approval.agent else "")
    if approval.kind == "proposal":
        to = approval.target or "no single participant"
        yield "proposes", f"{approval.method} to {to}, in the room {approval.room}"
    if approval.reason:
        yield "because", approval.reason
    if approval.route:
        yield "route", arrow.join(approval.route)
    if approval.capability:
        items = approval.capability.items()
        capability = ", ".join(f"{key} {msgspec.json.encode(value).decode()}" for key, value in items)
        yield "capability", ("" if records.CLASSIFIED in approval.factors else "the server says: ") + capability
    if approval.status in ("pending", "approved"):
        yield "left", time_left(approval)
    if approval.status == "pending":
        none = "no one yet: interlock status says what to do"
        if approval.kind == "enrolment":
            none = "no one yet: --code takes the setup code that the terminal of the node shows"
        yield "may approve", ", ".join(approval.approvers) or none
    for way in approval.ways_out:
        yield "less often", way
    yield "asked at", local_time(approval.created_at)
    if approval.decision is not None:
        decision = approval.decision
        proof = f", with a proof of {decision.proof.anchor} ({decision.proof.type})" if decision.proof else ""
        answer = f" as {decision.answer}" if decision.answer else ""
        reason = f": {decision.reason}" if decision.reason else ""
        yield decision.what, f"by {decision.by}{answer}{proof} at {local_time(decision.at)}{reason}"
    if approval.outcome:
        yield "outcome", approval.outcome


_EFFECTS: Final = {**records.AGENT_EFFECTS, **records.NODE_EFFECTS, "proposal": records.PROPOSAL_EFFECT}


def _happens(approval: api.Approval) -> str:
    if approval.kind == "definition":
        if approval.source == "drivers":
            return "its server is installed and started, until a file of it changes; nothing is called"
        return f"{definition_effect(approval.tool, approval.factors, approval.answers)}; nothing is called"
    if (effect := _EFFECTS.get(approval.kind)) is not None:
        return effect
    if not approval.capability:
        return "exactly this call runs once; what the tool changes is not declared"
    effect = "changes something and cannot be undone"
    if not approval.capability.get("mutable", True):
        effect = "changes nothing"
    elif approval.capability.get("reversible", False):
        effect = "changes something that can be undone"
    whose = "as configured here, it" if records.CLASSIFIED in approval.factors else "the server says that it"
    return f"exactly this call runs once; {whose} {effect}"


def is_folded(approval: api.Approval) -> bool:
    """Return whether the preview shows some values only by their size."""
    return _shown(approval).is_folded


def _shown(approval: api.Approval) -> Shown:
    return records.shown_params(bytes(approval.params), approval.kind, lines_max=LINES_MAX, chars_max=CHARS_MAX)


def _content(approval: api.Approval, width: int) -> list[Text]:
    raw = bytes(approval.params)
    if raw == b"null":
        gone = approval.status not in ("pending", "approved")
        return [Text(), Text("  the arguments are erased" if gone else "  no arguments", style="dim")]
    shown = _shown(approval)
    is_change = approval.kind == "definition" and records.find_change(raw) is not None  # arguments may look like one
    styles = _DIFF_STYLES if is_change else {}
    if approval.kind != "definition":
        head = _HEADS.get(approval.kind, "arguments")
    elif approval.source == "drivers":
        head = "what changed" if is_change else "its files"
    elif SURFACE in approval.factors:
        head = "what is registered under its name, and what the server offers"
    else:
        head = "what the server says now, and said before" if is_change else "the server says"
    lines = [Text(), Text(f"  {head}", style="dim")]
    if shown.is_folded:
        lines.append(Text(f"  {FOLDED}", style="yellow"))
    wrapper = textwrap.TextWrapper(max(20, width - 4), drop_whitespace=False, replace_whitespace=False)
    wrapper.break_on_hyphens = False
    for line in shown.lines:
        # A long line is wrapped, so that no character of what is decided on is cut off.
        parts = wrapper.wrap(line) or [""]
        lines += [Text(f"    {part}", style=styles.get(line[:1], "")) for part in parts]
    return lines


_HEADS: Final = {
    "configuration": "what was loosened",
    "enrolment": "the new approver",
    "request": "what is asked of the registry",
}


WATCH_S = 1.0

Kind = Literal["call", "definition", "start", "step", "verify", "proposal", "request", "enrolment", "configuration"]
app = verb_app("Show what waits for a decision.")


@verb(app, "approvals")
def approvals(
    invocation: Invocation,
    words: Annotated[list[str] | None, typer.Argument(metavar="show ID", autocompletion=approval_ids)] = None,
    *,
    kind: Annotated[Kind | None, option("--kind", f"One kind only: {', '.join(get_args(Kind))}.", "KIND")] = None,
    everything: Annotated[bool, option("--all")] = False,
    code: Annotated[bool, option("--code")] = False,
    key: KeyChoice,
    watch: Annotated[bool, typer.Option("--watch", "-w")] = False,
) -> None:
    """Show what waits for a decision.

    Held calls, unclassified tools, tools whose definition changed, agents that wait: who asked, and how long is left.

    Options:
        words: One approval in full.
        everything: Also what was decided, and what lapsed.
        code: Show the code of an agent's challenge too; takes your key.
        watch: Show changes until Ctrl-C.

    Examples:
        interlock approvals
        interlock approvals --watch
        interlock approvals show 3f9c0a1b
        interlock approvals show 3f9c0a1b --code
        interlock approvals --kind definition
        interlock approvals --all --json | jq '.approvals[].decision'
    """
    reference = _reference(words or [])
    state = "all" if everything else "pending"
    if reference is not None:
        if watch:
            raise BadUsage("usage", "--watch shows all of them; leave show out")
        if code:
            reveal(invocation, reference, key)
        elif (approval := invocation.call_or_print(api.GET_APPROVAL, id=reference)) is not None:
            draw_preview(invocation, approval)
            if approval.status == "pending":
                invocation.out.line()
                invocation.out.advice(f"interlock approve {approval.id[:8]}")
                invocation.out.advice(f"interlock deny {approval.id[:8]} --reason WHY")
    elif code:
        raise BadUsage("usage", "--code is of one approval", hint="interlock approvals show ID --code")
    elif watch:
        _watch(invocation, kind, state)
    elif (listed := invocation.call_or_print(api.LIST_APPROVALS, status=state, kind=kind)) is not None:
        lines = _lines(listed, invocation.out.console.width)
        if not lines:
            invocation.out.remark("nothing waits for a decision")
        invocation.out.draw(*lines)


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


def _lines(listed: api.Approvals, width: int) -> "list[Text]":
    if not listed.approvals:
        return []
    more = listed.total - len(listed.approvals)
    return table(listed.approvals, width) + ([Text(f"and {more} older ones", style="dim")] if more else [])


def reveal(invocation: Invocation, reference: str, key: KeyChoice) -> None:
    """Show the code or token of an approval. The node returns it only for a proof signed by an approver."""
    from interlock.approvals.cli.signing import prove

    approval = invocation.node.call(api.GET_APPROVAL, id=reference).as_(api.Approval)
    if approval.source != "aql":
        raise Refused("no_code", "only what agents wait for has a code")
    proof = prove(approval, key, choice=REVEAL)
    body = api.RevealCode(proof=msgspec.json.decode(proof)["token"])
    if (revealed := invocation.call_or_print(api.REVEAL_CODE, id=approval.id, body=body)) is None:
        return
    draw_preview(invocation, approval)
    invocation.out.line()
    invocation.out.line(f"{'code' if approval.kind == 'verify' else 'token'}  {revealed.code}")


def draw_preview(invocation: Invocation, approval: api.Approval) -> None:
    console = invocation.out.console
    invocation.out.draw(*preview(approval, console.width, console.options.ascii_only))


def _watch(invocation: Invocation, kind: str | None, state: str) -> None:
    answers = poll(lambda: invocation.node.call(api.LIST_APPROVALS, status=state, kind=kind), every_s=WATCH_S)
    try:
        if invocation.out.as_json or not invocation.out.console.is_terminal:
            _print_changes(invocation, answers)
        else:
            console = invocation.out.console

            def lines(answer: "Answer") -> "list[Text]":
                listed = answer.as_(api.Approvals)
                return _lines(listed, console.width) or [Text("nothing waits for a decision", style="dim")]

            redraw(console, answers, lines)
    except KeyboardInterrupt:
        pass


def _print_changes(invocation: Invocation, answers: "Iterator[Answer | Unreachable]") -> None:
    """Print each new or changed approval, as a line of JSON or as a row of the table."""
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
        approvals = answer.as_(api.Approvals).approvals
        values = {approval["id"]: approval for approval in answer.value["approvals"]}
        for approval in approvals:
            if seen.get(approval.id) == approval.status:
                continue
            if out.as_json:
                out.json_line(values[approval.id])
            else:
                who, left = approval.requested_by, time_left(approval)
                out.line(f"{approval.id}  {approval.kind}  {approval.name}  {who}  {left}")
        seen = {approval.id: approval.status for approval in approvals}
        out.console.file.flush()


approve_app = verb_app("Approve what waits, with your signature.")

Reference = Annotated[str, typer.Argument(metavar="ID", help="The id, or its beginning.", autocompletion=approval_ids)]
ToolClass = Literal["read_only", "reversible", "irreversible", "promote", "remove"]
CLASSES: tuple[ToolClass, ...] = ("read_only", "reversible", "irreversible", "promote", "remove")


@verb(approve_app, "approve")
def approve(
    invocation: Invocation,
    id: Reference,
    *,
    tool_class: Annotated[ToolClass | None, option("--class")] = None,
    reason: Annotated[str | None, option("--reason", metavar="TEXT")] = None,
    key: KeyChoice,
    proof: Annotated[str | None, option("--proof", metavar="TOKEN")] = None,
    code: Annotated[str | None, option("--code", metavar="CODE")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False,
    standing: Annotated[bool, option("--standing")] = False,
    limits: GrantLimits,
) -> None:
    """Approve what waits, with your signature.

    It shows what will happen and asks first. The signature is made here, over exactly what was shown; the key never
    leaves this machine. The caller can then make the held call once, while the approval is valid.

    With --standing, calls like this one by the same caller run without being held, until the grant ends: paths in the
    same folder and numbers up to this one are proposed, and everything else stays the same unless you say otherwise.

    Options:
        tool_class: The class of the tool, or what happens to a provisional name.
        reason: Why; it is recorded.
        proof: A proof that was signed elsewhere, or - for stdin.
        code: For the first approver: the setup code that the terminal of the node shows.
        yes: Do not ask: I have read what will happen.
        standing: Sign a standing grant for this call and calls like it.

    Examples:
        interlock approve 3f9c0a1b
        interlock approve 3f9c0a1b --class read_only
        interlock approve 3f9c0a1b --standing --calls 20 --for 8h
        interlock approve 3f9c0a1b --standing --below path=/srv/drafts --any content
        interlock approve 3f9c0a1b --yes --key ada --json
        interlock approve 3f9c0a1b --proof - < proof.jwt
        interlock approve 3f9c0a1b --code K7QF-2M9D
    """
    approval = invocation.node.call(api.GET_APPROVAL, id=id).as_(api.Approval)
    if not invocation.out.as_json:
        draw_preview(invocation, approval)
    if approval.status != "pending":  # its arguments may be gone by now, and nothing could be signed
        over = records.settled_refusal(Status(approval.status))
        raise Refused(over.message, str((over.details or {}).get("detail", over.message)))
    if standing:
        if tool_class is not None or proof is not None or approval.kind != "call":
            raise BadUsage("usage", "--standing is for held calls, and your key signs it here")
        from interlock.approvals.cli.signing import draft_from_call, sign_drafted

        arguments = msgspec.json.decode(bytes(approval.params), type=dict[str, Any] | None) or {}
        rules, seconds = limits.rules(arguments), seconds_of(limits.time)
        wanted = grants_api.DraftGrant(approval=approval.id, calls=limits.calls, seconds=seconds, reason=reason)
        draft = draft_from_call(invocation, wanted, rules)
        sign_drafted(invocation, draft, key, yes=yes)
        return
    if limits != GrantLimits():
        raise BadUsage("usage", "these options are of a standing grant", hint="add --standing")
    if approval.requires == "proof" and not approval.approvers and code is None and proof is None:
        raise _no_approver(invocation, approval)
    choice = _choose_answer(approval, tool_class)
    if not yes:
        _confirm(approval, choice)
    body = api.DecideApproval(
        decision="approve",
        proof=UNSET if code is not None else _proof(approval, proof, choice, key),
        code=code,
        reason=reason,
        tool_class=next((name for name in CLASSES if name == choice), None),
    )
    try:
        decided = invocation.call_or_print(api.DECIDE_APPROVAL, id=approval.id, body=body)
    except Refused as refused:
        if refused.code == "reason_required":
            raise refused.with_hint(f"interlock approve {approval.id[:8]} --reason WHY") from None
        raise
    if decided is not None:
        invocation.out.advice(_outcome_text(decided))


def _no_approver(invocation: Invocation, approval: api.Approval) -> Refused:
    """Return the exception that says that an approval cannot be signed because no approver is enrolled. Its
    hint says how to enrol one.
    """
    from interlock.node.cli.tree import approver_step

    if approval.kind == "enrolment":
        hint = f"interlock approve {approval.id[:8]} --code CODE, with the setup code on the terminal of the node"
    else:
        hint = " ".join(approver_step(invocation.node.call(api.LIST_APPROVERS).as_(api.Approvers).approvers))
    return Refused("no_approver", "no one may approve this yet", hint=hint)


def _choose_answer(approval: api.Approval, answer: str | None) -> str | None:
    if answer is not None and answer not in approval.answers:
        raise BadUsage("usage", "--class is for tools without a class")
    if answer is not None or not approval.answers:
        return answer
    if len(approval.answers) == 1:
        return approval.answers[0]
    if not can_ask():
        raise BadUsage("answer_needed", "say what the tool is", hint=f"--class {' or '.join(approval.answers)}")
    typed = prompt(f"What is {approval.name}? {', '.join(approval.answers)}")
    chosen = typed.strip().lower().replace("-", "_")
    if chosen not in approval.answers:
        wrong = f"{plain(typed.strip()) or 'nothing'} is none of {', '.join(approval.answers)}"
        raise Waits("not_decided", f"{wrong}; it still waits")
    return str(chosen)


def _confirm(approval: api.Approval, answer: str | None) -> None:
    require_terminal("run it on a terminal, or with --yes after interlock approvals show", undone="approved")
    what = f"Approve it as {answer}?" if answer in CLASSES else "Approve it?"
    again = "Parts of it are folded. Approve also what you have not seen?"
    if not confirm(what) or (is_folded(approval) and not confirm(again)):
        hint = f"interlock deny {approval.id[:8]} says no"
        raise Waits("not_decided", "nothing was decided; it still waits", hint=hint)


def _proof(approval: api.Approval, supplied: str | None, choice: str | None, key: KeyChoice) -> "Raw":
    if supplied is None:
        from interlock.approvals.cli.signing import prove

        return prove(approval, key, choice=choice)

    token = sys.stdin.read(65_536) if supplied == "-" else supplied
    return msgspec.Raw(msgspec.json.encode(token.strip()))


def _outcome_text(approval: api.Approval) -> str:
    if approval.kind == "definition" and approval.status == "failed":
        return f"approved, and it could not be done: {approval.outcome or ''}"
    if approval.kind == "enrolment":
        return f"done: {approval.name} may approve from now on"
    if approval.kind == "configuration":
        return "done: the change of the configuration is signed"
    if approval.kind == "definition" and is_changed(approval.factors):
        return f"done: clients see {approval.name} as it was shown here"
    if approval.kind == "definition":
        return f"done: {approval.name} is {'trusted' if approval.source == 'drivers' else 'remembered'}"
    if approval.kind == "request":
        name = approval.name
        return f"{approval.outcome or approval.status}: interlock names show {name} has it as it is now"
    if approval.kind == "proposal":
        return f"approved: it was sent to {approval.target or ''} in the room {approval.room or ''}"
    if approval.source == "aql":
        return f"approved: {approval.agent or approval.name} may go on"
    return f"approved: {approval.requested_by} can now repeat this call once ({time_left(approval)} left)"


deny_app = verb_app("Say no to what waits.")


@verb(deny_app, "deny")
def deny(
    invocation: Invocation,
    id: Reference,
    *,
    reason: Annotated[str | None, option("--reason", "The reason, which the caller sees.", "TEXT")] = None,
    return_: Annotated[bool, option("--return", "For a request to the registry: ask for a revision.")] = False,
) -> None:
    """Say no to what waits.

    Also to what was approved and is not used yet. A definition that is denied is withheld until it changes.

    Examples:
        interlock deny 3f9c0a1b
        interlock deny 3f9c0a1b --reason 'not on a Friday'
        interlock deny 3f9c0a1b --return --reason 'name a revision of the draft'
    """
    body = api.DecideApproval(decision="return" if return_ else "deny", reason=reason)
    if (approval := invocation.call_or_print(api.DECIDE_APPROVAL, id=id, body=body)) is not None:
        done_word = "returned" if return_ else "denied"
        name, requester = approval.name, approval.requested_by
        invocation.out.line(f"{done_word}: {name}, asked by {requester}")
