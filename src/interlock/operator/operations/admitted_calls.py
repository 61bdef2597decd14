"""How often each tool was called, counted in the audit log: of what was read before, only what is new is read again."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from interlock.core.recorder import Recorder
from interlock.mcp.methods import TOOLS_CALL
from interlock.store.ports import AuditReader

RECORDS_MAX: Final = 200_000  # of a log that was not read yet: its newest
PAGE: Final = 10_000


class _Record(msgspec.Struct, frozen=True):
    method: str = ""
    tool: str | None = None
    verdict: str = ""


_decode = msgspec.json.Decoder(_Record).decode


class AdmittedCalls:
    def __init__(self, audit: AuditReader, recorder: Recorder) -> None:
        self._audit = audit
        self._recorder = recorder
        self._counts = Counter[str]()
        self._read = 0

    async def counts(self) -> Mapping[str, int]:
        """By the qualified names of tools. Raises StoreError."""
        await self._recorder.flush()
        self._read = max(self._read, await self._audit.last() - RECORDS_MAX)
        while page := await self._audit.read(self._read, PAGE):
            for one in (_decode(record.data) for record in page):
                if one.method == TOOLS_CALL and one.verdict == "admitted" and one.tool is not None:
                    self._counts[one.tool] += 1
            self._read = page[-1].sequence
        return self._counts
