"""HTTP handlers of approvals that return pages to browsers, and these pages: the inbox, one approval with its decision
form, and the approvers.

Programs get the same facts as JSON from the operations. Text of callers and servers is always escaped, and forms are
sent only to this endpoint. Scripts load the list of the inbox, count down the remaining time, load changes, add the key
of a browser session to forms, and sign with a passkey or an operator key. The facts of one approval can be read without
a script. No page makes somebody an approver directly: every addition must be approved in the inbox.
"""

import re
from collections.abc import Sequence
from html import escape
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw
from starlette.responses import RedirectResponse, Response

from interlock.access.operations import is_browser
from interlock.approvals import api
from interlock.approvals.operations.inbox import check_may_decide
from interlock.approvals.protocol.approval import AGENT_EFFECTS, CLASSIFIED, NODE_EFFECTS, PROPOSAL_EFFECT, shown_params
from interlock.approvals.protocol.digests import ADDED, definition_effect, is_changed, is_item
from interlock.core.operator_errors import refused_as
from interlock.crypto.signing import PASSPHRASE_CHARS_MIN
from interlock.operator import endpoint
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.pages.frame import PAGES, console_page, page, text
from interlock.wire.jsontext.display import Shown
from interlock.wire.refusal import NotFound, Refused

PATH: Final = "/approvals"
APPROVERS_PAGE: Final = "/approvers"
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
    "approved": "{by} can now repeat this call once. You need not do anything else.",
    "denied": "Nothing ran. The caller gets this answer.",
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

_WHOLE_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def list_approvals(exchange: OperatorExchange[None]) -> api.Approvals | Response:
    approvals: api.Approvals = await exchange.run()
    inbox = next(page for page in PAGES if page.path == PATH)
    return console_page(inbox) if endpoint.wants_page(exchange.request) else approvals


async def get_approval(exchange: OperatorExchange[None]) -> api.Approval | Response:
    if not endpoint.wants_page(exchange.request):
        approval: api.Approval = await exchange.run()
        return approval
    try:
        approval = await exchange.run()
    except NotFound:
        body = f"<main><h1>No such approval</h1><p>It was never here, or is long over.</p>{_ALL}</main>"
        return page("No such approval", body, status=404, current=PATH)
    may_decide = not exchange.roles.isdisjoint(("operator", "admin"))
    return approval_page(approval, may_decide=may_decide, is_session=is_browser(exchange.principal))


async def decide_approval(exchange: OperatorExchange[api.DecideApproval]) -> api.Approval | Response:
    if not endpoint.wants_page(exchange.request):
        return await _decide(exchange)
    try:
        return await _decide(exchange)
    except Refused as refused:
        # A person who sent a form reads why it was refused on the page that they sent it from.
        try:
            approval = await exchange.call(api.GET_APPROVAL, id=exchange.request.path_params["id"])
        except NotFound:
            raise refused from None
        return approval_page(
            approval,
            error=refused.message,
            status=refused.status,
            may_decide=refused.code not in ("role_required", "bad_origin"),
            is_session=is_browser(exchange.principal),
        )


async def _decide(exchange: OperatorExchange[api.DecideApproval]) -> api.Approval | Response:
    request = exchange.request
    if endpoint.media_type(request) != endpoint.FORM:
        exchange.body = await endpoint.json_body(request, api.DecideApproval)
        decided: api.Approval = await exchange.run()
        return decided
    form = await endpoint.form_body(request, api.DecideApprovalForm)
    check_may_decide(exchange.roles)
    approval = await exchange.call(api.GET_APPROVAL, id=exchange.request.path_params["id"])
    if form.decision == "approve" and form.folded is None and shown(approval).is_folded:
        raise refused_as(api.FOLDED, "the page folded parts of it; approve those too, or read them first")
    proof = Raw(msgspec.json.encode(form.proof.strip())) if form.proof is not None else UNSET
    exchange.body = api.DecideApproval(
        decision=form.decision, reason=form.reason, tool_class=form.tool_class, proof=proof, code=form.code
    )
    decided = await exchange.run()
    return RedirectResponse(f"{PATH}/{decided.id}", 303)


def is_approval_page(path: str) -> bool:
    """Return whether a path contains the full id of an approval, as links to approvals do.

    Such a page opens without the key of the session, because the id cannot be learned without that key.
    """
    return _WHOLE_ID.fullmatch(path.removeprefix(f"{PATH}/")) is not None


