"""The documents that specification references point to: fetched, digested, watched for changes, copied (criterion 2).

The address of a document comes from a requester, so fetching is restricted: only https, only public addresses, no
credentials, few redirects, a limited size and time (`DocumentFetcher`). The digest of the bytes is recorded with the
revision. Documents are fetched again each week (`DocumentWatch`); a changed or lost document is noted in the log and
changes no status. If a document cannot be fetched from here, a person can attach a copy by which the expert decides
(`attach_copy`, REG-5-4).
"""

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import msgspec
from msgspec.structs import replace

from interlock.core.clock import Clock, rfc3339
from interlock.crypto.signing import write_once
from interlock.names.protocol.criteria import read_reference
from interlock.names.protocol.entry import EntryStatus, RegistryEntry, days_between
from interlock.names.protocol.registry import CheckFinding, NameRequest, NamesRegistry, RegistryStep, Retrieval
from interlock.names.requests import REGISTRY, Fetch, request_step
from interlock.names.state import RegistryChange, RegistryState, changes_registry
from interlock.net.fetch import Fetcher, FetchFailed
from interlock.net.protocol.address_scope import Scope
from interlock.store.ports import KeyValue, Unavailable
from interlock.wire.refusal import NotFound, Refused

FETCH_S: Final = 10.0  # REG-5-4
DOCUMENT_BYTES_MAX: Final = 5 * 1024 * 1024  # REG-5-4
REDIRECTS_MAX: Final = 3  # REG-5-4


