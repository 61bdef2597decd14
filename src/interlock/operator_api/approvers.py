"""Approvers: whose signature may approve, and how a person becomes one in a browser."""

from typing import Annotated

from msgspec import Meta, Struct

from interlock.operator_api.passkeys import PasskeyCreation


class Approver(Struct, frozen=True, kw_only=True):
    """A key, passkey or key set whose signature may approve, or would if it were enrolled."""

    name: Annotated[str, Meta(description="The name of the anchor.")]
    kind: Annotated[str, Meta(description="key, passkey or jwks.")]
    approves: Annotated[tuple[str, ...], Meta(description="Patterns of the tools that it may approve.")]
    wants: Annotated[tuple[str, ...], Meta(description="Patterns that are configured and not enrolled.")]
    enrolled_at: Annotated[str | None, Meta(description="Since when it is believed.")]
    how: Annotated[
        str | None,
        Meta(
            description="first_start: it stood in the first configuration; setup_code; proof: another vouched for it."
        ),
    ]
    by: Annotated[str | None, Meta(description="Who vouched for it.")]
    approval_id: Annotated[str | None, Meta(description="What waits in the inbox for it to be enrolled.")]


class Approvers(Struct, frozen=True, kw_only=True):
    """Whose signature may approve here, and what a browser can do about it."""

    approvers: Annotated[tuple[Approver, ...], Meta(description="Those of the configuration first.")]
    needs_first: Annotated[bool, Meta(description="There is none: the first takes the setup code of the node.")]
    keys: Annotated[
        tuple[str, ...], Meta(description="Keys on the node's machine that sign here, once unlocked by a passphrase.")
    ]
    passkey_origin: Annotated[str | None, Meta(description="Where browsers make and use passkeys; null: nowhere.")]


class PasskeyOffer(Struct, frozen=True, kw_only=True):
    """What a browser needs to make a passkey."""

    ticket: Annotated[str, Meta(description="Names this offer; good for ten minutes.")]
    creation: Annotated[PasskeyCreation, Meta(description="What the browser is told.")]


class SignedProof(Struct, frozen=True, kw_only=True):
    """A proof for one approval or grant, signed with a key of the node's machine."""

    proof: Annotated[
        str, Meta(description="The token, which POST /approvals/{id} or /admin/grants takes within five minutes.")
    ]