async def visit_approvers(exchange: OperatorExchange[None]) -> Response:
    approvers: api.Approvers = await exchange.call(api.LIST_APPROVERS)
    rows = "".join(
        f"<tr><td>{text(approver.name)}<td>{text(approver.kind)}<td>"
        f"{text(', '.join(approver.approves) or 'nothing before it is enrolled')}"
        f"<td>{text(approver.how or 'waits')}</tr>"
        for approver in approvers.approvers
    )
    table = f'<table class="list"><tr><th>Name<th>Kind<th>Approves<th>Enrolled by</tr>{rows}</table>' if rows else ""
    body = (
        f'<main id="approvers"><h1>Who may approve</h1>{table}'
        '<p class="told" id="told" role="status"></p>'
        f"{_first_approver_form(approvers) if approvers.needs_first else _passkey_form(approvers)}</main>"
    )
    return page("Who may approve", body, script="approvers.js", current="/access")


def _first_approver_form(approvers: api.Approvers) -> str:
    waiting = "".join(
        f'<p>{text(approver.name)} waits: <a href="{PATH}/{text(approver.approval_id)}">enrol it</a>'
        " with the setup code.</p>"
        for approver in approvers.approvers
        if approver.approval_id is not None
    )
    return (
        f"{waiting}<p>No one may approve yet. Make your operator key: it stays on this machine, encrypted with your"
        " passphrase. The setup code stands on the terminal of the node (interlock serve): no agent can do this for"
        " you.</p>"
        '<form id="first" class="stack">'
        '<label>Your name<br><input name="name" required maxlength="63" value="operator"></label>'
        '<label>A new passphrase<br><input name="passphrase" type="password" required'
        f' minlength="{PASSPHRASE_CHARS_MIN}"'
        ' autocomplete="new-password"></label>'
        '<label>Once more<br><input name="again" type="password" required autocomplete="new-password"></label>'
        '<label>Setup code<br><input name="code" required autocomplete="off"></label>'
        '<p><button class="go">Make the key</button></p></form>'
    )


def _passkey_form(approvers: api.Approvers) -> str:
    if not approvers.passkey_origin:
        return "<p>Browsers use no passkeys at this address; approve with your key.</p>"
    options = "".join(f"<option>{text(name)}</option>" for name in approvers.keys)
    if not options:
        return "<p>To add a passkey takes the operator key: <code>interlock access passkey NAME</code>.</p>"
    return (
        "<p>With a passkey you approve by fingerprint, face or PIN. To add one takes your operator key, once.</p>"
        '<form id="passkey" class="stack">'
        '<label>Name of the passkey<br><input name="name" required maxlength="63"></label>'
        f'<label>Operator key<br><select name="key">{options}</select></label>'
        '<label>Its passphrase<br><input name="passphrase" type="password" required'
        ' autocomplete="current-password"></label>'
        '<p><button class="go">Make the passkey</button></p></form>'
    )


# The page of one approval


def approval_page(
    approval: api.Approval,
    *,
    error: str | None = None,
    status: int = 200,
    may_decide: bool = True,
    is_session: bool = False,
) -> Response:
    """Return the page of one approval. `error` explains why the last form was refused, if it was. With `is_session`,
    the forms on the page send the key of the session.
    """
    is_open = approval.status in OPEN
    left = ""
    if is_open and approval.left_s:
        left = f' &middot; <span id="left" data-left="{approval.left_s}">{approval.left_s} s</span>'
    refused = "" if error is None else f'<p class="error" role="alert">Nothing was decided: {text(error)}</p>'
    forms = _decision_forms(approval, is_session=is_session) if is_open and may_decide else ""
    body = (
        f'<main id="approval" data-id="{text(approval.id)}" data-status="{text(approval.status)}"'
        f' data-live="{"yes" if is_open or approval.status == "used" else ""}">'
        f'<p class="state {text(approval.status)}">{text(_STATES.get(approval.status, approval.status))}'
        f"{left}</p>"
        f"<h1>{_heading(approval)}</h1>{_effect(approval)}{refused}{_what(approval)}{_outcome_html(approval)}"
        f"{forms}{_facts(approval)}{_ALL}</main>"
    )
    return page(_title(approval), body, script="approval.js", status=status, current="/approvals")


