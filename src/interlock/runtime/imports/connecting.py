"""Drafts become drivers: each server is started once, inside its sandbox, to say which tools it has (AIP-import-8, -9).

Every start is announced first with what would be run or dialled, and may be declined. A server that cannot be reached
stays a draft; `interlock add ID` tries again. This is the only place where an import starts anything.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from interlock.runtime.drivers.looking import DRIVERS
from interlock.runtime.imports.finishing import finish
from interlock.runtime.imports.importing import DriverReport

Survey = Callable[[Path], Awaitable[Sequence[Mapping[str, Any]]]]  # a draft's folder -> the items of its tools/list
Agreed = Callable[[DriverReport], bool]


class SurveyFailed(Exception):
    """The server could not be asked; the text says why, in words fit for the person."""


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    state: Literal["ready", "declined", "failed"]
    reason: str | None = None
    files: tuple[str, ...] = ()


async def connect(drafts: Sequence[DriverReport], workspace: Path, survey: Survey, agreed: Agreed) -> list[Connected]:
    done = []
    for each in drafts:
        if not agreed(each):
            done.append(Connected(id=each.id, state="declined"))
            continue
        folder = workspace / DRIVERS / each.id
        try:
            tools = await survey(folder)
            written = finish(workspace, folder, tools)
        except SurveyFailed as failed:
            done.append(Connected(id=each.id, state="failed", reason=str(failed)))
            continue
        files = tuple(str(path.relative_to(workspace)) for path in written)
        done.append(Connected(id=each.id, state="ready", files=files))
    return done
