"""Are large arguments let go of as soon as their record is made?"""

import sys
from collections.abc import Sequence
from typing import Any, cast

from msgspec import Raw

from interlock.core.audit_record import AuditRecord
from interlock.core.recorder import Recorder

ARGUMENTS = bytes(1000)


class Disk:
    """A disk that notes who still holds the arguments while it is written to."""

    holders = 0
    lines = 0

    async def append(self, lines: Sequence[bytes]) -> None:
        self.holders, self.lines = sys.getrefcount(ARGUMENTS), len(lines)


async def test_arguments_do_not_wait_for_the_disk() -> None:
    disk = Disk()
    recorder, before = Recorder(cast(Any, disk)), sys.getrefcount(ARGUMENTS)
    for name in ("one", "two"):
        recorder.add(AuditRecord(0.0, "me", "http", "tools/call", name, Raw(ARGUMENTS), "admitted", "ok", 0.1))
    await recorder.flush()
    assert (disk.lines, disk.holders) == (2, before)
