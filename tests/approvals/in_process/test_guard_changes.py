"""Changes of the configuration that wait for a signature: what counts afterwards is what was signed."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.inboxes import stored_inbox
from tests.config.config_project import Project

from interlock.approvals.guard_changes import GuardChanges
from interlock.approvals.protocol.approval import Approval, Kind
from interlock.store.ports import Entry


class OneApprover:
    has_approver = True


class ChangingKeyValue:
    """A store that is slow to answer: something happens before an answer arrives."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv
        self.meanwhile: list[Callable[[], Awaitable[object]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def get(self, bucket: str, key: str, now: float) -> Entry | None:
        entry: Entry | None = await self._kv.get(bucket, key, now)
        if self.meanwhile:
            await self.meanwhile.pop()()
        return entry


STRICT = '[gate]\nmode = "gated"\nalso = ["mail.*", "bank.*"]\n'
SHOWN = '[gate]\nmode = "gated"\nalso = ["bank.*"]\n'
HIDDEN = '[gate]\nmode = "open"\n'


@pytest.mark.req("AX-11.N-1")
async def test_a_file_that_changes_while_its_signature_is_stored_counts_only_as_it_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path)
    monkeypatch.chdir(project.folder)
    strict, shown, hidden = (project.load(text).plan for text in (STRICT, SHOWN, HIDDEN))
    async with stored_inbox(tmp_path) as desk:
        kv = ChangingKeyValue(desk.store.kv)
        changes = GuardChanges(strict, kv, desk.inbox, OneApprover(), desk.recorder, desk.clock)  # type: ignore[arg-type]
        await changes.open()
        await changes.hold_back(shown)
        (asked,) = desk.inbox.waiting(Kind.CONFIGURATION)
        approved = await desk.inbox.decide(asked.id, desk.yes())
        assert isinstance(approved, Approval)
        kv.meanwhile = [lambda: changes.hold_back(hidden)]
        await changes.settle(approved)
        assert not kv.meanwhile
        assert (await changes.hold_back(hidden)).gate.mode == "gated"