def effect(capability: dict[str, Any] | None, *, is_classified: bool = False) -> str:
    """Describe the effect of a call. `is_classified` means that an operator of this node declared the effect, not the
    server.
    """
    if not capability:
        return "Its effects are not declared."
    whose = "As configured here, it" if is_classified else "The server says that it"
    if capability.get("mutable") is False:
        return f"{whose} changes nothing."
    undone = "can be undone" if capability.get("reversible") is True else "cannot be undone"
    return f"{whose} changes something that {undone}."


def shown(approval: api.Approval) -> Shown:
    return shown_params(bytes(approval.params), approval.kind, lines_max=LINES_MAX, chars_max=CHARS_MAX)


def _is_about_driver(approval: api.Approval) -> bool:
    """Return whether an approval asks a person to trust a driver. A call that waits because of a driver's contract does
    not count.
    """
    return approval.source == "drivers" and approval.kind == "definition"


def _title(approval: api.Approval) -> str:
    if _is_about_driver(approval):
        return f"Trust {approval.name}?"
    if approval.kind in AGENT_EFFECTS:
        return f"The agent {approval.agent or approval.name} waits"
    is_shown = ADDED in approval.factors or is_item(approval.tool)
    is_about_text = approval.answers == ("accept",) and is_shown and approval.kind == "definition"
    titles = {
        "definition": f"May clients see {approval.name}?" if is_about_text else f"What does {approval.name} do?",
        "configuration": "Did you loosen the configuration?",
        "proposal": f"A proposal in the room {approval.room}",
        "request": f"A request to the registry of names: {approval.name}",
        "enrolment": f"May {approval.name} approve from now on?",
    }
    return titles.get(approval.kind, f"A call of {approval.name}")


def _heading(approval: api.Approval) -> str:
    if approval.kind == "definition" or approval.kind in NODE_EFFECTS or approval.kind in AGENT_EFFECTS:
        return text(_title(approval))
    if approval.kind == "proposal":
        verb = "proposes" if approval.status in OPEN else "proposed"
        return f"{text(approval.agent or approval.requested_by)} {verb} <code>{text(approval.name)}</code>"
    verb = "wants to call" if approval.status in OPEN else "called" if approval.status in _RAN else "wanted to call"
    return f"{text(approval.requested_by)} {verb} <code>{text(approval.name)}</code>"


def _effect(approval: api.Approval) -> str:
    if _is_about_driver(approval):
        return '<p class="effect">If you agree, its server is installed and started, until a file of it changes.</p>'
    if approval.kind == "definition":
        effect_words = definition_effect(approval.tool, approval.factors, approval.answers)
        return f'<p class="effect">{text(f"If you agree, {effect_words}.")}</p>'
    if approval.kind in AGENT_EFFECTS:
        return f'<p class="effect">{text(f"If you agree, {AGENT_EFFECTS[approval.kind]}.")}</p>'
    if approval.kind in NODE_EFFECTS:
        return f'<p class="effect grave">{text(f"If you agree, {NODE_EFFECTS[approval.kind]}.")}</p>'
    if approval.kind == "proposal":
        seen = f"Everyone in the room {approval.room} sees this proposal, arguments included."
        return f'<p class="effect">{text(f"If you agree, {PROPOSAL_EFFECT}.")}</p><p class="hint">{text(seen)}</p>'
    words = effect(approval.capability, is_classified=CLASSIFIED in approval.factors)
    is_grave = "cannot" in words and approval.status in OPEN
    return f'<p class="effect{" grave" if is_grave else ""}">{text(words)}</p>'


def _what(approval: api.Approval) -> str:
    heads = {
        "call": "With these arguments",
        "definition": "The server says",
        "enrolment": "The new approver",
        "configuration": "What was loosened",
        "request": "What is asked",
    }
    if _is_about_driver(approval):
        heads["definition"] = "As its files declare it"
    head = f"<h2>{heads.get(approval.kind, 'With')}</h2>"
    if bytes(approval.params) == b"null":
        erased = "The definition is erased here" if approval.kind == "definition" else "The arguments are erased"
        return f"<p>{erased}.</p>" if approval.status not in OPEN else f"{head}<p>There are none.</p>"
    preview = shown(approval)
    folded = f'<p class="error">{text(_FOLDED)}</p>' if preview.is_folded else ""
    return f"{head}{folded}<pre>{escape(chr(10).join(preview.lines))}</pre>"


