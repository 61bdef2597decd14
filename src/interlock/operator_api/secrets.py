"""Secrets: the names of what is kept sealed, never the values."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

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
