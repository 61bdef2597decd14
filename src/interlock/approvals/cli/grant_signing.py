"""Signing a standing grant: from a draft that the node made, over what the person is shown, to a grant that counts."""

import typer

from interlock.approvals.cli.grant_options import with_proposed
from interlock.approvals.cli.passphrases import can_ask
from interlock.approvals.cli.signing import prove_grant
from interlock.approvals.grants_api import DraftGrant, Grant, GrantDraft, GrantRule, SignGrant
from interlock.cli.command import Invocation
from interlock.cli.terminal.errors import Refused, Waits
from interlock.cli.terminal.program import as_typed
from interlock.cli.terminal.text import count, one_line


def draft_from_call(invocation: Invocation, wanted: DraftGrant, given: list[GrantRule]) -> GrantDraft:
    """`given`: the rules of the person; for other arguments those count that the node proposes."""
    from msgspec.structs import replace

    proposed = invocation.node.post("grants", "draft", body=wanted).as_(GrantDraft)
    if not given:
        return proposed
    rules = tuple(with_proposed(given, proposed.terms.rules))
    return invocation.node.post("grants", "draft", body=replace(wanted, rules=rules)).as_(GrantDraft)


def sign_drafted(
    invocation: Invocation, draft: GrantDraft, *, yes: bool, key: str | None, passphrase_fd: int | None
) -> None:
    out = invocation.out
    if not out.as_json:
        for line in grant_lines(draft.words):
            out.line(line)
    if draft.is_held_below:
        out.remark("note: a node below holds these calls too, and goes on asking; this grant is for this node alone")
    if not yes:
        if not can_ask():
            hint = "run it on a terminal, or with --yes after you have read it"
            raise Refused("not_confirmed", "there is no terminal to confirm on, and nothing was signed", hint=hint)
        if not typer.confirm("Sign this standing grant?", err=True):
            raise Waits("not_decided", "nothing was signed")
    proof = prove_grant(draft, key=key, passphrase_fd=passphrase_fd)
    done = invocation.node.post("grants", body=SignGrant(terms=draft.terms, proof=proof))
    if out.as_json:
        out.raw_json(done.raw)
        return
    signed = done.as_(Grant)
    ending = as_typed(f"interlock grants revoke {signed.terms.id[:8]}")
    out.line(f"signed: {signed.terms.id[:8]}; {ending} ends it at any time")
    if signed.approvals:
        waiting = count(len(signed.approvals), "waiting call")
        out.line(f"approved with it: {waiting}, which {one_line(signed.terms.who)} makes again")


def grant_lines(words: tuple[str, ...]) -> list[str]:
    first, *rest = map(one_line, words)
    return [first, *(f"  - {line}" for line in rest)]
