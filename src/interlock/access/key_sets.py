"""The key set of one authorization server or anchor, which is fetched when first needed and again when it is old.

There is at most one fetch at a time, however many tokens wait for it. After a failure, the next try waits longer each
time (`BACKOFF_S`); until then the last keys are used, if they are not older than `KEPT_S`.

A token that names an unknown key may have a new key, so the set is fetched again. Because anybody can invent such a
token, this happens at most once a second. Other tokens with unknown keys wait for the same fetch, so that invented
tokens delay a token with a new key by a second at most.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from interlock.core.clock import Clock
from interlock.credentials.protocol.resource import BadMetadata, discovery_urls, read_metadata_untrusted
from interlock.crypto.jose import BadKeySet, InvalidToken, Jwk, Jwt, Reason, read_jwks_untrusted, select
from interlock.net.fetch import FetchFailed

log = logging.getLogger("interlock.oauth")

# A withdrawn key is no longer accepted after this time.
FRESH_S: Final = 600.0
# The last keys are used this long while their server cannot be asked.
KEPT_S: Final = 3600.0
UNKNOWN_KEY_S: Final = 1.0
# For metadata and keys together. Requests wait for this.
RENEWAL_S: Final = 10.0
BACKOFF_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)

Get = Callable[[str], Awaitable[bytes]]


class IssuerUnavailable(Exception):
    """Error: an access token cannot be verified at present.

    Its authorization server cannot be asked, and the earlier answers of the server are too old.
    """


class KeyRing:
    """The key set of one authorization server or anchor, fetched when needed."""

    def __init__(self, name: str, issuer: str, jwks_url: str | None, get: Get, clock: Clock) -> None:
        """Create a key ring without fetching its keys. `name` appears in log messages. If `jwks_url` is None, the
        metadata of `issuer` says where its keys are.
        """
        self._name = name
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._get = get
        self._clock = clock
        self._keys: tuple[Jwk, ...] | None = None
        self._fetched_at = 0.0
        self._failures = 0
        self._next_try = 0.0
        self._next_search = 0.0
        # Fetches are numbered. `_newest` is the number of the fetch that returned the present keys.
        self._begun = 0
        self._newest = 0
        self._fetching: asyncio.Task[bool] | None = None

    def find_key(self, token: Jwt) -> Jwk | InvalidToken | None:
        """Return the result of `key_for` if it needs no fetch, otherwise None."""
        key = None if self._keys is None or self._age() >= FRESH_S else select(self._keys, token.alg, token.kid)
        return None if key == _UNKNOWN else key

    async def key_for(self, token: Jwt) -> Jwk | InvalidToken:
        """Return the key that verifies the token, or why there is none. If the key is unknown, fetch the key set again.

        Raise IssuerUnavailable if no usable key set is available, or if it cannot be fetched again for an unknown key.
        """
        key = select(await self.fresh(), token.alg, token.kid)
        if key != _UNKNOWN:
            return key
        return select(await self.search(), token.alg, token.kid)

    @property
    def known(self) -> tuple[Jwk, ...]:
        """Return the keys that can be used without fetching them again. The result is empty if they are too old."""
        return () if self._keys is None or self._age() >= KEPT_S else self._keys

    async def fresh(self) -> tuple[Jwk, ...]:
        """Return the key set. If it is old, fetch it first.

        Raise IssuerUnavailable if no usable key set is available.
        """
        if self._age() >= FRESH_S:
            await self._renew()
        if self._keys is None or self._age() >= KEPT_S:
            raise IssuerUnavailable
        return self._keys

    async def search(self) -> tuple[Jwk, ...]:
        """Return a key set that was fetched after this call began, because the previous key set lacked a key.

        Raise IssuerUnavailable if it cannot be fetched.
        """
        begun = self._begun
        while self._newest <= begun:
            if self._fetching is None:
                now = self._clock.now()
                if now < self._next_search:
                    await asyncio.sleep(self._next_search - now)
                    continue
                self._next_search = now + UNKNOWN_KEY_S
            if not await self._renew():
                raise IssuerUnavailable
        return await self.fresh()

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _age(self) -> float:
        return float("inf") if self._keys is None else self._clock.now() - self._fetched_at

    async def _renew(self) -> bool:
        if self._fetching is None:
            if self._clock.now() < self._next_try:
                return False
            self._begun += 1
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(self._begun))
        return await asyncio.shield(self._fetching)

    async def _fetch(self, number: int) -> bool:
        try:
            async with asyncio.timeout(RENEWAL_S):
                url = self._jwks_url or await self._discover()
                keys = read_jwks_untrusted(await self._get(url))
        except (FetchFailed, BadKeySet, BadMetadata, TimeoutError) as error:
            wait = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
            self._failures += 1
            self._next_try = self._clock.now() + wait
            why = str(error) or f"not done within {RENEWAL_S:g} s"
            log.warning("the keys of %s cannot be fetched: %s; next try in %g s", self._name, why, wait)
            return False
        else:
            self._keys = keys
            self._newest = number
            self._fetched_at = self._clock.now()
            self._failures = 0
            return True
        finally:
            self._fetching = None

    async def _discover(self) -> str:
        failure: Exception = FetchFailed("no metadata")
        for url in discovery_urls(self._issuer):
            try:
                return read_metadata_untrusted(await self._get(url), self._issuer).jwks_uri
            except (FetchFailed, BadMetadata) as error:
                failure = error
        raise failure


_UNKNOWN: Final = InvalidToken(Reason.KEY_UNKNOWN)
