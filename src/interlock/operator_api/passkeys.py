"""Passkeys: what a browser is asked, and the invitation with which a person makes one."""

from typing import Annotated

from msgspec import Meta, Struct


class PasskeyRequest(Struct, frozen=True, kw_only=True, rename={"rp_id": "rpId"}):
    """What a browser asks a passkey for an approval (WebAuthn 5.5); bytes in base64url."""

    challenge: Annotated[str, Meta(description="What is signed.")]
    rp_id: Annotated[str, Meta(description="The relying party.")]
    credentials: Annotated[tuple[str, ...], Meta(description="The passkeys that may sign.")]
    timeout: Annotated[int, Meta(description="Milliseconds that the browser waits.")]


class PasskeyCreation(Struct, frozen=True, kw_only=True, rename={"rp_id": "rpId"}):
    """What a browser is told to make a passkey (WebAuthn 5.4); bytes in base64url."""

    challenge: Annotated[str, Meta(description="What is signed.")]
    rp_id: Annotated[str, Meta(description="The relying party.")]
    user: Annotated[str, Meta(description="The handle of the user.")]
    name: Annotated[str, Meta(description="The name of the user.")]
    algorithms: Annotated[tuple[int, ...], Meta(description="COSE algorithms that are taken.")]
    exclude: Annotated[tuple[str, ...], Meta(description="Passkeys that are known already.")]
    timeout: Annotated[int, Meta(description="Milliseconds that the browser waits.")]


class Invitation(Struct, frozen=True, kw_only=True):
    """An invitation to make a passkey, and what became of it."""

    name: Annotated[str, Meta(description="Whose passkey it will be.")]
    url: Annotated[str, Meta(description="The page on which it is made. Anyone who has this URL can make a passkey.")]
    expires_at: Annotated[str, Meta(description="Until when.")]
    status: Annotated[str, Meta(description="waiting or made.")]
    passkey: Annotated[str | None, Meta(description="The passkey, as it is written in an [[anchor]].")]
    thumbprint: Annotated[str | None, Meta(description="The thumbprint of its key.")]
