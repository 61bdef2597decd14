"""The operator API for the credentials of servers: secrets, and consents of people to OAuth tokens."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.operator.operation import ErrorCase, Operation, RequestBody, operations_in

SecretKind = Literal["secret", "token", "client"]


class Secret(Struct, frozen=True, kw_only=True):
    """Kind and name of a stored secret, token or client registration, without its value.

    Members:
        kind: Set by a person, a token for a server, or a client registration.
        name: Its name.
        destinations: Segments and hosts for which it was set, beside the uses that approvers signed.
    """

    kind: SecretKind
    name: str
    destinations: tuple[str, ...] = ()


class Secrets(Struct, frozen=True, kw_only=True):
    """Kinds and names of all stored secrets, tokens and client registrations.

    Members:
        secrets: By kind and name.
    """

    secrets: tuple[Secret, ...]


class StoredSecret(Struct, frozen=True, kw_only=True):
    """Result of storing a secret.

    Members:
        name: Its name.
        state: Only with unless_kept: whether it was new, or the same or another value is kept.
        restarted: Segments of the servers that are started with it.
    """

    name: str
    state: Literal["new", "same", "differs"] | UnsetType = UNSET
    restarted: tuple[str, ...]


class RemovedSecret(Struct, frozen=True, kw_only=True):
    """Result of removing a secret, a token or a client registration.

    Members:
        removed: Which one.
    """

    removed: Secret


class Consent(Struct, frozen=True, kw_only=True):
    """A web page on which a person can agree that the node gets a token for a server.

    Members:
        segment: For which link.
        url: The page.
        issuer: Whose page it is.
        scopes: What is asked for.
        expires_at: Until when the page can be used.
    """

    segment: str
    url: str
    issuer: str
    scopes: tuple[str, ...]
    expires_at: str


SECRET_NAME_CHARS_MAX: Final = 80
DESTINATIONS_MAX: Final = 20  # of one secret: a person who shares it more widely has no use for a list
DestinationName = Annotated[str, Meta(min_length=1, max_length=300)]


class SetSecret(RequestBody, frozen=True, kw_only=True):
    """Request to store a secret.

    Members:
        name: Its name.
        value: Its value, which is never shown again.
        unless_kept: Leave what is kept already as it is.
        destinations: Where it may go: segments that use it, and hosts (with a dot or a port). They replace former ones.
    """

    name: Annotated[str, Meta(min_length=1, max_length=SECRET_NAME_CHARS_MAX)]
    value: Annotated[str, Meta(min_length=1)]
    unless_kept: bool = False
    destinations: Annotated[tuple[DestinationName, ...], Meta(max_length=DESTINATIONS_MAX)] = ()


# Errors

AUTH_FAILED: Final = ErrorCase("auth_failed", 409, "the authorization server does not give a page to agree on")
BAD_DESTINATION: Final = ErrorCase("bad_destination", 409, "a secret cannot be bound to this")
BAD_SECRET_NAME: Final = ErrorCase("bad_secret_name", 409, "a secret cannot have this name")
NO_OAUTH: Final = ErrorCase("no_oauth", 409, "the server is reached without OAuth")


# Operations

AUTHORIZE_LINK: Final = Operation(
    "POST /admin/links/{segment}/authorize",
    "The page on which a person agrees to a token for a server.",
    noun="links",
    output=Consent,
    errors=(NO_OAUTH, AUTH_FAILED),
)
TAKE_OAUTH_RETURN: Final[Operation[None]] = Operation(
    "GET /oauth/callback",
    "Where an authorization server sends a person back to. The state is the only credential.",
    noun="links",
    role="anyone",
    takes_any_query=True,
    is_page=True,
)
LIST_SECRETS: Final = Operation(
    "GET /admin/secrets", "The names of everything that is kept, never the values.", output=Secrets
)
SET_SECRET: Final = Operation(
    "POST /admin/secrets",
    "Keep a secret. Servers that name it are started afresh with it.",
    input=SetSecret,
    output=StoredSecret,
    status=201,
    errors=(BAD_SECRET_NAME, BAD_DESTINATION),
)
REMOVE_SECRET: Final = Operation(
    "DELETE /admin/secrets/{kind}/{name:path}",
    "Forget a secret, a token for a server or a client registration.",
    output=RemovedSecret,
)

OPERATIONS: Final = operations_in(globals(), "secrets")
