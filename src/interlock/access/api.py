"""The operator API for access: tokens of clients, subservers, rooms and operators, and browser logins."""

from typing import Annotated, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, field

from interlock.operator.operation import ErrorCase, Operation, RequestBody, operations_in
from interlock.rooms.api import RoomPrivilege

TokenAudience = Literal["client", "subserver", "room", "operator"]
TokenScope = Literal["read", "write", "admin"]


class RoomOfToken(Struct, frozen=True, kw_only=True):
    """The room, the participant and the privilege that a room token grants.

    Members:
        topic: The room.
        participant: The id of its holder in the room.
        privilege: What it may do there: full or restricted; null: the room decides.
    """

    topic: str
    participant: str
    privilege: str | None = None


class Token(Struct, frozen=True, kw_only=True):
    """Metadata of a token, without its secret value.

    Members:
        id: Its id.
        name: The name it was given.
        audience: Who may use it: client, subserver, room, operator or browser.
        scope: What it amounts to: read, write or admin.
        created_at: When it was made.
        expires_at: When it ends.
        last_used_at: When it was last used.
        room: Of a token for a room.
    """

    id: str
    name: str
    audience: str = field(name="door")
    scope: str | None
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    room: RoomOfToken | UnsetType = UNSET


class Tokens(Struct, frozen=True, kw_only=True):
    """The list of all tokens that are not revoked.

    Members:
        tokens: Oldest first.
    """

    tokens: tuple[Token, ...]


class IssuedToken(Struct, frozen=True, kw_only=True):
    """A new token with its secret value, which is shown only this once.

    Members:
        token: The token itself.
        id: Its id.
        name: The name it was given.
        audience: Who may use it.
        expires_at: When it ends.
    """

    token: str
    id: str
    name: str
    audience: str = field(name="for")
    expires_at: str | None


class RevokedTokens(Struct, frozen=True, kw_only=True):
    """Ids of the tokens that were revoked.

    Members:
        revoked: Their ids.
    """

    revoked: tuple[str, ...]


class Login(Struct, frozen=True, kw_only=True):
    """A link that opens the operator endpoint in a browser. It works once.

    Members:
        url: The link. Anyone who has it can log in with it.
        expires_at: Until when.
    """

    url: str
    expires_at: str


class Session(Struct, frozen=True, kw_only=True):
    """The principal of a request, and its roles.

    Members:
        principal: Who asks.
        roles: viewer, admin, operator.
        key: What a browser sends along with every request, as X-Interlock-Session; null: it need not.
    """

    principal: str
    roles: tuple[str, ...]
    key: str | None


_PRIVILEGE: Final = {"enum": list(get_args(RoomPrivilege))}  # another one is refused by its own name
DAYS_MAX: Final = 3650


class TokenRoom(RequestBody, frozen=True, kw_only=True):
    """The room, the participant and the privilege of a room token to create.

    Members:
        topic: The room.
        participant: The id of its holder in the room.
        privilege: What it may do there: full or restricted; null: the room decides.
        protocol: What it speaks; null: it says so itself.
    """

    topic: Annotated[str, Meta(min_length=1, max_length=128)]
    participant: Annotated[str, Meta(min_length=1, max_length=64)]
    privilege: Annotated[str, Meta(extra_json_schema=_PRIVILEGE)] | None = None
    protocol: str | None = None


class IssueToken(RequestBody, frozen=True, kw_only=True):
    """Request to create a token.

    Members:
        name: What to call it. A name may be used again.
        audience: Who is to use it.
        scope: What it may do; null: the default for its kind.
        days: For how long; null: as configured.
        room: Of a token for a room.
    """

    name: str
    audience: TokenAudience = field(name="for")
    scope: TokenScope | None = None
    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] | None = None
    room: TokenRoom | None = None


class UseLogin(RequestBody, frozen=True, kw_only=True):
    """Request to log in with the ticket of a login link.

    Members:
        ticket: What stands behind the # of the link.
    """

    ticket: Annotated[str, Meta(min_length=1, max_length=200)]


# Errors

BAD_ROOM_OF_TOKEN: Final = ErrorCase("bad_participant", 409, "no participant has this id; or bad_topic, reserved_id")
BAD_TOKEN_NAME: Final = ErrorCase("bad_token_name", 409, "a token cannot have this name")
LOGIN_OVER: Final = ErrorCase("login_over", 404, "the login link was used, or is older than a minute")
LOGIN_FROM_BROWSER: Final = ErrorCase("login_from_browser", 403, "a browser's session makes no login links")
UNKNOWN_PRIVILEGE: Final = ErrorCase("unknown_privilege", 400, "a participant is full or restricted, and nothing else")


# Operations

LIST_TOKENS: Final = Operation("GET /admin/tokens", "Every token that is not revoked.", output=Tokens)
ISSUE_TOKEN: Final = Operation(
    "POST /admin/tokens",
    "Make a token. This answer is the only one that shows it.",
    input=IssueToken,
    output=IssuedToken,
    status=201,
    errors=(BAD_TOKEN_NAME, BAD_ROOM_OF_TOKEN, UNKNOWN_PRIVILEGE),
)
REVOKE_TOKEN: Final = Operation(
    "DELETE /admin/tokens/{ref}",
    "Revoke a token by its id, or all of one name. Their sessions end at once.",
    output=RevokedTokens,
)
MAKE_LOGIN: Final = Operation(
    "POST /admin/logins",
    "Make a login link for a browser: good once, for a minute. The session is a viewer's and an admin's.",
    noun="login",
    output=Login,
    status=201,
    errors=(LOGIN_FROM_BROWSER,),
)
VISIT_LOGIN: Final[Operation[None]] = Operation(
    "GET /login", "The page behind a login link.", noun="login", role="anyone", is_page=True
)
USE_LOGIN: Final = Operation(
    "POST /login",
    "Turn the ticket of a login link into a browser's session: a cookie, and the key that goes with it.",
    noun="login",
    role="anyone",
    input=UseLogin,
    output=Session,
    errors=(LOGIN_OVER,),
)
GET_SESSION: Final = Operation("GET /session", "Who asks, and what they may do.", noun="login", output=Session)
END_SESSION: Final = Operation(
    "DELETE /session", "Log out: end this browser's session.", noun="login", role="viewer", output=Session
)

OPERATIONS: Final = operations_in(globals(), "access")
