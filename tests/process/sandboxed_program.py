"""One program run in a sandbox, without a node around it."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from interlock.config.plan import LimitsPlan, SandboxPlan, ServerPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.process.child import Child
from interlock.process.sandbox.sandbox import SandboxedCommand, Sandboxes
from interlock.process.stderr import StderrRing


class ProgramResult(msgspec.Struct, frozen=True):
    reason: str
    lines: list[str]
    errors: list[str]
    argv: tuple[str, ...]
    remark: str

    @property
    def said(self) -> Any:
        assert self.lines, (self.reason, self.errors)
        return json.loads(self.lines[-1])


class SandboxedHome:
    """A user's home, a workspace and a data folder, and the sandboxes of a node that would live there."""

    def __init__(self, folder: Path, packages: Path | None = None, store: Path | None = None, **limits: int) -> None:
        """`packages`: where those in the data folder are, if that is a link. `store`: the package store."""
        self.home, self.workspace, self.state = folder / "home", folder / "workspace", folder / "state"
        for each in (self.home, self.workspace, self.state):
            each.mkdir()
        if packages is not None:
            (self.state / "packages").symlink_to(packages)
        self.records: list[AuditRecord] = []
        self.servers: list[ServerPlan] = []
        self.sandboxes = Sandboxes(
            state=self.state,
            workspace=self.workspace,
            user_home=self.home,
            packages=store,
            private=() if store is None else (store,),
            clock=Clock(),
            record=self.records.append,
            limits=lambda: LimitsPlan(**limits),
            servers=lambda: self.servers,
        )

    def plan(self, **policy: Any) -> SandboxPlan:
        return SandboxPlan(home=self.state / "homes" / "one", **policy)

    async def run(
        self, plan: SandboxPlan, *argv: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> ProgramResult:
        gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        sink, stderr = _Sink(gone), StderrRing(now=time.time)
        command = SandboxedCommand(argv=argv, env=env or {}, cwd=cwd or self.workspace)
        cell = await self.sandboxes.make("one", plan, command, stderr)
        child = Child(
            cell.argv,
            cell.env,
            cell.cwd,
            max_message_bytes=1_000_000,
            sink=sink,
            stderr=stderr,
            reaper=None,
            handed=cell.handed,
            terminate=cell.terminate,
        )
        try:
            await child.start()
            await cell.open(child)
            async with asyncio.timeout(30):
                reason = await gone
        finally:
            await child.stop(grace_s=0)
            cell.close()
        return ProgramResult(reason, sink.lines, [line.text for line in stderr.tail()], cell.argv, cell.remark)

    async def python(self, plan: SandboxPlan, text: str, *words: str, **options: Any) -> Any:
        """What `tell(value)` was called with last; `tried(function)` is its value or the name of its error."""
        prelude = (
            "import json, os, subprocess, sys\n"
            "def tell(value): print(json.dumps(value), flush=True)\n"
            "def tried(attempt):\n"
            "    try: return attempt()\n"
            "    except (OSError, subprocess.SubprocessError) as failed: return type(failed).__name__\n"
        )
        return (await self.run(plan, sys.executable, "-c", prelude + text, *words, **options)).said


class _Sink:
    def __init__(self, gone: "asyncio.Future[str]") -> None:
        self.lines: list[str] = []
        self._gone = gone

    def on_line(self, data: bytes) -> None:
        self.lines.append(data.decode())

    def on_gone(self, reason: str) -> None:
        if not self._gone.done():
            self._gone.set_result(reason)

    def on_oversized(self, found: object) -> None:
        pass

    def on_stalled(self) -> None:
        pass
