"""What waits for a decision, as a person reads it: a table of all, and one of them as a preview of what will happen.

Pure apart from rich's types.
"""

import textwrap
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.text import Text

from interlock.approvals.api import Approval, ApprovalSummary, Decision
from interlock.approvals.protocol.approval import CLASSIFIED
from interlock.approvals.protocol.digests import SURFACE
from interlock.approvals.protocol.preview import (
    AGENT_EFFECTS,
    NODE_EFFECTS,
    PROPOSAL_EFFECT,
    maybe_change,
    shown_params,
)
from interlock.cli.terminal.columns import in_columns, labelled_lines
from interlock.cli.terminal.text import duration, local_time
from interlock.wire.jsontext.display import plain
from interlock.wire.jsontext.folded_preview import Shown

SHORT_ID: Final = 8
LINES_MAX: Final = 200  # of arguments or a definition; longer ones are folded, and --json has all
CHARS_MAX: Final = 20_000
FOLDED: Final = "long values are folded to their sizes; every key is shown; --json has everything"

_STYLES: Final = {"pending": "yellow", "approved": "green", "done": "green", "used": "cyan"}
_DIFF_STYLES: Final = {"+": "green", "-": "red"}


def table(found: Sequence[ApprovalSummary], width: int) -> list[Text]:
    rows = [[Text(head, style="dim") for head in ("ID", "KIND", "ABOUT", "ASKED BY", "LEFT")]]
    length = short_id_length([one.id for one in found])
    rows += [
        [
            Text(plain(one.id[:length]), style="bold"),
            Text(plain(one.kind)),
            Text(plain(one.name)),
            Text(plain(f"{one.requested_by} ({one.agent})" if one.agent else one.requested_by)),
            Text(time_left(one), style=_STYLES.get(one.status, "dim")),
        ]
        for one in found
    ]
    return in_columns(rows, width=width, shrink={3: 12, 2: 16})


def short_id_length(ids: Sequence[str]) -> int:
    """How many characters tell these apart."""
    return next((n for n in range(SHORT_ID, 36) if len({id[:n] for id in ids}) == len(ids)), 36)


def time_left(one: ApprovalSummary) -> str:
    if one.status not in ("pending", "approved"):
        return plain(one.status)
    time = "no limit" if one.left_s is None else duration(one.left_s)
    return time if one.status == "pending" else f"approved, {time}"


def preview(one: Approval, width: int, ascii_only: bool) -> list[Text]:
    head = Text.assemble((plain(one.name), "bold"), "  ", (plain(one.status), _STYLES.get(one.status, "dim")))
    lines = [head, *labelled_lines("id", plain(one.id), width), *labelled_lines("kind", plain(one.kind), width)]
    lines += labelled_lines("what happens", _happens(one), width)
    who = one.requested_by + (f", through {one.agent}" if one.agent else "")
    lines += labelled_lines("asked by", plain(who), width)
    if one.kind == "proposal":
        to = f"{one.method} to {one.target or 'no single participant'}, in the room {one.room}"
        lines += labelled_lines("proposes", plain(to), width)
    if one.reason:
        lines += labelled_lines("because", plain(one.reason), width)
    if one.route:
        lines += labelled_lines("route", plain((" -> " if ascii_only else " → ").join(one.route)), width)
    if one.capability:
        said = ", ".join(f"{key} {msgspec.json.encode(value).decode()}" for key, value in one.capability.items())
        whose = "" if CLASSIFIED in one.factors else "the server says: "
        lines += labelled_lines("capability", plain(whose + said), width)
    if one.status in ("pending", "approved"):
        lines += labelled_lines("left", time_left(one), width)
    if one.status == "pending":
        none = "no one yet: interlock status says what to do"
        if one.kind == "enrolment":
            none = "no one yet: --code takes the setup code that the terminal of the node shows"
        lines += labelled_lines("may approve", plain(", ".join(one.approvers)) or none, width)
    for way in one.ways_out:
        lines += labelled_lines("less often", plain(way), width)
    lines += labelled_lines("asked at", local_time(one.created_at), width)
    if one.decision is not None:
        lines += labelled_lines(plain(one.decision.what), plain(_decision_text(one.decision)), width)
    if one.outcome:
        lines += labelled_lines("outcome", plain(one.outcome), width)
    if one.tool != one.name:
        lines += labelled_lines("signed as", plain(one.tool), width, style="dim")
    lines += labelled_lines("digest", plain(one.digest), width, style="dim")
    return lines + _content(one, width)


