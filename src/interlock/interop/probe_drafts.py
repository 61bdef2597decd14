"""Probes drafts to make drivers of them: starts each server once, in its sandbox, to list tools (AIP-import-8, -9).

Every start is announced first with what would be run or dialled, and may be declined. A server that cannot be reached
stays a draft; `interlock add ID` tries again. This is the only place where an import starts anything.

Servers are started one after the other. What their tools are is asked once, when all of them were tried: `Agreement`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from interlock.drivers.add.add import AddResult, NotAdded
from interlock.drivers.protocol.authoring.proposal import Proposal
from interlock.interop.importer import DriverReport

Proposals = tuple[Proposal, ...]
Agree = Callable[[Proposals], Awaitable[Proposals]]
Finish = Callable[[Path, Agree], Awaitable[AddResult]]  # of a draft's folder; raises NotAdded
Agreed = Callable[[DriverReport], bool]
Decide = Callable[[Mapping[str, Proposals]], Mapping[str, Proposals]]  # by the ids of drivers


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: Literal["ready", "declined", "failed"]
    key: str | None = None
    reason: str | None = None
    files: tuple[str, ...] = ()


class Agreement:
    """Holds what is proposed for the tools of one driver until those of all are known."""

    def __init__(self) -> None:
        self.proposed: asyncio.Future[Proposals] = asyncio.get_running_loop().create_future()
        self.agreed: asyncio.Future[Proposals] = asyncio.get_running_loop().create_future()

    async def agree(self, proposals: Proposals) -> Proposals:
        self.proposed.set_result(proposals)
        return await self.agreed


async def connect(
    drafts: Sequence[DriverReport], workspace: Path, finish: Finish, agreed: Agreed, decide: Decide
) -> list[ProbeResult]:
    """`decide` is asked once about the tools of all drivers; what it raises ends the import, and nothing is written."""
    done: dict[str, ProbeResult] = {}
    tasks: dict[str, asyncio.Task[AddResult]] = {}
    waiting: dict[str, Agreement] = {}
    try:
        for each in drafts:
            if not agreed(each):
                done[each.id] = ProbeResult(id=each.id, state="declined")
                continue
            agreement = Agreement()
            work = _begin(finish, workspace / ".drivers" / each.id, agreement)
            task = tasks[each.id] = asyncio.get_running_loop().create_task(work, name=f"import {each.id}")
            await asyncio.wait((task, agreement.proposed), return_when=asyncio.FIRST_COMPLETED)
            if agreement.proposed.done():
                waiting[each.id] = agreement
        decided = decide({id: one.proposed.result() for id, one in waiting.items()}) if waiting else {}
        for id, one in waiting.items():
            one.agreed.set_result(decided[id])
            await asyncio.wait((tasks[id],))
        for id, task in tasks.items():
            done[id] = await _result(id, task)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    return [done[each.id] for each in drafts]


async def _begin(finish: Finish, folder: Path, agreement: Agreement) -> AddResult:
    return await finish(folder, agreement.agree)


async def _result(id: str, task: asyncio.Task[AddResult]) -> ProbeResult:
    try:
        added = await task
    except NotAdded as failed:
        return ProbeResult(id=id, state="failed", reason=failed.message)
    return ProbeResult(id=id, state="ready", key=added.key, files=added.files)