class DocumentFetcher:
    """A client that fetches documents. It uses only https and public addresses, and sends no credentials."""

    def __init__(self, clock: Clock, within: Scope = Scope.PUBLIC) -> None:
        self._clock = clock
        self._fetcher = Fetcher(within=within, seconds=FETCH_S, body_bytes=DOCUMENT_BYTES_MAX)

    async def close(self) -> None:
        await self._fetcher.close()

    async def fetch(self, reference: str) -> Retrieval:
        """Fetch the document of a specification reference. Failures are part of the result and not raised."""
        url, at = read_reference(reference).url, rfc3339(self._clock.wall())
        if url is None:
            return Retrieval(outcome="failed", at=at, detail="the reference leads to no document that can be fetched")
        return await self.fetch_at(url)

    async def fetch_at(self, url: str) -> Retrieval:
        """Fetch the document at a URL. Failures are part of the result and not raised."""
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
        """Fetch a URL and follow a limited number of redirects. Raise FetchFailed if no document is found."""
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
AT_ONCE_MAX: Final = 50  # documents that one hourly look fetches; the others wait for the next


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last weekly check of an entry's document: its day, the number of failures, and the changed
    document that was noted last.
    """

    day: str
    failures: int = 0
    noted: str = msgspec.field(default="", name="told")  # the digest of the change that was noted; stored under `told`


class DocumentWatch:
    """A task that checks each week whether the documents of entries have changed or disappeared."""

    def __init__(self, state: RegistryState, fetch: Fetch, kv: KeyValue, clock: Clock) -> None:
        self._state = state
        self._fetch = fetch
        self._kv = kv
        self._clock = clock

    async def look(self) -> None:
        """Fetch the documents whose check is due. Raise Refused if the registry cannot be used, or StoreError
        if the store fails.
        """
        state = self._state
        stored = await self._kv.entries(DOCUMENTS_BUCKET, self._clock.wall())
        seen_by_name = {each.key: msgspec.json.decode(each.value, type=Seen) for each in stored}
        looks = 0
        for entry in state.registry.in_order():
            # An entry is watched if it is current, registered here, and its document was fetched.
            is_current = entry.status is not EntryStatus.WITHDRAWN and not entry.source
            if is_current and entry.specification.document_digest is not None and looks < AT_ONCE_MAX:
                seen = seen_by_name.get(entry.surface_name)
                last = seen.day if seen is not None else entry.specification.registered
                if days_between(last, state.today) >= EVERY_DAYS:  # REG-8.2-4
                    looks += 1
                    await self._check_document(entry, seen or Seen(day=state.today))

    async def _check_document(self, entry: RegistryEntry, seen: Seen) -> None:
        """Fetch the document of an entry. If the document has changed, or could not be fetched several times, note that
        once in the log.
        """
        retrieval = await self._fetch(entry.specification_reference)
        if retrieval.outcome == "skipped_offline":
            return
        failures, noted = seen.failures + 1, seen.noted
        if retrieval.digest is not None:
            failures = 0
            if retrieval.digest not in (entry.specification.document_digest, noted):  # REG-8.2-4
                noted = retrieval.digest
                await self._note(entry.surface_name, "document_changed", f"{entry.specification_reference}: {noted}")
        elif failures == LOST_AFTER:  # REG-8.2-4
            await self._note(entry.surface_name, "reference_lost", retrieval.detail)
        seen = Seen(day=self._state.today, failures=failures, noted=noted)
        await self._kv.put(DOCUMENTS_BUCKET, entry.surface_name, msgspec.json.encode(seen), self._clock.wall())

    @changes_registry
    def _note(self, registry: NamesRegistry, name: str, what: str, reason: str) -> RegistryChange[None]:
        step = RegistryStep(at=self._state.now, by=REGISTRY, what=what, subject=name, reason=reason)
        return RegistryChange((step,), None)


FOLDER: Final = "names-documents"


async def attach_copy(
    state: RegistryState, data: Path, by: str, subject: str, document: bytes
) -> tuple[NameRequest, Path]:
    """Store a copy of a document for a request. `subject` is the id of the request, or a name with an open request.

    The copy is a file in the folder `data`, named by its digest; the log of the registry says to which request it
    belongs. Return the changed request and the path of the copy. Raise NotFound if there is no such request, Refused if
    it needs no copy or the document is empty or too large, and StoreError if it cannot be stored.
    """
    if not 0 < len(document) <= DOCUMENT_BYTES_MAX:
        raise Refused("bad_document", f"a document has 1 to {DOCUMENT_BYTES_MAX} bytes")
    digest = hashlib.sha256(document).hexdigest()
    path = data / FOLDER / digest
    _open_request(state.registry, subject)  # refuse before anything is stored
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_once(path, document)
    except OSError as error:
        raise Unavailable(f"the copy cannot be kept: {error.strerror}") from None

    def decide(registry: NamesRegistry) -> RegistryChange[NameRequest]:
        request, now = _open_request(registry, subject), state.now
        copy = Retrieval(outcome="attached", at=now, digest=f"sha256:{digest}", detail=f"a copy: {digest}")
        reason = f"the document was not reached; compare the copy {FOLDER}/{digest}"
        attached = CheckFinding(2, "needs_expert", "copy_attached", reason)
        findings = tuple(attached if finding.code in _CODES else finding for finding in request.findings)
        after = replace(request, retrieval=copy, findings=findings)
        return RegistryChange((request_step(after, now, by, "attach", f"sha256:{digest}"),), after)

    return await state.change(decide), path


_CODES: Final = ("skipped_offline", "copy_attached")  # findings about a document that the node could not reach


def _open_request(registry: NamesRegistry, subject: str) -> NameRequest:
    """Return the open request with this id or about this name, to which a copy of its document is to be attached. Raise
    NotFound unless there is exactly one, and Refused if it needs no copy.
    """
    requests = [each for each in registry.open_requests() if subject in (each.id, each.id[:8], each.subject)]
    if len(requests) != 1:
        raise NotFound("request", subject, [each.subject for each in registry.open_requests()])
    if not any(each.code in _CODES for each in requests[0].findings):
        why = f"the document of {requests[0].subject} was asked for where it is; no copy is needed"
        raise Refused("not_offline", why)
    return requests[0]
