"""Copies of documents that could not be fetched: a person brings one, and the expert confirms by it (REG-5-4).

A copy is kept under its digest, beside the registry's log, which says to which request it belongs.
"""

import hashlib
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from interlock.core.operator_errors import NotFound, Refused
from interlock.crypto.keys.signing import write_once
from interlock.names.documents import DOCUMENT_BYTES_MAX
from interlock.names.protocol.records import Finding, Request, Retrieval, Step
from interlock.names.protocol.registry import Registry
from interlock.names.state import Change, RegistryState
from interlock.store.ports import Unavailable

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
