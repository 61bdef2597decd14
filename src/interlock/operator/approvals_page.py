"""The inbox as pages: what will happen, who asked, the two buttons; safe to show whatever a caller or a server wrote.

What stands on them is what the JSON says, and their forms go nowhere else. The script counts the time, looks for
changes, and asks a passkey where one may approve; without it everything else still works.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from interlock.approvals.api import Approval, ApprovalSummary, Decision
from interlock.approvals.protocol.approval import AGENT_EFFECTS, CLASSIFIED, NODE_EFFECTS, PROPOSAL_EFFECT, shown_params
from interlock.operator.pages.frame import PAGES, console_page, page, text
from interlock.wire.jsontext.display import Shown

LINES_MAX: Final = 2000  # of arguments or a definition; longer ones are folded
CHARS_MAX: Final = 100_000
OPEN: Final = ("pending", "approved")
_RAN: Final = ("used", "done", "failed")

_STATES: Final = {
    "pending": "waits for you",
    "approved": "approved, and not used yet",
    "used": "on its way",
    "done": "done",
    "failed": "it ran and failed",
    "unknown": "it is not known whether it ran",
    "denied": "denied",
    "withdrawn": "withdrawn by the caller",
    "expired": "expired; nothing ran",
    "void": "void; nothing ran",
}
_AGAIN: Final = (
    '<label><input type="checkbox" name="folded" value="yes" required>'
    " Parts are folded: I approve also what I have not seen</label>"
)
_NEXT: Final = {
    "approved": "The same call by {by} runs once now. You need not do anything else.",
    "denied": "Nothing ran. The caller is told so.",
    "expired": "The caller may ask again.",
    "void": "The caller may ask again.",
}
_FOLDED: Final = (
    "Long values are folded to their sizes; every key is shown. interlock approvals show ID --json has everything."
)
_WHY: Final = '<label>Why, on the record<br><input name="reason" maxlength="1000"></label>'
_RETURN: Final = '<button name="decision" value="return">Return to be revised</button>'
_REVEAL: Final = '<button type="button" id="reveal">Show the code</button>'
_REVEAL_BY_KEY: Final = '<button type="button" id="revealbykey">Show the code</button>'
_ALL: Final = '<p><a href="/approvals">Everything that waits</a></p>'


def approvals_page() -> Response:
    """What waits, live; its script asks for it."""
    return console_page(next(one for one in PAGES if one.path == "/approvals"))


def approval_page(
    one: Approval, *, error: str | None = None, status: int = 200, may_decide: bool = True, is_session: bool = False
) -> Response:
    """`error`: why what the browser sent was refused. `is_session`: its forms send the key of the session along."""
    is_open = one.status in OPEN
    left = f' &middot; <span id="left" data-left="{one.left_s}">{text(_time_left(one))}</span>' if one.left_s else ""
    body = (
        f'<main id="approval" data-id="{text(one.id)}" data-status="{text(one.status)}"'
        f' data-live="{"yes" if is_open or one.status == "used" else ""}">'
        f'<p class="state {text(one.status)}">{text(_STATES.get(one.status, one.status))}'
        f"{left if is_open else ''}</p>"
        f"<h1>{_heading(one)}</h1>{_effect(one)}{_error(error)}{_what(one)}{_after(one)}"
        f"{_decide(one, is_session=is_session) if is_open and may_decide else ''}{_facts(one)}{_ALL}</main>"
    )
    return page(_title(one), body, script="approval.js", status=status, current="/approvals")


def missing_page(message: str, status: int) -> Response:
    body = f"<main><h1>No such approval</h1><p>{text(message)}</p>{_ALL}</main>"
    return page("No such approval", body, status=status, current="/approvals")


def effect(capability: dict[str, Any] | None, *, is_classified: bool = False) -> str:
    """`is_classified`: this node's operator says so; else the server does."""
    if not capability:
        return "Its effects are not declared."
    whose = "As configured here, it" if is_classified else "The server says that it"
    if capability.get("mutable") is False:
        return f"{whose} changes nothing."
    undone = "can be undone" if capability.get("reversible") is True else "cannot be undone"
    return f"{whose} changes something that {undone}."