def _outcome_html(approval: api.Approval) -> str:
    """Return HTML that describes what happened after the decision."""
    sentence = _NEXT.get(approval.status, "").format(by=text(approval.requested_by))
    if approval.kind in ("proposal", "request") and approval.status == "approved":
        sentence = "It is being sent." if approval.kind == "proposal" else "It is being taken up."
    if approval.kind == "definition" and approval.status in ("approved", *_RAN):
        remembered = "It is remembered for this definition of the tool."
        if is_changed(approval.factors):
            remembered = "Clients see it as it was shown here."
        sentence = remembered if approval.status == "done" else ""
    lines, decision = [sentence], approval.decision
    if decision is not None:
        by = f"{decision.by}, with a proof of {decision.proof.anchor}" if decision.proof else decision.by
        reason = f": {decision.reason}" if decision.reason else ""
        lines.append(text(f"{decision.what} at {decision.at} by {by}{reason}"))
    if approval.outcome:
        lines.append(f"outcome: {text(approval.outcome)}")
    words = "".join(f"<p>{line}</p>" for line in lines if line)
    return f'<div class="box">{words}</div>' if words else ""


_SUBJECTS: Final = {"enrolment": "Approver", "request": "Name", "configuration": "Subject"}


def _subject_label(approval: api.Approval) -> str:
    if approval.kind == "definition" and (_is_about_driver(approval) or is_item(approval.tool)):
        return "Server" if _is_about_driver(approval) else "Item"
    return _SUBJECTS.get(approval.kind, "Tool")


def _facts(approval: api.Approval) -> str:
    may_approve = ", ".join(approval.approvers) or "no one yet" if approval.requires == "proof" else "an operator"
    effects = (approval.capability or {}).items()
    capability = [f"{key} {msgspec.json.encode(value).decode()}" for key, value in effects]
    facts = [
        ("Asked by", approval.requested_by),
        ("Participant" if approval.kind == "proposal" else "Agent", approval.agent),
        ("Room", approval.room),
        ("Target", approval.target if approval.kind == "proposal" else None),
        (_subject_label(approval), approval.name),
        ("Signed as", approval.tool if approval.tool != approval.name else None),
        ("Route", " / ".join(approval.route)),
        ("Capability" if CLASSIFIED in approval.factors else "The server says", ", ".join(capability)),
        ("Why you are asked", approval.reason),
        ("Asked at", approval.created_at),
        ("May approve", may_approve),
        ("To be asked less often", "; or ".join(approval.ways_out)),
        ("Digest", approval.digest),
        ("Approval", approval.id),
    ]
    rows = "".join(f"<tr><th>{text(name)}<td>{text(value)}</tr>" for name, value in facts if value)
    return f"<h2>In full</h2><table>{rows}</table>"


def _decision_forms(approval: api.Approval, *, is_session: bool) -> str:
    own = '<input type="hidden" name="session_key">' if is_session else ""
    action = f"/approvals/{quote(approval.id, safe='')}"
    deny = (
        f'<div class="buttons"><form method="post" action="{action}">{own}'
        '<label>Reason, told to the caller<br><input name="reason" maxlength="1000"></label>'
        '<button name="decision" value="deny">Deny</button>'
        f"{_RETURN if approval.kind == 'request' else ''}</form></div>"
    )
    if approval.status == "approved":
        return f'<section class="box"><h2>Changed your mind?</h2>{deny}</section>'
    choice = _choice(approval.answers) + (_AGAIN if shown(approval).is_folded else "")
    choice += _WHY if approval.kind == "request" else ""  # REG-5-9: what a machine cannot judge is accepted in writing
    if approval.requires == "role":
        approve = (
            f'<form method="post" action="{action}">{own}<input type="hidden" name="decision" value="approve">{choice}'
            '<button class="go">Approve</button></form>'
        )
        return f'<section class="box"><h2>Decide</h2><div class="buttons">{approve}</div>{deny}</section>'
    passkey_origin = approval.passkey_origin
    approve, hint = "", ""
    if passkey_origin:
        there = text(f"{passkey_origin}{action}")
        approve = (
            f'<form method="post" action="{action}" hidden>{own}<input type="hidden" name="decision" value="approve">'
            f'<input type="hidden" name="proof">{choice}<button type="button" class="go" id="passkey"'
            f' data-origin="{text(passkey_origin)}">Approve with a passkey</button>'
            f"{_REVEAL if approval.kind in AGENT_EFFECTS else ''}</form>"
        )
        hint = (
            f'<p id="elsewhere" hidden>Your passkey works where it was made: <a href="{there}">{there}</a></p>'
            "<noscript><p>Without JavaScript the browser cannot ask your passkey.</p></noscript>"
        )
    standing, url = "", f"/grants?approval={quote(approval.id, safe='')}"
    if approval.ways_out:  # a standing grant can cover calls like this one
        standing = f'<p><a class="button" id="standing" href="{url}">Sign a standing grant for calls like this</a></p>'
    is_signed_elsewhere = bool(approval.approvers) and not passkey_origin and not approval.signing_keys
    return (
        f'<section class="box"><h2>Decide</h2>{hint}<div class="buttons">{approve}</div>'
        f'{_approve_by_key_form(approval, action, own + choice)}<p class="told" id="told" role="status"></p>'
        f"{deny}{standing}{_edit_form(approval)}"
        f"{_other_ways(approval, action, own + choice, shown=is_signed_elsewhere)}</section>"
    )


