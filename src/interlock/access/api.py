"""The operator API for access: tokens of clients, subservers, rooms and operators, and browser logins."""

from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, field

from interlock.operator.operation import NOT_FOUND, ErrorCase, Operation, RequestBody, operations_in
from interlock.rooms.api import RoomPrivilege

TokenAudience = Literal["client", "subserver", "room", "operator"]
TokenScope = Literal["read", "write", "admin"]


class RoomOfToken(Struct, frozen=True, kw_only=True):
    """The room, the participant and the privilege that a room token grants."""

    topic: Annotated[str, Meta(description="The room.")]
    participant: Annotated[str, Meta(description="Who its holder is there.")]
    privilege: Annotated[str, Meta(description="What it may do there: full or restricted.")]


class Token(Struct, frozen=True, kw_only=True):
    """Metadata of a token, without its secret value."""

    id: Annotated[str, Meta(description="Its id.")]
    name: Annotated[str, Meta(description="The name it was given.")]
    audience: Annotated[str, Meta(description="Who may use it: client, subserver, room, operator or browser.")] = field(
        name="door"
    )
    scope: Annotated[str | None, Meta(description="What it amounts to: read, write or admin.")]
    created_at: Annotated[str, Meta(description="When it was made.")]
    expires_at: Annotated[str | None, Meta(description="When it ends.")]
    last_used_at: Annotated[str | None, Meta(description="When it was last used.")]
    room: Annotated[RoomOfToken | UnsetType, Meta(description="Of a token for a room.")] = UNSET


class Tokens(Struct, frozen=True, kw_only=True):
    """The list of all tokens that are not revoked."""

    tokens: Annotated[tuple[Token, ...], Meta(description="Oldest first.")]


class IssuedToken(Struct, frozen=True, kw_only=True):
    """A new token with its secret value, which is shown only this once."""

    token: Annotated[str, Meta(description="The token itself.")]
    id: Annotated[str, Meta(description="Its id.")]
    name: Annotated[str, Meta(description="The name it was given.")]
    audience: Annotated[str, Meta(description="Who may use it.")] = field(name="for")
    expires_at: Annotated[str | None, Meta(description="When it ends.")]


class RevokedTokens(Struct, frozen=True, kw_only=True):
    """Ids of the tokens that were revoked."""

    revoked: Annotated[tuple[str, ...], Meta(description="Their ids.")]


class Login(Struct, frozen=True, kw_only=True):
    """A link that opens the operator endpoint in a browser. It works once."""

    url: Annotated[str, Meta(description="The link. Anyone who has it can log in with it.")]
    expires_at: Annotated[str, Meta(description="Until when.")]


class Session(Struct, frozen=True, kw_only=True):
    """The principal of a request, and its roles."""

    principal: Annotated[str, Meta(description="Who asks.")]
    roles: Annotated[tuple[str, ...], Meta(description="viewer, admin, operator.")]
    key: Annotated[
        str | None,
        Meta(description="What a browser sends along with every request, as X-Interlock-Session; null: it need not."),
    ]


_PRIVILEGE: Final = {"enum": list(get_args(RoomPrivilege))}  # another one is refused by its own name
DAYS_MAX: Final = 3650


class TokenRoom(RequestBody, frozen=True, kw_only=True):
    """The room, the participant and the privilege of a room token to create."""

    topic: Annotated[str, Meta(description="The room.", min_length=1, max_length=128)]
    participant: Annotated[str, Meta(description="Who its holder is there.", min_length=1, max_length=64)]
    privilege: Annotated[str, Meta(description="What it may do there.", extra_json_schema=_PRIVILEGE)] = "restricted"
    protocol: Annotated[str | None, Meta(description="What it speaks; null: it says so itself.")] = None


class IssueToken(RequestBody, frozen=True, kw_only=True):
    """Request to create a token."""

    name: Annotated[str, Meta(description="What to call it. A name may be used again.")]
    audience: Annotated[TokenAudience, Meta(description="Who is to use it.")] = field(name="for")
    scope: Annotated[TokenScope | None, Meta(description="What it may do; null: the default for its kind.")] = None
    days: Annotated[
        Annotated[int, Meta(ge=1, le=DAYS_MAX)] | None, Meta(description="For how long; null: as configured.")
    ] = None
    room: Annotated[TokenRoom | None, Meta(description="Of a token for a room.")] = None


class UseLogin(RequestBody, frozen=True, kw_only=True):
    """Request to log in with the ticket of a login link."""

    ticket: Annotated[str, Meta(description="What stands behind the # of the link.", min_length=1, max_length=200)]


# Errors

BAD_ROOM_OF_TOKEN: Final = ErrorCase("bad_participant", 409, "no participant has this id; or bad_topic, reserved_id")
BAD_TOKEN_NAME: Final = ErrorCase("bad_token_name", 409, "a token cannot have this name")
LOGIN_OVER: Final = ErrorCase("login_over", 404, "the login link was used, or is older than a minute")
LOGIN_FROM_BROWSER: Final = ErrorCase("login_from_browser", 403, "a browser's session makes no login links")
UNKNOWN_PRIVILEGE: Final = ErrorCase("unknown_privilege", 400, "a participant is full or restricted, and nothing else")


# Operations

LIST_TOKENS: Final = Operation(
    "list_tokens", "access", "GET /admin/tokens", "Every token that is not revoked.", output=Tokens
)
ISSUE_TOKEN: Final = Operation(
    "issue_token",
    "access",
    "POST /admin/tokens",
    "Make a token. This answer is the only one that shows it.",
    role="admin",
    input=IssueToken,
    output=IssuedToken,
    status=201,
    errors=(BAD_TOKEN_NAME, BAD_ROOM_OF_TOKEN, UNKNOWN_PRIVILEGE),
)
REVOKE_TOKEN: Final = Operation(
    "revoke_token",
    "access",
    "DELETE /admin/tokens/{ref}",
    "Revoke a token by its id, or all of one name. Their sessions end at once.",
    role="admin",
    output=RevokedTokens,
    errors=(NOT_FOUND,),
)
MAKE_LOGIN: Final = Operation(
    "make_login",
    "login",
    "POST /admin/logins",
    "Make a login link for a browser: good once, for a minute. The session is a viewer's and an admin's.",
    role="admin",
    output=Login,
    status=201,
    errors=(LOGIN_FROM_BROWSER,),
)
VISIT_LOGIN: Final[Operation[None]] = Operation(
    "visit_login", "login", "GET /login", "The page behind a login link.", role="anyone", is_page=True
)
USE_LOGIN: Final = Operation(
    "use_login",
    "login",
    "POST /login",
    "Turn the ticket of a login link into a browser's session: a cookie, and the key that goes with it.",
    role="anyone",
    input=UseLogin,
    output=Session,
    errors=(LOGIN_OVER,),
)
GET_SESSION: Final = Operation(
    "get_session", "login", "GET /session", "Who asks, and what they may do.", output=Session
)
END_SESSION: Final = Operation(
    "end_session", "login", "DELETE /session", "Log out: end this browser's session.", output=Session
)

OPERATIONS: Final = operations_in(globals())