def shown(one: Approval) -> Shown:
    return shown_params(bytes(one.params), one.kind, lines_max=LINES_MAX, chars_max=CHARS_MAX)


def _title(one: Approval) -> str:
    if one.source == "drivers":
        return f"Trust {one.name}?"
    if one.kind in AGENT_EFFECTS:
        return f"The agent {one.agent or one.name} waits"
    titles = {
        "definition": f"What does {one.name} do?",
        "configuration": "Did you loosen the configuration?",
        "proposal": f"A proposal in the room {one.room}",
        "request": f"A request to the registry of names: {one.name}",
        "enrolment": f"May {one.name} approve from now on?",
    }
    return titles.get(one.kind, f"A call of {one.name}")


def _heading(one: Approval) -> str:
    if one.kind == "definition" or one.kind in NODE_EFFECTS or one.kind in AGENT_EFFECTS:
        return text(_title(one))
    if one.kind == "proposal":
        verb = "proposes" if one.status in OPEN else "proposed"
        return f"{text(one.agent or one.requested_by)} {verb} <code>{text(one.name)}</code>"
    verb = "wants to call" if one.status in OPEN else "called" if one.status in _RAN else "wanted to call"
    return f"{text(one.requested_by)} {verb} <code>{text(one.name)}</code>"


def _effect(one: Approval) -> str:
    if one.source == "drivers":
        return '<p class="effect">If you agree, its server is installed and started, until a file of it changes.</p>'
    if one.kind == "definition":
        return ""
    if one.kind in AGENT_EFFECTS:
        return f'<p class="effect">{text(f"If you agree, {AGENT_EFFECTS[one.kind]}.")}</p>'
    if one.kind in NODE_EFFECTS:
        return f'<p class="effect grave">{text(f"If you agree, {NODE_EFFECTS[one.kind]}.")}</p>'
    if one.kind == "proposal":
        seen = f"Everyone in the room {one.room} sees this proposal, arguments included."
        return f'<p class="effect">{text(f"If you agree, {PROPOSAL_EFFECT}.")}</p><p class="hint">{text(seen)}</p>'
    words = effect(one.capability, is_classified=CLASSIFIED in one.factors)
    is_grave = "cannot" in words and one.status in OPEN
    return f'<p class="effect{" grave" if is_grave else ""}">{text(words)}</p>'


def _error(error: str | None) -> str:
    return "" if error is None else f'<p class="error" role="alert">Nothing was decided: {text(error)}</p>'


def _what(one: Approval) -> str:
    heads = {
        "call": "With these arguments",
        "definition": "The server says",
        "enrolment": "The new approver",
        "configuration": "What was loosened",
        "request": "What is asked",
    }
    if one.source == "drivers":
        heads["definition"] = "As its files declare it"
    head = f"<h2>{heads.get(one.kind, 'With')}</h2>"
    if bytes(one.params) == b"null":
        return "<p>The arguments are erased.</p>" if one.status not in OPEN else f"{head}<p>There are none.</p>"
    told = shown(one)
    folded = f'<p class="error">{text(_FOLDED)}</p>' if told.is_folded else ""
    return f"{head}{folded}<pre>{escape(chr(10).join(told.lines))}</pre>"


def _after(one: Approval) -> str:
    """How it went, for the person who decided."""
    told = _NEXT.get(one.status, "").format(by=text(one.requested_by))
    if one.kind in ("proposal", "request") and one.status == "approved":
        told = "It is being sent." if one.kind == "proposal" else "It is being taken up."
    if one.kind == "definition" and one.status in ("approved", *_RAN):
        told = "It is remembered for this definition of the tool." if one.status == "done" else ""
    decided = _decision(one.decision)
    lines = [told, text(decided) if decided else "", f"outcome: {text(one.outcome)}" if one.outcome else ""]
    words = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="box">{words}</div>' if words else ""


