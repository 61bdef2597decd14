"""Tokens that only their authorization server understands: it is asked, and what it says is remembered a while.

A token that it confirmed before is asked about outside the limits for new ones, and stays believed for some minutes
while the server cannot be asked: keeping the server busy does not shut out callers that are known.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from interlock.access.verifications import Verifications
from interlock.approvals.trust.key_sets import Unavailable
from interlock.core.clock import Clock
from interlock.credentials.protocol.introspection import (
    BadIntrospection,
    read_introspection_untrusted,
    request_body,
    request_headers,
)
from interlock.crypto.jose.claims import Claims
from interlock.crypto.jose.errors import Invalid, Reason
from interlock.net.fetch import FetchFailed

log = logging.getLogger("interlock.oauth")

BELIEVED_S: Final = 60.0  # how long an answer holds; a token revoked there is still admitted for so long
KEPT_S: Final = 600.0  # the same while the server cannot be asked
UNSTATED_S: Final = 3600.0  # taken for the end of a token that states none (RFC 7662 2.2 lets it)
REFUSED_MAX: Final = 4096
CONFIRMED_MAX: Final = 10_000  # as many as the TokenRegistry knows
COMPLAINT_S: Final = 60.0  # between two lines in the log

V = TypeVar("V")

Post = Callable[[str, bytes, bytes], Awaitable[bytes]]


class _Confirmed(msgspec.Struct, frozen=True):
    claims: Claims
    at: float


class Introspector:
    def __init__(
        self,
        name: str,
        issuer: str,
        url: str,
        *,
        client_id: str,
        client_secret: str,
        post: Post,
        verifications: Verifications,
        clock: Clock,
    ) -> None:
        self._name = name
        self._issuer = issuer
        self._url = url
        self._headers = request_headers(client_id, client_secret)
        self._post = post
        self._verifications = verifications
        self._clock = clock
        self._refused: dict[bytes, tuple[Invalid, float]] = {}  # by the token's hash, oldest first
        self._confirmed: dict[bytes, _Confirmed] = {}  # likewise
        self._next_complaint = 0.0

    async def claims(self, token: str, source: str) -> tuple[Claims, float] | Invalid:
        """What the server says of a token, and for how many seconds that holds. Raises Unavailable."""
        digest = hashlib.sha256(token.encode()).digest()
        now = self._clock.now()
        refused = self._refused.get(digest)
        if refused is not None and now < refused[1]:
            return refused[0]
        confirmed = self._confirmed.get(digest)
        if confirmed is None or now >= confirmed.at + KEPT_S:
            async with self._verifications.asking(source):
                return await self._ask(token, digest)
        if now < confirmed.at + BELIEVED_S:
            return confirmed.claims, confirmed.at + BELIEVED_S - now
        try:
            return await self._ask(token, digest)
        except Unavailable:
            return confirmed.claims, min(BELIEVED_S, confirmed.at + KEPT_S - now)

    async def _ask(self, token: str, digest: bytes) -> tuple[Claims, float] | Invalid:
        try:
            said = read_introspection_untrusted(
                await self._post(self._url, self._headers, request_body(token)), self._issuer
            )
        except FetchFailed as error:
            self._complain(error)
            raise Unavailable from None
        except BadIntrospection as error:  # says nothing for the token; the next answer may be better
            self._complain(error)
            return Invalid(Reason.UNCLEAR)
        now = self._clock.now()
        if isinstance(said, Invalid):
            self._confirmed.pop(digest, None)
            _keep(self._refused, digest, (said, now + BELIEVED_S), REFUSED_MAX)
            return said
        if said.exp is None:
            said = msgspec.structs.replace(said, exp=self._clock.wall() + UNSTATED_S)
        _keep(self._confirmed, digest, _Confirmed(said, now), CONFIRMED_MAX)
        return said, BELIEVED_S

    def _complain(self, error: Exception) -> None:
        if self._clock.now() >= self._next_complaint:
            self._next_complaint = self._clock.now() + COMPLAINT_S
            log.warning("issuer %s cannot be asked about tokens: %s", self._name, error)


def _keep(kept: dict[bytes, V], digest: bytes, value: V, most: int) -> None:
    kept.pop(digest, None)
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[digest] = value
