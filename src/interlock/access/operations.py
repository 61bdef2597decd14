"""Operations on tokens and on login links. Each change to a token is recorded.

A login link gives a person at this machine a browser session at the operator endpoint. `interlock open` asks the node
for a link. The link contains a ticket that is valid once, for a minute. The browser
exchanges the ticket for a session, which has at most the roles of the caller that asked for the link. The role
`operator` is never among them, because access to the machine is no proof. Tickets are only in memory; sessions are in
the table of tokens, where they can be listed and revoked.

A browser sends its cookies to every port of a host, and so to other programs too. Therefore the cookie alone is not
sufficient: a session also has a key. The page that logged in stores the key where no other origin can read it, and
sends it with each request. The cookie is derived from the key, so that the node stores neither.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

import msgspec

from interlock.access import api
from interlock.access.tokens import Operator, TokenRegistry, issued_token, token_line
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock, rfc3339
from interlock.core.operator_errors import refused_as
from interlock.core.recorder import Recorder
from interlock.operator.operation import INVALID_BODY, handles
from interlock.rooms.api import RoomPrivilege
from interlock.rooms.protocol.envelope import PROTOCOLS
from interlock.rooms.protocol.participants import is_participant_id, is_reserved, is_topic
from interlock.store.tokens import (
    ID_LENGTH,
    BadTokenName,
    GrantedRoom,
    TokenRecord,
    session_cookie,
    token_hash,
    token_name_fault,
)
from interlock.wire.refusal import NotFound, Refused


@dataclass(eq=False)
class TokenOperations:
    """Operations on tokens."""

    tokens: TokenRegistry
    dismiss: Callable[[], None]
    recorder: Recorder
    clock: Clock

    @handles(api.LIST_TOKENS)
    async def list_all(self) -> api.Tokens:
        return await self.tokens.list_live()

    @handles(api.ISSUE_TOKEN)
    async def issue(self, body: api.IssueToken, by: str) -> api.IssuedToken:
        """Create a token and return it; this is the only time it is shown. Several tokens may have the same name.

        Raise Refused or StoreError.
        """
        room = check_token(body)
        try:
            token, record = await self.tokens.issue(body.name, body.audience, body.scope, body.days, room)
        except BadTokenName as error:
            raise refused_as(api.BAD_TOKEN_NAME, str(error)) from None
        # If the record cannot be written, the token is not returned, so that no caller ever has it.
        await self.recorder.append_now(token_line("issue", record, by, self.clock.wall()))
        return issued_token(token, record)

    @handles(api.REVOKE_TOKEN)
    async def revoke(self, ref: str, by: str) -> api.RevokedTokens:
        """Revoke the token with this id, or all tokens with this name. Raise NotFound or StoreError."""
        revoked = await self.tokens.revoke(ref)
        if not revoked:
            live = [record for record in await self.tokens.list() if record.revoked_at is None]
            raise NotFound("token", ref, [record.name for record in live])
        self.dismiss()  # first, so that connections close even if the log cannot be written
        for record in revoked:
            await self.recorder.append_now(token_line("revoke", record, by, self.clock.wall()))
        return api.RevokedTokens(revoked=tuple(record.id for record in revoked))


def check_token(wanted: api.IssueToken) -> GrantedRoom | None:
    """Check a request to issue a token. Return the room that a room token is for, or None for any other token.

    Raise Refused if the request is invalid.
    """
    if (problem := token_name_fault(wanted.name)) is not None:
        raise refused_as(INVALID_BODY, problem, {"member": "name"})
    if (wanted.audience == "room") != (wanted.room is not None):
        raise refused_as(INVALID_BODY, "a token for a room, and no other, names the room", {"member": "room"})
    if wanted.room is None:
        return None
    if wanted.room.privilege not in (None, *get_args(RoomPrivilege)):
        message = f"a privilege is one of {', '.join(get_args(RoomPrivilege))}"
        raise refused_as(api.UNKNOWN_PRIVILEGE, message, {"member": "room.privilege"})
    room = msgspec.convert(wanted.room, type=GrantedRoom, from_attributes=True)
    if not is_topic(room.topic):
        message = "a topic has 1 to 128 letters, digits and . _ : @ ~ -, and begins with a letter or digit"
        raise Refused("bad_topic", message)
    if not is_participant_id(room.participant):  # X-N-2
        raise Refused("bad_participant", "a participant's id has 1 to 64 letters, digits and . _ : -")
    if is_reserved(room.participant):  # X-N-2
        raise Refused("reserved_id", f"{room.participant} is the gateway's own")
    if room.protocol is not None and room.protocol not in PROTOCOLS:
        raise Refused("unsupported_protocol", f"protocol is one of {', '.join(PROTOCOLS)}")
    return room


TICKET_S: Final = 60.0
# The oldest ticket becomes invalid when there are more.
TICKETS_MAX: Final = 16
TICKET_BYTES: Final = 32
KEY_BYTES: Final = 32
KEY_CHARS_MAX: Final = 64
SESSION_S: Final = 12 * 3600.0
ROLES: Final = frozenset(("viewer", "admin"))
# The name of sessions in the list of tokens.
NAME: Final = "browser"
PATH: Final = "/login"
COOKIE: Final = "interlock-session"
# Browsers accept a cookie with this prefix only over https, and only from its own host.
SECURE: Final = "__Host-"


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """A new browser session, with the cookie and the key that the browser stores.

    `is_secure` is true if the browser sends the cookie only over https.
    """

    cookie: str
    key: str
    record: TokenRecord
    is_secure: bool


@dataclass(eq=False)
class LoginOperations:
    """Operations on login links and on the browser sessions that they open."""

    tokens: TokenRegistry
    recorder: Recorder
    clock: Clock
    url: Callable[[], str]  # of the operator endpoint, as a browser must enter it
    # The roles and the end of each login link that was not used yet, by its ticket.
    _logins: dict[str, tuple[frozenset[str], float]] = field(default_factory=dict, init=False)

    @handles(api.MAKE_LOGIN)
    def make(self, by: str, roles: frozenset[str]) -> api.Login:
        """Create a login link. Raise Refused if the request comes from a browser's session, which must not prolong
        itself.

        Its session will have the roles of the operator who requests the link, but never the role `operator`. The ticket
        follows a #, so it appears in no request log, and fetching the link does not use it up.
        """
        # The time of a browser's session is limited, and the session must not extend it.
        if is_browser(by):
            raise refused_as(api.LOGIN_FROM_BROWSER, "run interlock open where the node is")
        now, ticket = self.clock.wall(), secrets.token_urlsafe(TICKET_BYTES)
        live = [(unused, login) for unused, login in self._logins.items() if now < login[1]]
        self._logins = dict((*live[1 - TICKETS_MAX :], (ticket, (roles & ROLES, now + TICKET_S))))
        return api.Login(url=f"{self.url()}{PATH}#{ticket}", expires_at=rfc3339(now + TICKET_S))

    @handles(api.USE_LOGIN)
    async def use(self, body: api.UseLogin) -> BrowserSession:
        """Open the browser session of a login link. Raise Refused if its ticket is not valid, or StoreError."""
        login = self._logins.pop(body.ticket, None)
        now = self.clock.wall()
        if login is None or now >= login[1]:
            message = "this link was used, or is older than a minute; interlock open makes another"
            raise refused_as(api.LOGIN_OVER, message)
        key = secrets.token_urlsafe(KEY_BYTES)
        cookie, record = await self.tokens.begin_session(NAME, login[0], SESSION_S, session_cookie(key))
        by, roles = f"browser:{record.id[:8]}", list(record.roles or ())
        await self.recorder.append_now(AuditRecord.event(now, by, "operator", "login", verdict="made", roles=roles))
        return BrowserSession(cookie=cookie, key=key, record=record, is_secure=self.url().startswith("https://"))

    @handles(api.END_SESSION)
    async def end(self, host: str, cookies: Mapping[str, str]) -> None:
        """Revoke the session of the browser that sent these cookies. Raise StoreError if this cannot be stored."""
        cookie = find_cookie(host, cookies)
        if cookie is not None:
            for ended in await self.tokens.revoke(token_hash(cookie)[:ID_LENGTH]):
                by = f"browser:{ended.id[:8]}"
                await self.recorder.append_now(token_line("revoke", ended, by, self.clock.wall()))


def find_cookie(host: str, cookies: Mapping[str, str]) -> str | None:
    """Return the session cookie for the endpoint at `host`, or None if there is none."""
    return cookies.get(cookie_name(host, is_secure=True)) or cookies.get(cookie_name(host, is_secure=False))


def cookie_name(host: str, *, is_secure: bool) -> str:
    """Return the name of the session cookie for the operator endpoint at `host`.

    The name contains the port: browsers send cookies to all ports of a host, and two nodes of one machine must not
    share a cookie.
    """
    port = host.rpartition(":")[2]
    own = f"{COOKIE}-{port}" if port.isascii() and port.isdecimal() else COOKIE
    return f"{SECURE}{own}" if is_secure else own


def is_session_key(key_untrusted: str, host: str, cookies: Mapping[str, str]) -> bool:
    """Return whether this is the key of the session to which the cookies belong."""
    cookie = find_cookie(host, cookies) or ""
    expected = session_cookie(key_untrusted[:KEY_CHARS_MAX])
    return secrets.compare_digest(expected.encode(), cookie.encode("utf-8", "surrogatepass"))


def is_browser(principal: str) -> bool:
    """Return whether a principal is a browser's session, whose cookie browsers attach even to requests of other
    pages.
    """
    return principal.startswith("browser:")


def find_browser(tokens: TokenRegistry, host: str, cookies: Mapping[str, str]) -> Operator | None:
    """Return the operator to whose browser session the cookies of a request belong, or None if there is no valid
    session.
    """
    cookie = find_cookie(host, cookies)
    return None if cookie is None else tokens.browser(cookie)