_SUBJECTS: Final = {"drivers": "Server", "enrolment": "Approver", "request": "Name", "configuration": "Subject"}


def _facts(one: Approval) -> str:
    facts = [
        ("Asked by", one.requested_by),
        ("Participant" if one.kind == "proposal" else "Agent", one.agent),
        ("Room", one.room),
        ("Target", one.target if one.kind == "proposal" else None),
        (_SUBJECTS.get(one.source if one.source == "drivers" else one.kind, "Tool"), one.name),
        ("Signed as", one.tool if one.tool != one.name else None),
        ("Route", " / ".join(one.route)),
        ("Capability" if CLASSIFIED in one.factors else "The server says", _capability(one.capability)),
        ("Why you are asked", one.reason),
        ("Asked at", one.created_at),
        ("May approve", _approvers(one)),
        ("To be asked less often", "; or ".join(one.ways_out)),
        ("Digest", one.digest),
        ("Approval", one.id),
    ]
    rows = "".join(f"<tr><th>{text(name)}<td>{text(value)}</tr>" for name, value in facts if value)
    return f"<h2>In full</h2><table>{rows}</table>"


def _decide(one: Approval, *, is_session: bool) -> str:
    own = '<input type="hidden" name="session_key">' if is_session else ""
    action = f"/approvals/{quote(one.id, safe='')}"
    deny = (
        f'<div class="buttons"><form method="post" action="{action}">{own}'
        '<label>Reason, told to the caller<br><input name="reason" maxlength="1000"></label>'
        f'<button name="decision" value="deny">Deny</button>{_RETURN if one.kind == "request" else ""}</form></div>'
    )
    if one.status == "approved":
        return f'<section class="box"><h2>Changed your mind?</h2>{deny}</section>'
    choice = _choice(one.answers) + (_AGAIN if shown(one).is_folded else "")
    choice += _WHY if one.kind == "request" else ""  # REG-5-9: what a machine cannot judge is accepted in writing
    if one.requires == "role":
        approve = (
            f'<form method="post" action="{action}">{own}<input type="hidden" name="decision" value="approve">{choice}'
            '<button class="go">Approve</button></form>'
        )
        return f'<section class="box"><h2>Decide</h2><div class="buttons">{approve}</div>{deny}</section>'
    passkey_origin = one.passkey_origin
    approve, hint = "", ""
    if passkey_origin:
        there = text(f"{passkey_origin}{action}")
        approve = (
            f'<form method="post" action="{action}" hidden>{own}<input type="hidden" name="decision" value="approve">'
            f'<input type="hidden" name="proof">{choice}<button type="button" class="go" id="passkey"'
            f' data-origin="{text(passkey_origin)}">Approve with a passkey</button>'
            f"{_REVEAL if one.kind in AGENT_EFFECTS else ''}</form>"
        )
        hint = (
            f'<p id="elsewhere" hidden>Your passkey works where it was made: <a href="{there}">{there}</a></p>'
            "<noscript><p>Without JavaScript the browser cannot ask your passkey.</p></noscript>"
        )
    is_signed_elsewhere = bool(one.approvers) and not passkey_origin and not one.signing_keys
    return (
        f'<section class="box"><h2>Decide</h2>{hint}<div class="buttons">{approve}</div>'
        f'{_by_key(one, action, own + choice)}<p class="told" id="told" role="status"></p>'
        f"{deny}{_standing(one)}{_edit(one)}"
        f"{_other_ways(one, action, own + choice, shown=is_signed_elsewhere)}</section>"
    )


def _edit(one: Approval) -> str:
    """X-8-2: another approval takes its place, and is decided then."""
    if one.kind != "proposal" or one.status != "pending" or one.target is None:
        return ""
    params = bytes(one.params)
    written = escape("{}" if params == b"null" else msgspec.json.format(params, indent=2).decode())
    return (
        "<details><summary>Edit and approve</summary><p>What you change is shown once more, and signed as it is then;"
        " this approval is void. The proposer is told that it was changed.</p>"
        f'<form id="edit"><label>Params<textarea name="params" class="mono" rows="8" required>{written}</textarea>'
        "</label><p><button>Use these instead</button></p></form></details>"
    )


