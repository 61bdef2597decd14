"""Probes drafts to make drivers of them: starts each server once, in its sandbox, to list tools (AIP-import-8, -9).

Every start is announced first with what would be run or dialled, and may be declined. A server that cannot be reached
stays a draft; `interlock add ID` tries again. This is the only place where an import starts anything.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from interlock.runtime.drivers.add.add import AddResult, NotAdded
from interlock.runtime.interop.importer import DriverReport

Finish = Callable[[Path], Awaitable[AddResult]]  # of a draft's folder; raises NotAdded
Agreed = Callable[[DriverReport], bool]


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: Literal["ready", "declined", "failed"]
    key: str | None = None
    reason: str | None = None
    files: tuple[str, ...] = ()


async def connect(drafts: Sequence[DriverReport], workspace: Path, finish: Finish, agreed: Agreed) -> list[ProbeResult]:
    done = []
    for each in drafts:
        if not agreed(each):
            done.append(ProbeResult(id=each.id, state="declined"))
            continue
        try:
            added = await finish(workspace / ".drivers" / each.id)
        except NotAdded as failed:
            done.append(ProbeResult(id=each.id, state="failed", reason=failed.message))
            continue
        done.append(ProbeResult(id=each.id, state="ready", key=added.key, files=added.files))
    return done
