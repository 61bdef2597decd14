"""Confirmation tokens (C.token-*): issued for one call, valid once, and only in the session that got them.

A token is only a key: what it permits is kept here, in memory. It is bound to the caller, the operation, and the
SHA-256 of the canonical parameters. Used tokens are remembered for a while, so that a second use can be told from an
unknown token. Every issue, use, refusal and revocation of a token is passed to `note`, for the audit log.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from interlock.aql.protocol.errors import AqlFailure, Code, failure
from interlock.aql.protocol.model import Danger
from interlock.wire.jsontext.canonical import AmbiguousJson, NotCanonical, canonical, read_untrusted

TOKENS_MAX: Final = 20_000
PURGE_S: Final = 2700.0  # after it expired; with the longest life of a token (900 s) that is one hour
PREFIX: Final = "conf_"
TOKEN_CHARS_MAX: Final = 80


class TokenLives(msgspec.Struct, frozen=True, kw_only=True):
    """The lifetimes of tokens in seconds, by the danger of the operation. `skew_s` is the tolerated clock error."""

    destructive: float = 300
    dangerous: float = 300
    forbidden: float = 120
    skew_s: float = 0


class TokenNote(msgspec.Struct, frozen=True):
    """An event of a confirmation token, for the audit log. `token` is only the beginning of the token's hash."""

    event: str  # TOKEN_ISSUED, TOKEN_VALIDATED, TOKEN_REJECTED or TOKEN_REVOKED
    owner: str  # the session, or the principal where there is none
    principal: str
    operation: str
    token: str
    reason: str | None = None


class _Token(msgspec.Struct):
    """An issued confirmation token: for which call and until when it is valid."""

    owner: str  # the session or the principal
    principal: str
    operation: str
    digest: str
    expires_at: float
    used_at: float | None = None


@dataclass(eq=False)
class ConfirmationTokens:
    """The confirmation tokens of a node, in the order in which they were issued.

    `read_time` returns the wall clock, `secret` returns 43 random characters, and `note` is called with every event
    of a token.
    """

    read_time: Callable[[], float]
    secret: Callable[[], str]
    lives: TokenLives
    note: Callable[[TokenNote], None]
    _tokens: OrderedDict[str, _Token] = field(default_factory=OrderedDict)

    def issue(self, owner: str, principal: str, operation: str, digest: str, danger: Danger) -> tuple[str, str]:
        """Issue a confirmation token for one call. Return the token and its expiry time."""
        now = self.read_time()
        self._purge(now)
        lives = self.lives
        life = {Danger.FORBIDDEN: lives.forbidden, Danger.DANGEROUS: lives.dangerous}.get(danger, lives.destructive)
        token = PREFIX + self.secret()
        while len(self._tokens) >= TOKENS_MAX:
            oldest, evicted = self._tokens.popitem(last=False)
            if evicted.used_at is None:
                self._note(evicted.owner, evicted.principal, evicted.operation, oldest, "TOKEN_REVOKED", "too_many")
        self._tokens[token] = _Token(owner, principal, operation, digest, now + life)
        self._note(owner, principal, operation, token, "TOKEN_ISSUED")
        return token, rfc3339(now + life)

    def redeem(self, token: str, owner: str, principal: str, operation: str, digest: str) -> AqlFailure | None:
        """Use up a token. Return None if it is valid for this operation, otherwise the failure."""
        now = self.read_time()
        self._purge(now)
        record = self._tokens.get(token) if len(token) <= TOKEN_CHARS_MAX else None
        code, details = None, {"token": token[:TOKEN_CHARS_MAX]}
        if record is None or record.owner != owner:  # AQL-2.3.3-1, AQL-2.3.5-2
            code, message = Code.TOKEN_INVALID, "Invalid confirmation token"
        elif now > record.expires_at + self.lives.skew_s:
            code, message = Code.TOKEN_EXPIRED, "Confirmation token has expired"
            details |= {"expired_at": rfc3339(record.expires_at), "current_time": rfc3339(now)}
        elif record.used_at is not None:
            code, message = Code.TOKEN_ALREADY_USED, "Confirmation token has already been used"
            details["consumed_at"] = rfc3339(record.used_at)
        elif record.operation != operation or record.digest != digest:
            scope = f"operation '{record.operation}'" if record.operation != operation else "other parameters"
            how = f"It was issued for {scope}; send this call without a token to get one for it"
            code, message = Code.TOKEN_SCOPE_MISMATCH, f"Confirmation token scope mismatch. {how}"
            details |= {"token_operation": record.operation, "requested_operation": operation}
        if code is not None:
            self._note(owner, principal, operation, token, "TOKEN_REJECTED", code.value)
            return failure(code, message, details)
        if record is not None:  # always true here
            record.used_at = now
        self._note(owner, principal, operation, token, "TOKEN_VALIDATED")
        return None

    def end(self, owner: str) -> None:
        """Revoke the tokens of a session that has ended (AQL 2.3.3)."""
        for token in [token for token, record in self._tokens.items() if record.owner == owner]:  # AQL-2.3.3-1
            record = self._tokens.pop(token)
            if record.used_at is None:
                self._note(owner, record.principal, record.operation, token, "TOKEN_REVOKED", "session_end")

    def _purge(self, now: float) -> None:
        while self._tokens:
            first = next(iter(self._tokens))
            if self._tokens[first].expires_at + PURGE_S > now:
                return
            del self._tokens[first]

    def _note(
        self, owner: str, principal: str, operation: str, token: str, event: str, reason: str | None = None
    ) -> None:
        named = hashlib.sha256(token.encode()).hexdigest()[:16]
        self.note(TokenNote(event, owner, principal, operation, named, reason))


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def digest_of(arguments: bytes) -> str:
    """Return the SHA-256 of the canonical form of arguments. If they have no canonical form, hash their text."""
    try:
        return hashlib.sha256(canonical(read_untrusted(arguments))).hexdigest()
    except (AmbiguousJson, NotCanonical):
        return hashlib.sha256(b"exact:" + arguments).hexdigest()