def _standing(one: Approval) -> str:
    """The way to one signature for this call and those like it."""
    if not one.ways_out:
        return ""
    where = f"/grants?approval={quote(one.id, safe='')}"
    return f'<p><a class="button" id="standing" href="{where}">Sign a standing grant for calls like this</a></p>'


def _by_key(one: Approval, action: str, hidden: str) -> str:
    """The form that signs with the operator key of the node's machine, or takes the setup code for the first key."""
    if not one.approvers and one.kind == "enrolment":
        return (
            "<p>It would be the first that may approve: that takes the setup code on the terminal of the node"
            " (interlock serve), which no agent sees.</p>"
            f'<form method="post" action="{action}" id="bycode" class="bar">'
            f'<input type="hidden" name="decision" value="approve">{hidden}'
            '<label>Setup code<br><input name="code" required autocomplete="off"></label>'
            '<button class="go fixed">Enrol it</button></form>'
        )
    if not one.approvers:
        return '<p class="told">No one may approve this yet: <a href="/approvers">become an approver</a> first.</p>'
    if not one.signing_keys:
        return ""
    options = "".join(f"<option>{text(name)}</option>" for name in one.signing_keys)
    return (
        f'<form method="post" action="{action}" id="bykey" class="bar">'
        '<input type="hidden" name="decision" value="approve">'
        f'<input type="hidden" name="proof">{hidden}<label>Operator key<br><select id="key">{options}</select></label>'
        '<label>Its passphrase<br><input id="passphrase" type="password" required autocomplete="current-password">'
        '</label><button class="go fixed">Approve with the key</button>'
        f"{_REVEAL_BY_KEY if one.kind in AGENT_EFFECTS else ''}</form>"
    )


def _other_ways(one: Approval, action: str, choice: str, *, shown: bool) -> str:
    how = (
        f"<p>Where your key is: <code>interlock approve {text(one.id)}</code></p>{_code_hint(one)}"
        f'<form method="post" action="{action}"><input type="hidden" name="decision" value="approve">{choice}'
        '<p><label>Or paste a proof that was signed elsewhere<textarea name="proof" rows="3" required></textarea>'
        "</label></p><button>Approve with this proof</button></form>"
    )
    if shown:
        hint = "<p>A passkey would do it here: <code>interlock access passkey NAME</code> makes one.</p>"
        return f"<h2>Approve</h2>{how}{hint}"
    return f"<details><summary>Other ways to approve</summary>{how}</details>"


def _code_hint(one: Approval) -> str:
    if one.kind not in AGENT_EFFECTS:
        return ""
    return f"<p>To see its code: <code>interlock approvals show {text(one.id)} --code</code></p>"


def _choice(answers: Sequence[str]) -> str:
    if len(answers) < 2:
        return ""
    options = "".join(f'<option value="{text(one)}">{text(one.replace("_", " "))}</option>' for one in answers)
    return f'<label>It is<br><select name="class" required><option value="">choose</option>{options}</select></label>'


def _time_left(one: ApprovalSummary) -> str:
    if one.status not in OPEN:
        return one.status
    return "no limit" if one.left_s is None else f"{one.left_s} s"


def _approvers(one: Approval) -> str:
    if one.requires != "proof":
        return "an operator"
    return ", ".join(one.approvers) or "no one yet"


def _capability(capability: dict[str, Any] | None) -> str:
    return ", ".join(f"{key} {msgspec.json.encode(value).decode()}" for key, value in (capability or {}).items())


def _decision(decision: Decision | None) -> str | None:
    if decision is None:
        return None
    proof = decision.proof
    by = f"{decision.by}, with a proof of {proof.anchor}" if proof else decision.by
    return f"{decision.what} at {decision.at} by {by}" + (f": {decision.reason}" if decision.reason else "")