def _happens(one: Approval) -> str:
    if one.kind == "definition":
        if one.source == "drivers":
            return "its server is installed and started, until a file of it changes; nothing is called"
        if one.answers == ("accept",):
            return "the tool is used as it is now defined; nothing is called"
        return "the tool is treated as you say, for as long as its definition stays the same; nothing is called"
    if one.kind in AGENT_EFFECTS:
        return AGENT_EFFECTS[one.kind]
    if one.kind in NODE_EFFECTS:
        return NODE_EFFECTS[one.kind]
    if one.kind == "proposal":
        return PROPOSAL_EFFECT
    effect = {
        (False, False): "changes nothing",
        (False, True): "changes nothing",
        (True, True): "changes something that can be undone",
    }.get((_is(one, "mutable"), _is(one, "reversible")), "changes something and cannot be undone")
    if not one.capability:
        return "exactly this call runs once; what the tool changes is not declared"
    whose = "as configured here, it" if CLASSIFIED in one.factors else "the server says that it"
    return f"exactly this call runs once; {whose} {effect}"


def is_folded(one: Approval) -> bool:
    """Whether the preview shows some values by their size alone."""
    return _shown(one).is_folded


def _shown(one: Approval) -> Shown:
    return shown_params(bytes(one.params), one.kind, lines_max=LINES_MAX, chars_max=CHARS_MAX)


def _is(one: Approval, key: str) -> bool:
    return bool((one.capability or {}).get(key, key == "mutable"))


def _decision_text(decision: Decision) -> str:
    proof = f", with a proof of {decision.proof.anchor} ({decision.proof.type})" if decision.proof else ""
    answer = f" as {decision.answer}" if decision.answer else ""
    reason = f": {decision.reason}" if decision.reason else ""
    return f"by {decision.by}{answer}{proof} at {local_time(decision.at)}{reason}"


def _content(one: Approval, width: int) -> list[Text]:
    raw = bytes(one.params)
    if raw == b"null":
        gone = one.status not in ("pending", "approved")
        return [Text(), Text("  the arguments are erased" if gone else "  no arguments", style="dim")]
    shown = _shown(one)
    is_change = one.kind == "definition" and maybe_change(raw) is not None  # arguments may look like one
    styles = _DIFF_STYLES if is_change else {}
    body = [part for line in shown.lines for part in _wrapped_lines(line, width, styles.get(line[:1], ""))]
    folded = [Text(f"  {FOLDED}", style="yellow")] if shown.is_folded else []
    return [Text(), Text(f"  {_head(one, is_change)}", style="dim"), *folded, *body]


_HEADS: Final = {
    "configuration": "what was loosened",
    "enrolment": "the new approver",
    "request": "what is asked of the registry",
}


def _head(one: Approval, is_change: bool) -> str:
    if one.kind != "definition":
        return _HEADS.get(one.kind, "arguments")
    if one.source == "drivers":
        return "what changed" if is_change else "its files"
    if SURFACE in one.factors:
        return "what is registered under its name, and what the server offers"
    return "what the server says now, and said before" if is_change else "the server says"


def _wrapped_lines(line: str, width: int, style: str) -> list[Text]:
    """No character of what is decided on may fall off the edge of a screen."""
    parts = textwrap.wrap(
        line, max(20, width - 4), drop_whitespace=False, replace_whitespace=False, break_on_hyphens=False
    )
    return [Text(f"    {part}", style=style) for part in parts or [""]]
