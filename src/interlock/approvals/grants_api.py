"""Types of the operator API about standing grants."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Raw, Struct

from interlock.approvals.api import (
    AMBIGUOUS_ID,
    ANCHOR_NAME,
    CONFIRMATION_OVER,
    PASSPHRASE_CHARS_MAX,
    PROOF_INVALID,
    TOO_OFTEN,
    PasskeyRequest,
    SignedProof,
)
from interlock.operator.operation import CHANGED, NOT_FOUND, NOT_LOCAL, ErrorCase, Operation, RequestBody, operations_in


class GrantRule(Struct, frozen=True, kw_only=True):
    """Rule for one argument of a call. A call with an argument that has no rule is not covered."""

    at: Annotated[str, Meta(description="The argument, as a JSON pointer: /path. Empty: all of them together.")]
    kind: Annotated[
        Literal["equals", "one_of", "below", "range", "any"],
        Meta(description="below: a path inside a folder; range: a number between two; any: also absent."),
    ]
    value: Annotated[Any, Meta(description="The value, the values, the folder or the two numbers; null for any.")] = (
        None
    )
    each: Annotated[bool, Meta(description="It is a list, and the rule holds for each of its items.")] = False


class GrantTerms(Struct, frozen=True, kw_only=True):
    """Terms of a grant. The SHA-256 digest of the canonical JSON (RFC 8785) of these members,
    `kind` and `v` is signed.
    """

    id: Annotated[str, Meta(description="Its id, a UUID.")]
    aggregator_id: Annotated[str, Meta(description="The node that it is for.")]
    tool: Annotated[str, Meta(description="The tool, by its qualified name.")]
    tool_digest: Annotated[str, Meta(description="The digest of the tool's definition.")]
    who: Annotated[str, Meta(description="The caller, as approvals have it in requested_by.")]
    rules: Annotated[tuple[GrantRule, ...], Meta(description="What the arguments may be.")]
    calls: Annotated[int | None, Meta(description="For how many calls; null: without a number.")]
    until: Annotated[int | None, Meta(description="Until when, in UNIX seconds; null: without an end.")]
    issued_at: Annotated[int, Meta(description="When it was drafted, in UNIX seconds.")]
    reason: Annotated[str | None, Meta(description="Why, in the words of who signs it.")] = None


class GrantDraft(Struct, frozen=True, kw_only=True):
    """A grant that can be signed, with the description that a person is shown."""

    terms: Annotated[GrantTerms, Meta(description="What is signed.")]
    digest: Annotated[str, Meta(description="Its digest: call_digest of the proof; terms.id is its confirmation_id.")]
    words: Annotated[tuple[str, ...], Meta(description="What it lets pass, one sentence each.")]
    is_held_below: Annotated[bool, Meta(description="A node below holds these calls too, and still asks.")]
    approvers: Annotated[tuple[str, ...], Meta(description="The anchors whose proof may sign it.")]
    passkey_origin: Annotated[str | None, Meta(description="Where a passkey may sign it.")]
    signing_keys: Annotated[tuple[str, ...], Meta(description="Operator keys of the node's machine that may sign it.")]


class Grant(Struct, frozen=True, kw_only=True):
    """A signed grant, with its uses and its state."""

    terms: Annotated[GrantTerms, Meta(description="What was signed.")]
    digest: Annotated[str, Meta(description="Its digest.")]
    words: Annotated[tuple[str, ...], Meta(description="What it lets pass, one sentence each.")]
    state: Annotated[str, Meta(description="active, or over.")]
    over: Annotated[str | None, Meta(description="Why it lets nothing pass any more; null: it does.")]
    used: Annotated[int, Meta(description="How many calls it has let pass.")]
    used_at: Annotated[str | None, Meta(description="When the last one was.")]
    signed_at: Annotated[str, Meta(description="When it was signed.")]
    until: Annotated[str | None, Meta(description="Until when it is good.")]
    anchor: Annotated[str, Meta(description="The anchor whose key signed it.")]
    signed_by: Annotated[str, Meta(description="The principal that brought it.")]
    approvals: Annotated[tuple[str, ...], Meta(description="The latest calls under it: ids of approvals, newest last.")]


class Grants(Struct, frozen=True, kw_only=True):
    """The standing grants, including those that ended within the last 30 days."""

    grants: Annotated[tuple[Grant, ...], Meta(description="Oldest first.")]


class DraftGrant(RequestBody, frozen=True, kw_only=True):
    """Request to draft a standing grant from a held call, or for a tool and a caller."""

    approval: Annotated[str | None, Meta(description="The id of a held call that it is to cover.")] = None
    tool: Annotated[str | None, Meta(description="The tool, where it comes from no call.")] = None
    who: Annotated[str | None, Meta(description="The caller, where it comes from no call.")] = None
    rules: Annotated[
        tuple[GrantRule, ...] | None,
        Meta(description="Rules; what they do not name stays as in the call. null: proposed from the call."),
    ] = None
    calls: Annotated[int | None, Meta(description="For how many calls.")] = None
    seconds: Annotated[int | None, Meta(description="For how long from now; a day where neither is given.")] = None
    reason: Annotated[str | None, Meta(description="Why; it is part of what is signed.")] = None


class NameGrant(RequestBody, frozen=True, kw_only=True):
    """Reference to a drafted grant."""

    terms: Annotated[GrantTerms, Meta(description="As the draft has them.")]


class UnlockForGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant, and the passphrase of an operator key for one signature."""

    passphrase: Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
    key: Annotated[
        Annotated[str, Meta(pattern=ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
    ] = None


class SignGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant, and the signed proof of an approver."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]


# Errors

BAD_GRANT: Final = ErrorCase("bad_grant", 400, "the grant cannot be signed as it is; the message says why")
BAD_GRANT_DRAFT: Final = ErrorCase("bad_grant", 409, "no such grant can be signed; the message says why")
NOT_GRANTABLE: Final = ErrorCase(
    "not_grantable", 409, "no standing grant can cover calls of this tool; the message says why"
)


# Operations

LIST_GRANTS: Final = Operation(
    "list_grants", "grants", "GET /admin/grants", "Every standing grant, and how often it was used.", output=Grants
)
SIGN_GRANT: Final = Operation(
    "sign_grant",
    "grants",
    "POST /admin/grants",
    "Sign a grant that was drafted: the proof is over terms.id and digest.",
    role="admin",
    input=SignGrant,
    output=Grant,
    status=201,
    errors=(BAD_GRANT, CHANGED, CONFIRMATION_OVER, NOT_FOUND, NOT_GRANTABLE, PROOF_INVALID),
)
DRAFT_GRANT: Final = Operation(
    "draft_grant",
    "grants",
    "POST /admin/grants/draft",
    "Draft a grant, from a held call with rules proposed from its arguments, or for a tool. Keeps nothing.",
    role="admin",
    input=DraftGrant,
    output=GrantDraft,
    errors=(AMBIGUOUS_ID, BAD_GRANT_DRAFT, CHANGED, NOT_FOUND, NOT_GRANTABLE),
)
ASK_GRANT_PASSKEY: Final = Operation(
    "ask_grant_passkey",
    "grants",
    "POST /admin/grants/passkey",
    "What a browser asks a passkey, for it to sign this grant.",
    role="admin",
    input=NameGrant,
    output=PasskeyRequest,
    errors=(BAD_GRANT, PROOF_INVALID),
)
PROVE_GRANT: Final = Operation(
    "prove_grant",
    "grants",
    "POST /admin/grants/proof",
    "A proof for this grant by an operator key of the node's machine, unlocked by its passphrase.",
    role="admin",
    input=UnlockForGrant,
    output=SignedProof,
    errors=(BAD_GRANT, NOT_LOCAL, PROOF_INVALID, TOO_OFTEN),
    takes_passphrase=True,
)
GET_GRANT: Final = Operation(
    "get_grant",
    "grants",
    "GET /admin/grants/{id}",
    "One grant, by its id or the beginning of it, and the latest calls under it.",
    output=Grant,
    errors=(AMBIGUOUS_ID, NOT_FOUND),
)
REVOKE_GRANT: Final = Operation(
    "revoke_grant",
    "grants",
    "POST /admin/grants/{id}/revoke",
    "Revoke a grant: from now on it lets nothing pass.",
    role="admin",
    output=Grant,
    errors=(AMBIGUOUS_ID, NOT_FOUND),
)

OPERATIONS: Final = operations_in(globals())
