"""The operator API about what servers are given: secrets, and consents of people to OAuth tokens."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.operator.operation import RequestBody

SecretKind = Literal["secret", "token", "client"]


class Secret(Struct, frozen=True, kw_only=True):
    """The name of something that is kept."""

    kind: Annotated[SecretKind, Meta(description="Set by a person, a token for a server, or a client registration.")]
    name: Annotated[str, Meta(description="Its name.")]


class Secrets(Struct, frozen=True, kw_only=True):
    """Everything that is kept."""

    secrets: Annotated[tuple[Secret, ...], Meta(description="By kind and name.")]


class StoredSecret(Struct, frozen=True, kw_only=True):
    """A secret that was set."""

    name: Annotated[str, Meta(description="Its name.")]
    state: Annotated[
        Literal["new", "same", "differs"] | UnsetType,
        Meta(description="Only with unless_kept: whether it was new, or the same or another value is kept."),
    ] = UNSET
    restarted: Annotated[tuple[str, ...], Meta(description="Segments of the servers that are started with it.")]


class RemovedSecret(Struct, frozen=True, kw_only=True):
    """A secret that is forgotten."""

    removed: Annotated[Secret, Meta(description="Which one.")]


class Consent(Struct, frozen=True, kw_only=True):
    """The page on which a person agrees to a token for a server."""

    segment: Annotated[str, Meta(description="For which link.")]
    url: Annotated[str, Meta(description="The page.")]
    issuer: Annotated[str, Meta(description="Whose page it is.")]
    scopes: Annotated[tuple[str, ...], Meta(description="What is asked for.")]
    expires_at: Annotated[str, Meta(description="Until when the page can be used.")]


SECRET_NAME_CHARS_MAX: Final = 80


class SetSecret(RequestBody, frozen=True, kw_only=True):
    """A secret to be kept."""

    name: Annotated[str, Meta(description="Its name.", min_length=1, max_length=SECRET_NAME_CHARS_MAX)]
    value: Annotated[str, Meta(description="Its value, which is never shown again.", min_length=1)]
    unless_kept: Annotated[bool, Meta(description="Leave what is kept already as it is.")] = False
