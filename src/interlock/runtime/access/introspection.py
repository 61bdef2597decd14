"""Tokens that only their authorization server understands: it is asked, and what it refused is remembered a while."""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from interlock.net.fetch import FetchFailed
from interlock.protocol.jose.claims import Claims
from interlock.protocol.jose.errors import Invalid
from interlock.protocol.oauth.introspection import (
    BadIntrospection,
    read_introspection_untrusted,
    request_body,
    request_headers,
)
from interlock.runtime.base.clock import Clock
from interlock.runtime.trust.key_sets import Unavailable

log = logging.getLogger("interlock.oauth")

BELIEVED_S: Final = 60.0  # how long an answer holds; a token revoked there is still admitted for so long
UNSTATED_S: Final = 3600.0  # taken for the end of a token that states none (RFC 7662 2.2 lets it)
REFUSED_MAX: Final = 4096
COMPLAINT_S: Final = 60.0  # between two lines in the log

Post = Callable[[str, bytes, bytes], Awaitable[bytes]]


class Introspector:
    def __init__(
        self, name: str, issuer: str, url: str, *, client_id: str, client_secret: str, post: Post, clock: Clock
    ) -> None:
        self._name = name
        self._issuer = issuer
        self._url = url
        self._headers = request_headers(client_id, client_secret)
        self._post = post
        self._clock = clock
        self._refused: dict[bytes, tuple[Invalid, float]] = {}  # by the token's hash, oldest first
        self._next_complaint = 0.0

    async def claims(self, token: str) -> Claims | Invalid:
        """Raises Unavailable."""
        digest = hashlib.sha256(token.encode()).digest()
        refused = self._refused.get(digest)
        if refused is not None and self._clock.now() < refused[1]:
            return refused[0]
        try:
            answer = await self._post(self._url, self._headers, request_body(token))
            said = read_introspection_untrusted(answer, self._issuer)
        except (FetchFailed, BadIntrospection) as error:
            if self._clock.now() >= self._next_complaint:
                self._next_complaint = self._clock.now() + COMPLAINT_S
                log.warning("issuer %s cannot be asked about tokens: %s", self._name, error)
            raise Unavailable from None
        if isinstance(said, Invalid):
            self._remember(digest, said)
            return said
        return said if said.exp is not None else msgspec.structs.replace(said, exp=self._clock.wall() + UNSTATED_S)

    def _remember(self, digest: bytes, refusal: Invalid) -> None:
        self._refused.pop(digest, None)
        if len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[digest] = (refusal, self._clock.now() + BELIEVED_S)
