"""Login links, which give a person at this machine a browser session at the operator endpoint.

`interlock open` asks the node for a link. The link contains a ticket that is valid once, for a minute. The browser
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
from typing import Final

import msgspec

from interlock.access.tokens import Operator, TokenRegistry, token_line
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.store.tokens import ID_LENGTH, TokenRecord, session_cookie, token_hash

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


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A login link that was not used yet."""

    ticket: str
    url: str
    roles: frozenset[str]
    expires_at: float


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True):
    """A new browser session, with the cookie and the key that the browser stores."""

    cookie: str
    key: str
    record: TokenRecord


@dataclass(eq=False)
class LoginService:
    """The service that creates login links and exchanges them for browser sessions."""

    tokens: TokenRegistry
    recorder: Recorder
    clock: Clock
    url: Callable[[], str]  # of the operator endpoint, as a browser must enter it
    _logins: dict[str, LoginLink] = field(default_factory=dict, init=False)

    def mint(self, roles: frozenset[str]) -> LoginLink:
        """Create a login link.

        Its ticket follows a #, so it appears in no request log, and fetching the link does not use it up.
        """
        now = self.clock.wall()
        live = [open_login for open_login in self._logins.values() if now < open_login.expires_at]
        ticket = secrets.token_urlsafe(TICKET_BYTES)
        url = f"{self.url()}{PATH}#{ticket}"
        login = LoginLink(ticket=ticket, url=url, roles=roles & ROLES, expires_at=now + TICKET_S)
        self._logins = {open_login.ticket: open_login for open_login in (*live[1 - TICKETS_MAX :], login)}
        return login

    async def use(self, ticket: str) -> BrowserSession | None:
        """Exchange a ticket for a session. Return None if the ticket is unknown, used or expired.

        Raise StoreError if the session cannot be stored.
        """
        login = self._logins.pop(ticket, None)
        now = self.clock.wall()
        if login is None or now >= login.expires_at:
            return None
        key = secrets.token_urlsafe(KEY_BYTES)
        cookie, record = await self.tokens.begin_session(NAME, login.roles, SESSION_S, session_cookie(key))
        by, roles = f"browser:{record.id[:8]}", list(record.roles or ())
        await self.recorder.append_now(AuditRecord.event(now, by, "operator", "login", verdict="made", roles=roles))
        return BrowserSession(cookie=cookie, key=key, record=record)

    async def end(self, host: str, cookies: Mapping[str, str]) -> None:
        """Revoke the session to which these cookies belong. Raise StoreError if this cannot be stored."""
        cookie = find_cookie(host, cookies)
        if cookie is not None:
            for ended in await self.tokens.revoke(token_hash(cookie)[:ID_LENGTH]):
                by = f"browser:{ended.id[:8]}"
                await self.recorder.append_now(token_line("revoke", ended, by, self.clock.wall()))

    @property
    def is_secure(self) -> bool:
        """Return whether browsers connect over https."""
        return self.url().startswith("https://")


def find_cookie(host: str, cookies: Mapping[str, str]) -> str | None:
    """Return the session cookie for the endpoint at `host`, or None if there is none."""
    return cookies.get(cookie_name(host, is_secure=True)) or cookies.get(cookie_name(host, is_secure=False))


def cookie_name(host: str, *, is_secure: bool) -> str:
    """Return the name of the session cookie.

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
    """Return whether a principal is identified by a browser cookie, which browsers also attach to requests of other
    pages.
    """
    return principal.startswith("browser:")


def find_browser(tokens: TokenRegistry, host: str, cookies: Mapping[str, str]) -> Operator | None:
    """Return the operator to whom the cookies of a request belong, or None if they contain no valid session."""
    cookie = find_cookie(host, cookies)
    return None if cookie is None else tokens.browser(cookie)
