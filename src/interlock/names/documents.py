"""The documents that specification references point to: fetched, digested, watched for changes, copied (criterion 2).

Documents are fetched again each week (`DocumentWatch`); a changed or lost document is noted and changes no status. If a
document cannot be fetched, a person can attach a copy by which the expert decides (`DocumentCopies`, REG-5-4).
"""

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import msgspec
from msgspec.structs import replace

from interlock.core.clock import Clock, rfc3339
from interlock.core.operator_errors import NotFound, Refused
from interlock.crypto.keys.signing import write_once
from interlock.names.protocol.criteria import read_reference
from interlock.names.protocol.entry import Entry, Status, days_between
from interlock.names.protocol.registry import Finding, Registry, Request, Retrieval, Step
from interlock.names.requests import REGISTRY, Fetch
from interlock.names.state import Change, RegistryState
from interlock.net.fetch import Fetcher, FetchFailed
from interlock.net.protocol.address_scope import Scope
from interlock.store.ports import KeyValue, Unavailable

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


DOCUMENTS_BUCKET: Final = "names-documents"
EVERY_DAYS: Final = 7
LOST_AFTER: Final = 3  # failures, a week apart
AT_ONCE_MAX: Final = 50  # in one look


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """When a document was last asked for, and what was told of it."""

    day: str
    failures: int = 0
    told: str = ""  # the digest of the change that was noted


class DocumentWatch:
    def __init__(self, state: RegistryState, fetch: Fetch, kv: KeyValue, clock: Clock) -> None:
        self._state = state
        self._fetch = fetch
        self._kv = kv
        self._clock = clock

    async def look(self) -> None:
        """Raises Refused, StoreError."""
        state = self._state
        watched = [one for one in state.registry.in_order() if _is_document_watched(one)]
        stored = await self._kv.entries(DOCUMENTS_BUCKET, self._clock.wall())
        known = {one.key: msgspec.json.decode(one.value, type=Seen) for one in stored}
        due = [one for one in watched if _is_due(one, known.get(one.surface_name), state.today)]
        for entry in due[:AT_ONCE_MAX]:
            seen = known.get(entry.surface_name) or Seen(day=state.today)
            await self._look_at(entry, seen)

    async def _look_at(self, entry: Entry, seen: Seen) -> None:
        found = await self._fetch(entry.specification_reference)
        if found.outcome == "skipped_offline":
            return
        failures, told = seen.failures + 1, seen.told
        if found.digest is not None:
            failures = 0
            if found.digest not in (entry.specification.document_digest, told):  # REG-8.2-4
                told = found.digest
                await self._note(entry.surface_name, "document_changed", f"{entry.specification_reference}: {told}")
        elif failures == LOST_AFTER:  # REG-8.2-4
            await self._note(entry.surface_name, "reference_lost", found.detail)
        seen = Seen(day=self._state.today, failures=failures, told=told)
        await self._kv.put(DOCUMENTS_BUCKET, entry.surface_name, msgspec.json.encode(seen), self._clock.wall())

    async def _note(self, name: str, what: str, reason: str) -> None:
        at = self._state.now

        def decide(registry: Registry) -> Change:
            return Change((Step(at=at, by=REGISTRY, what=what, subject=name, reason=reason),))

        await self._state.change(decide)


def _is_document_watched(entry: Entry) -> bool:
    is_kept = entry.status is not Status.WITHDRAWN and not entry.source
    return is_kept and entry.specification.document_digest is not None


def _is_due(entry: Entry, seen: Seen | None, today: str) -> bool:
    last = seen.day if seen is not None else entry.specification.registered
    return days_between(last, today) >= EVERY_DAYS  # REG-8.2-4


FOLDER: Final = "names-documents"


class DocumentCopies:
    def __init__(self, state: RegistryState, data: Path) -> None:
        self._state = state
        self._folder = data / FOLDER

    async def attach(self, by: str, subject: str, document: bytes) -> tuple[Request, Path]:
        """`subject`: the name whose request waits, or the request. The request as it then is, and where the copy is
        kept. Raises NotFound, Refused, StoreError."""
        if not 0 < len(document) <= DOCUMENT_BYTES_MAX:
            raise Refused("bad_document", f"a document has 1 to {DOCUMENT_BYTES_MAX} bytes")
        digest = hashlib.sha256(document).hexdigest()
        path = self._folder / digest
        _waiting(self._state.registry, subject)  # before anything is kept
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            write_once(path, document)
        except OSError as error:
            raise Unavailable(f"the copy cannot be kept: {error.strerror}") from None
        now = self._state.now

        def decide(registry: Registry) -> Change:
            request = _waiting(registry, subject)
            copy = Retrieval(outcome="attached", at=now, digest=f"sha256:{digest}", detail=f"a copy: {path.name}")
            reason = f"the document was not reached; compare the copy {FOLDER}/{path.name}"
            told = Finding(criterion=2, verdict="needs_expert", code="copy_attached", reason=reason)
            findings = tuple(told if one.code in _CODES else one for one in request.findings)
            after = replace(request, retrieval=copy, findings=findings)
            step = Step(at=now, by=by, what="attach", subject=request.subject, reason=f"sha256:{digest}", request=after)
            return Change((step,), after)

        return await self._state.change(decide), path


_CODES: Final = ("skipped_offline", "copy_attached")


def _waiting(registry: Registry, subject: str) -> Request:
    found = [one for one in registry.open_requests() if subject in (one.id, one.id[:8], one.subject)]
    if len(found) != 1:
        raise NotFound("request", subject, [one.subject for one in registry.open_requests()])
    if not any(one.code in _CODES for one in found[0].findings):
        raise Refused("not_offline", f"the document of {found[0].subject} was asked for where it is; no copy is needed")
    return found[0]
