"""The operator API about standing grants."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from interlock.approvals.api import ANCHOR_NAME, PASSPHRASE_CHARS_MAX
from interlock.operator.operation import RequestBody


class GrantRule(Struct, frozen=True, kw_only=True):
    """What one argument of a call may be. An argument without a rule may not be there."""

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
    """A grant as it is signed: SHA-256 over the canonical JSON (RFC 8785) of these members, `kind` and `v`."""

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
    """A grant to be signed, and what a person is shown of it."""

    terms: Annotated[GrantTerms, Meta(description="What is signed.")]
    digest: Annotated[str, Meta(description="Its digest: call_digest of the proof; terms.id is its confirmation_id.")]
    words: Annotated[tuple[str, ...], Meta(description="What it lets pass, one sentence each.")]
    is_held_below: Annotated[bool, Meta(description="A node below holds these calls too, and still asks.")]
    approvers: Annotated[tuple[str, ...], Meta(description="The anchors whose proof may sign it.")]
    passkey_origin: Annotated[str | None, Meta(description="Where a passkey may sign it.")]
    signing_keys: Annotated[tuple[str, ...], Meta(description="Operator keys of the node's machine that may sign it.")]


class Grant(Struct, frozen=True, kw_only=True):
    """A signed grant, and what became of it."""

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
    """Every standing grant; those that are over are kept for 30 days."""

    grants: Annotated[tuple[Grant, ...], Meta(description="Oldest first.")]


class DraftGrant(RequestBody, frozen=True, kw_only=True):
    """A standing grant to be drafted: from a held call, or for a tool and a caller."""

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
    """A drafted grant."""

    terms: Annotated[GrantTerms, Meta(description="As the draft has them.")]


class UnlockForGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant, and the passphrase of an operator key for one signature."""

    passphrase: Annotated[str, Meta(description="Kept nowhere.", min_length=1, max_length=PASSPHRASE_CHARS_MAX)]
    key: Annotated[
        Annotated[str, Meta(pattern=ANCHOR_NAME)] | None, Meta(description="Which key; null: the only one.")
    ] = None


class SignGrant(NameGrant, frozen=True, kw_only=True):
    """A drafted grant and the proof of who signs it."""

    proof: Annotated[Raw, Meta(description="{type, token}, or the token alone.")]
