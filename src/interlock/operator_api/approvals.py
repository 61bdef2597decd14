"""Approvals: what waits for a decision, what was decided, and by whom."""

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct


class ProofFacts(Struct, frozen=True, kw_only=True):
    """The proof behind a decision, by name; never the proof itself."""

    type: Annotated[str, Meta(description="operator_signature, passkey, ...")]
    anchor: Annotated[str, Meta(description="Whose key made it.")]
    jti: Annotated[str, Meta(description="Its id.")]


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided."""

    what: Annotated[str, Meta(description="approved or denied.")]
    by: Annotated[str, Meta(description="The principal who decided.")]
    at: Annotated[str, Meta(description="When.")]
    reason: Annotated[str | None, Meta(description="The reason that was given.")]
    answer: Annotated[str | None, Meta(description="The answer to a question that has several.")]
    proof: Annotated[ProofFacts | None, Meta(description="The proof that was given.")]


class ApprovalSummary(Struct, frozen=True, kw_only=True):
    """An approval as lists and events show it: without arguments."""

    id: Annotated[str, Meta(description="Its id.")]
    kind: Annotated[str, Meta(description="call, definition, start, step, verify, proposal or request.")]
    source: Annotated[str, Meta(description="Which part of the node asks: ax, drivers, ...")]
    status: Annotated[
        str,
        Meta(
            description="pending, approved, used, done, failed, unknown, denied, withdrawn, expired or void.",
        ),
    ]
    requested_by: Annotated[str, Meta(description="The principal who asked.")]
    agent: Annotated[str | None, Meta(description="The agent that asked, as it names itself.")]
    room: Annotated[str | None, Meta(description="In which room.")]
    tool: Annotated[str, Meta(description="What it is about, as it is signed.")]
    name: Annotated[str, Meta(description="What it is about, as people call it: a tool, a server, an approver.")]
    reason: Annotated[str | None, Meta(description="Why a person is asked.")]
    requires: Annotated[str, Meta(description="What approving takes: proof or role.")]
    created_at: Annotated[str, Meta(description="When it was asked.")]
    expires_at: Annotated[str | None, Meta(description="Until when it can be decided.")]
    redeem_by: Annotated[str | None, Meta(description="Until when an approved call can be made.")]
    left_s: Annotated[int | None, Meta(description="Seconds until the next of these; null: no limit.")]
    decision: Annotated[Decision | None, Meta(description="What was decided.")]
    outcome: Annotated[str | None, Meta(description="How the call ended.")]
    url: Annotated[str, Meta(description="Its page.")]


class Approval(ApprovalSummary, frozen=True, kw_only=True):
    """An approval in full, with everything that a person or a signer needs to decide."""

    proposal_id: Annotated[str | None, Meta(description="The proposal in a room that it belongs to.")]
    target: Annotated[str | None, Meta(description="Whom it is addressed to.")]
    method: Annotated[str | None, Meta(description="The method of the call.")]
    params: Annotated[Raw, Meta(description="The arguments, or the definition; null: none, or erased.")]
    route: Annotated[tuple[str, ...], Meta(description="The segments that lead to the tool.")]
    capability: Annotated[dict[str, Any] | None, Meta(description="What the call may change.")]
    digest: Annotated[str, Meta(description="What is signed.")]
    tool_digest: Annotated[str | None, Meta(description="The digest of the tool's definition.")]
    nonce: Annotated[str | None, Meta(description="The nonce of a proof from below.")]
    factors: Annotated[tuple[str, ...], Meta(description="What made the node ask.")]
    gating_link: Annotated[str | None, Meta(description="The hop that holds the call.")]
    answers: Annotated[tuple[str, ...], Meta(description="The answers a decision can choose from.")]
    approvers: Annotated[tuple[str, ...], Meta(description="The anchors whose proof may approve it.")]
    aggregator_id: Annotated[str, Meta(description="The node that asks, as it is signed.")]
    passkey_origin: Annotated[str | None, Meta(description="Where a passkey may approve it.")]
    ways_out: Annotated[tuple[str, ...], Meta(description="What a person can do to be asked less often.")] = ()
    signing_keys: Annotated[
        tuple[str, ...], Meta(description="Keys of the node's machine that sign, once unlocked by a passphrase.")
    ] = ()


class Approvals(Struct, frozen=True, kw_only=True):
    """The approvals that were asked for."""

    approvals: Annotated[tuple[ApprovalSummary, ...], Meta(description="Oldest first; of many, the newest.")]
    total: Annotated[int, Meta(description="How many there are.")]