def _edit_form(approval: api.Approval) -> str:
    """Return the form that edits a proposal. A new approval with the edited params replaces this one (X-8-2)."""
    if approval.kind != "proposal" or approval.status != "pending" or approval.target is None:
        return ""
    params = bytes(approval.params)
    written = escape("{}" if params == b"null" else msgspec.json.format(params, indent=2).decode())
    return (
        "<details><summary>Edit and approve</summary><p>What you change is shown once more, and signed as it is then;"
        " this approval is void. The proposer is told that it was changed.</p>"
        f'<form id="edit"><label>Params<textarea name="params" class="mono" rows="8" required>{written}</textarea>'
        "</label><p><button>Use these instead</button></p></form></details>"
    )


def _approve_by_key_form(approval: api.Approval, action: str, hidden: str) -> str:
    """Return the HTML form for approving with an operator key of this machine. For the enrolment of the first approver,
    the form asks for the setup code instead.
    """
    if not approval.approvers and approval.kind == "enrolment":
        return (
            "<p>It would be the first that may approve: that takes the setup code on the terminal of the node"
            " (interlock serve), which no agent sees.</p>"
            f'<form method="post" action="{action}" id="bycode" class="bar">'
            f'<input type="hidden" name="decision" value="approve">{hidden}'
            '<label>Setup code<br><input name="code" required autocomplete="off"></label>'
            '<button class="go fixed">Enrol it</button></form>'
        )
    if not approval.approvers:
        return '<p class="told">No one may approve this yet: <a href="/approvers">become an approver</a> first.</p>'
    if not approval.signing_keys:
        return ""
    options = "".join(f"<option>{text(name)}</option>" for name in approval.signing_keys)
    return (
        f'<form method="post" action="{action}" id="bykey" class="bar">'
        '<input type="hidden" name="decision" value="approve">'
        f'<input type="hidden" name="proof">{hidden}<label>Operator key<br><select id="key">{options}</select></label>'
        '<label>Its passphrase<br><input id="passphrase" type="password" required autocomplete="current-password">'
        '</label><button class="go fixed">Approve with the key</button>'
        f"{_REVEAL_BY_KEY if approval.kind in AGENT_EFFECTS else ''}</form>"
    )


def _other_ways(approval: api.Approval, action: str, choice: str, *, shown: bool) -> str:
    code = f"<p>To see its code: <code>interlock approvals show {text(approval.id)} --code</code></p>"
    how = (
        f"<p>Where your key is: <code>interlock approve {text(approval.id)}</code></p>"
        f"{code if approval.kind in AGENT_EFFECTS else ''}"
        f'<form method="post" action="{action}"><input type="hidden" name="decision" value="approve">{choice}'
        '<p><label>Or paste a proof that was signed elsewhere<textarea name="proof" rows="3" required></textarea>'
        "</label></p><button>Approve with this proof</button></form>"
    )
    if shown:
        hint = "<p>A passkey would do it here: <code>interlock access passkey NAME</code> makes one.</p>"
        return f"<h2>Approve</h2>{how}{hint}"
    return f"<details><summary>Other ways to approve</summary>{how}</details>"


def _choice(answers: Sequence[str]) -> str:
    if len(answers) < 2:
        return ""
    options = "".join(f'<option value="{text(answer)}">{text(answer.replace("_", " "))}</option>' for answer in answers)
    return f'<label>It is<br><select name="class" required><option value="">choose</option>{options}</select></label>'


REQUEST_HANDLERS: RequestHandlers = {
    api.LIST_APPROVALS: list_approvals,
    api.GET_APPROVAL: get_approval,
    api.DECIDE_APPROVAL: decide_approval,
    api.VISIT_APPROVERS: visit_approvers,
}
