"""Types of the operator API about standing grants, and the operations on them."""

from typing import Any, Final, Literal

from msgspec import Raw, Struct

from interlock.approvals.api import (
    AMBIGUOUS_ID,
    CONFIRMATION_OVER,
    PROOF_INVALID,
    TOO_OFTEN,
    KeyName,
    PasskeyRequest,
    Passphrase,
    SignedProof,
)
from interlock.operator.operation import CHANGED, NOT_FOUND, NOT_LOCAL, ErrorCase, Operation, RequestBody, operations_in


class GrantRule(Struct, frozen=True, kw_only=True):
    """Rule for one argument of a call. A call with an argument that has no rule is not covered.

    Members:
        at: The argument, as a JSON pointer: /path. Empty: all of them together.
        kind: below: a path inside a folder; range: a number between two; any: also absent.
        value: The value, the values, the folder or the two numbers; null for any.
        each: It is a list, and the rule holds for each of its items.
    """

    at: str
    kind: Literal["equals", "one_of", "below", "range", "any"]
    value: Any = None
    each: bool = False


class GrantTerms(Struct, frozen=True, kw_only=True):
    """Terms of a standing grant. A person signs the SHA-256 digest of their canonical JSON (RFC 8785), together with
    the members `kind` and `v`.

    Members:
        id: Its id, a UUID.
        aggregator_id: The node that it is for.
        tool: The tool, by its qualified name.
        tool_digest: The digest of the tool's definition.
        who: The caller, as approvals have it in requested_by.
        rules: What the arguments may be.
        calls: For how many calls; null: without a number.
        until: Until when, in UNIX seconds; null: without an end.
        issued_at: When it was drafted, in UNIX seconds.
        reason: Why, in the words of who signs it.
    """

    id: str
    aggregator_id: str
    tool: str
    tool_digest: str
    # A caller, or a parent and the mark of its caller.
    who: str
    rules: tuple[GrantRule, ...]
    calls: int | None
    until: int | None
    issued_at: int
    reason: str | None = None


class GrantDraft(Struct, frozen=True, kw_only=True):
    """A grant that can be signed, with the description that a person is shown.

    Members:
        terms: What is signed.
        digest: Its digest: call_digest of the proof; terms.id is its confirmation_id.
        words: What it lets pass, one sentence each.
        is_held_below: A node below holds these calls too, and still asks.
        approvers: The anchors whose proof may sign it.
        passkey_origin: Where a passkey may sign it.
        signing_keys: Operator keys of the node's machine that may sign it.
    """

    terms: GrantTerms
    digest: str
    words: tuple[str, ...]
    is_held_below: bool
    approvers: tuple[str, ...]
    passkey_origin: str | None
    signing_keys: tuple[str, ...]


class Grant(Struct, frozen=True, kw_only=True):
    """A signed grant, with its uses and its state.

    Members:
        terms: What was signed.
        digest: Its digest.
        words: What it lets pass, one sentence each.
        state: active, or over.
        over: Why it lets nothing pass any more; null: it does.
        used: How many calls it has let pass.
        used_at: When the last one was.
        signed_at: When it was signed.
        until: Until when it is good.
        anchor: The anchor whose key signed it.
        signed_by: The principal that brought it.
        approvals: The latest calls under it: ids of approvals, newest last.
    """

    terms: GrantTerms
    digest: str
    words: tuple[str, ...]
    state: str
    over: str | None
    used: int
    used_at: str | None
    signed_at: str
    until: str | None
    anchor: str
    signed_by: str
    approvals: tuple[str, ...]


class Grants(Struct, frozen=True, kw_only=True):
    """The standing grants, including those that ended within the last 30 days.

    Members:
        grants: Oldest first.
    """

    grants: tuple[Grant, ...]


class DraftGrant(RequestBody, frozen=True, kw_only=True):
    """Request to draft a standing grant from a held call, or for a tool and a caller.

    Members:
        approval: The id of a held call that it is to cover.
        tool: The tool, where it comes from no call.
        who: The caller, where it comes from no call.
        rules: Rules; what they do not name stays as in the call. null: proposed from the call.
        calls: For how many calls.
        seconds: For how long from now; a day where neither is given.
        reason: Why; it is part of what is signed.
    """

    approval: str | None = None
    tool: str | None = None
    who: str | None = None
    rules: tuple[GrantRule, ...] | None = None
    calls: int | None = None
    seconds: int | None = None
    reason: str | None = None


class NameGrant(RequestBody, frozen=True, kw_only=True):
    """Request about a drafted grant, which contains the terms of the draft.

    Members:
        terms: As the draft has them.
    """

    terms: GrantTerms


class UnlockForGrant(NameGrant, frozen=True, kw_only=True):
    """Request to sign a drafted grant with an operator key, with the passphrase that unlocks the key for one signature.

    Members:
        passphrase: Kept nowhere.
        key: Which key; null: the only one.
    """

    passphrase: Passphrase
    key: KeyName = None


class SignGrant(NameGrant, frozen=True, kw_only=True):
    """Request to store a drafted grant, with the signed proof of an approver.

    Members:
        proof: {type, token}, or the token alone.
    """

    proof: Raw


# Errors

BAD_GRANT: Final = ErrorCase("bad_grant", 400, "the grant cannot be signed as it is; the message says why")
BAD_GRANT_DRAFT: Final = ErrorCase("bad_grant", 409, "no such grant can be signed; the message says why")
NOT_GRANTABLE: Final = ErrorCase(
    "not_grantable", 409, "no standing grant can cover calls of this tool; the message says why"
)


# Operations

LIST_GRANTS: Final = Operation("GET /admin/grants", "Every standing grant, and how often it was used.", output=Grants)
SIGN_GRANT: Final = Operation(
    "POST /admin/grants",
    "Sign a grant that was drafted: the proof is over terms.id and digest.",
    input=SignGrant,
    output=Grant,
    status=201,
    errors=(BAD_GRANT, CHANGED, CONFIRMATION_OVER, NOT_FOUND, NOT_GRANTABLE, PROOF_INVALID),
)
DRAFT_GRANT: Final = Operation(
    "POST /admin/grants/draft",
    "Draft a grant, from a held call with rules proposed from its arguments, or for a tool. Keeps nothing.",
    input=DraftGrant,
    output=GrantDraft,
    errors=(AMBIGUOUS_ID, BAD_GRANT_DRAFT, CHANGED, NOT_FOUND, NOT_GRANTABLE),
)
ASK_GRANT_PASSKEY: Final = Operation(
    "POST /admin/grants/passkey",
    "What a browser asks a passkey, for it to sign this grant.",
    input=NameGrant,
    output=PasskeyRequest,
    errors=(BAD_GRANT, PROOF_INVALID),
)
PROVE_GRANT: Final = Operation(
    "POST /admin/grants/proof",
    "A proof for this grant by an operator key of the node's machine, unlocked by its passphrase.",
    input=UnlockForGrant,
    output=SignedProof,
    errors=(BAD_GRANT, NOT_LOCAL, PROOF_INVALID, TOO_OFTEN),
)
GET_GRANT: Final = Operation(
    "GET /admin/grants/{id}",
    "One grant, by its id or the beginning of it, and the latest calls under it.",
    output=Grant,
    errors=(AMBIGUOUS_ID,),
)
REVOKE_GRANT: Final = Operation(
    "POST /admin/grants/{id}/revoke",
    "Revoke a grant: from now on it lets nothing pass.",
    output=Grant,
    errors=(AMBIGUOUS_ID,),
)

OPERATIONS: Final = operations_in(globals(), "grants")
