"""The documents behind specification references, fetched to see that they can be, and digested (criterion 2)."""

import hashlib
from typing import Final
from urllib.parse import urljoin

from interlock.core.clock import Clock, rfc3339
from interlock.names.protocol.records import Retrieval
from interlock.names.protocol.references import read_reference
from interlock.net.fetch import Fetcher, FetchFailed
from interlock.net.protocol.address_scope import Scope

FETCH_S: Final = 10.0  # REG-5-4
DOCUMENT_BYTES_MAX: Final = 5 * 1024 * 1024  # REG-5-4
REDIRECTS_MAX: Final = 3  # REG-5-4


class DocumentFetcher:
    """https alone, from public addresses alone, without credentials."""

    def __init__(self, clock: Clock, within: Scope = Scope.PUBLIC) -> None:
        self._clock = clock
        self._fetcher = Fetcher(within=within, seconds=FETCH_S, body_bytes=DOCUMENT_BYTES_MAX)

    async def close(self) -> None:
        await self._fetcher.close()

    async def fetch(self, reference: str) -> Retrieval:
        url = read_reference(reference).url
        if url is not None:
            return await self.fetch_at(url)
        at = rfc3339(self._clock.wall())
        return Retrieval(outcome="failed", at=at, detail="the reference leads to no document that can be fetched")

    async def fetch_at(self, url: str) -> Retrieval:
        at = rfc3339(self._clock.wall())
        try:
            body = await self._follow(url)
        except FetchFailed as failed:
            if failed.unsent:
                detail = f"{url} was not reached ({failed}); confirm it by hand, with a copy"
                return Retrieval(outcome="skipped_offline", at=at, detail=detail)
            return Retrieval(outcome="failed", at=at, detail=f"{url}: {failed}")
        return Retrieval(outcome="retrieved", at=at, digest=f"sha256:{hashlib.sha256(body).hexdigest()}")

    async def _follow(self, url: str) -> bytes:
        for _ in range(REDIRECTS_MAX + 1):
            answered = await self._fetcher.look(url)
            if answered.status == 200:
                return answered.body
            if not (answered.status in (301, 302, 303, 307, 308) and answered.location):
                raise FetchFailed(f"HTTP status {answered.status}")
            url = urljoin(url, answered.location)
        raise FetchFailed(f"more than {REDIRECTS_MAX} redirects")
