"""Signing a decision with the operator's key: creates the proof for an approval, a grant or a list of classes.

The command computes the digest of a call from what the person was shown. If the node reports a different digest,
nothing is signed, because a signature must cover exactly what the person saw.
"""

import secrets
import time
from collections.abc import Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import astuple, replace

from interlock.approvals import api, grants_api
from interlock.approvals.cli.grants import with_proposed
from interlock.approvals.cli.keys import KeyChoice, OperatorKeys, own_name, read_passphrase, require_confirmation
from interlock.approvals.grant_terms import grant_digest
from interlock.approvals.protocol import digests
from interlock.approvals.protocol.approval import Kind
from interlock.cli.command import Invocation
from interlock.cli.terminal.errors import BadUsage
from interlock.cli.terminal.text import as_typed, count, one_line
from interlock.gate.protocol.held_call import call_digest
from interlock.gate.protocol.proofs import TYP, ProofQuestion, claims_of
from interlock.wire.refusal import Refused

JTI_BYTES = 16


def prove(shown: api.Approval, key: KeyChoice, *, choice: str | None) -> Raw:
    """Sign an approval, and return the `proof` member for POST /approvals/{id}. `choice` is the chosen answer if the
    approval has several possible answers.
    """
    digest, node = _digest(shown, choice), shown.aggregator_id
    question = ProofQuestion(confirmation_id=shown.id, call_digest=digest, tool=shown.tool, aggregator_id=node)
    return sign(question, key, approvers=shown.approvers)


def prove_classes(aggregator_id: str, id: str, entries: Sequence[api.ToolRuling], key: KeyChoice) -> Raw:
    """Return a proof in which the user signs the classes of tools that were shown."""
    digest, tool = digests.classification_digest(id, map(astuple, entries)), entries[0].tool
    question = ProofQuestion(confirmation_id=id, call_digest=digest, tool=tool, aggregator_id=aggregator_id)
    return sign(question, key)


def sign(question: ProofQuestion, key: KeyChoice, *, approvers: Sequence[str] = ()) -> Raw:
    """Return a proof signed by a key of the user on this machine. If the node names `approvers`, one of their keys
    signs.
    """
    keys = OperatorKeys()
    names, own = keys.names(), own_name()
    entitled = [name for name in names if name in approvers]
    if key.key is not None:
        name = key.key
    elif own not in entitled and len(entitled) == 1:
        name = entitled[0]
    elif own in names or not names:
        name = own
    elif len(names) > 1:
        raise BadUsage("which_key", f"there are several keys: {', '.join(names)}", hint="choose one with --key NAME")
    else:
        name = names[0]
    signer = keys.open(name, lambda: read_passphrase(name, key.passphrase_fd))
    claims = claims_of(question, issuer=name, jti=secrets.token_urlsafe(JTI_BYTES), now=time.time())
    return Raw(msgspec.json.encode({"type": "operator_signature", "token": signer.sign(TYP, claims)}))


def _digest(shown: api.Approval, choice: str | None) -> str:
    """Return the digest that a person signs to approve. Raise Refused if the digest that the node sent is not the
    digest of what the person was shown.
    """
    try:
        kind = Kind(shown.kind)
    except ValueError:
        why = "the node asks for a kind of decision this version does not know"
        hint = "compare interlock version with the version of the node"
        raise Refused("unexpected_answer", why, hint=hint) from None
    params = shown.params
    computed: object = shown.digest
    match kind:
        case Kind.ENROLMENT | Kind.CONFIGURATION:
            computed = digests.enrolment_digest(params)
        case Kind.DEFINITION:
            computed = digests.shown_digest(params)
        case Kind.PROPOSAL:
            names = (shown.room, shown.proposal_id, shown.agent, shown.target, shown.method)
            computed = digests.proposal_digest(*names, bytes(params))
        case Kind.CALL:
            computed = call_digest(
                None if bytes(params) == b"null" else params,
                aggregator_id=shown.aggregator_id,
                tool=shown.tool,
                route=shown.route,
                caller=shown.requested_by,
                tool_digest=shown.tool_digest or "",
            )
    if computed != shown.digest:
        raise _not_what_is_shown(shown.kind)
    return digests.decision_digest(kind, shown.tool, shown.digest, choice)


def _not_what_is_shown(what: str) -> Refused:
    return Refused(
        "not_what_is_shown",
        f"the node asks for the signature of another {what} than it shows; nothing was signed",
        hint=f"compare interlock version with the version of the node; deny the {what} if they are the same",
    )


def draft_from_call(
    invocation: Invocation, wanted: grants_api.DraftGrant, rules_set: list[grants_api.GrantRule]
) -> grants_api.GrantDraft:
    """Draft a standing grant from a held call. The node proposes rules for the arguments that the user's rules in
    `rules_set` leave out.
    """
    proposed = invocation.node.call(grants_api.DRAFT_GRANT, body=wanted).as_(grants_api.GrantDraft)
    if not rules_set:
        return proposed
    rules = tuple(with_proposed(rules_set, proposed.terms.rules))
    return invocation.node.call(grants_api.DRAFT_GRANT, body=replace(wanted, rules=rules)).as_(grants_api.GrantDraft)


def sign_drafted(invocation: Invocation, draft: grants_api.GrantDraft, key: KeyChoice, *, yes: bool) -> None:
    out = invocation.out
    if not out.as_json:
        out.lines("\n".join(grant_lines(draft.words)))
    if draft.is_held_below:
        out.remark("note: a node below holds these calls too, and still asks; this grant is for this node alone")
    if not yes:
        hint = "run it on a terminal, or with --yes after you have read it"
        require_confirmation("Sign this standing grant?", hint=hint, undone="signed")
    grant, digest = draft.terms, grant_digest(draft.terms)
    if digest != draft.digest:
        raise _not_what_is_shown("grant")
    node = grant.aggregator_id
    question = ProofQuestion(confirmation_id=grant.id, call_digest=digest, tool=grant.tool, aggregator_id=node)
    proof = sign(question, key)
    signed = invocation.call_or_print(grants_api.SIGN_GRANT, body=grants_api.SignGrant(terms=draft.terms, proof=proof))
    if signed is None:
        return
    ending = as_typed(f"interlock grants revoke {signed.terms.id[:8]}")
    out.line(f"signed: {signed.terms.id[:8]}; {ending} ends it at any time")
    if signed.approvals:
        waiting = count(len(signed.approvals), "waiting call")
        out.line(f"approved with it: {waiting}, which {signed.terms.who} makes again")


def grant_lines(words: tuple[str, ...]) -> list[str]:
    first, *rest = map(one_line, words)
    return [first, *(f"  - {line}" for line in rest)]
