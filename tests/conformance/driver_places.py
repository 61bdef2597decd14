"""Servers of drivers for tests: installed once into .cache, then run from what was recorded of them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance import toolbox

from interlock.config.plan import DriversPlan
from interlock.drivers.install.install import install
from interlock.drivers.install.installation import Installation, Installed, Locked
from interlock.drivers.protocol.model import Driver
from interlock.process.child import Child
from interlock.process.packages.package_store import PackageFolders
from interlock.process.stderr import StderrRing

HOME = toolbox.CACHE / "drivers"
STORE = HOME / "store"  # of installed packages


def tools_of_node() -> Path:
    """node and npm of the wheel, as programs on a PATH."""
    folder = HOME / "bin"
    folder.mkdir(exist_ok=True)
    npm = toolbox.node().parent.parent / "lib" / "node_modules" / "npm" / "bin"
    for name, command in {
        "node": f"'{toolbox.node()}'",
        "npm": f"'{toolbox.node()}' '{npm / 'npm-cli.js'}'",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


async def installed(wanted: Driver, env: dict[str, str] | None = None, record: str | None = None) -> Installed:
    """From the record of an earlier run, else from the registry. `record`: its name, where one of the driver's key is
    about something else."""
    HOME.mkdir(parents=True, exist_ok=True)
    kept = HOME / f"{record or wanted.key}.json"
    lock = msgspec.json.decode(kept.read_bytes(), type=Locked) if kept.exists() else None
    node = {"PATH": f"{tools_of_node()}:{os.environ['PATH']}"}
    installation = Installation(
        wanted,
        packages=PackageFolders(own=HOME / "packages", store=STORE),
        folder=HOME,
        workspace=HOME,
        progress=lambda _: None,
        reaper=None,
        settings=DriversPlan(),
        environment=dict(os.environ) | node | (env or {}),
    )
    outcome = await install(installation, lock)
    if not isinstance(outcome, Installed):
        pytest.skip(f"{wanted.id} CANNOT BE INSTALLED, it is not shown: {outcome.reason}")
    kept.write_bytes(msgspec.json.encode(outcome.lock))
    return outcome


class Talk:
    def __init__(self) -> None:
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.child: Child

    def on_line(self, data: bytes) -> None:
        self._answers.put_nowait(data)

    def on_gone(self, reason: str) -> None:
        self._answers.put_nowait(json.dumps({"id": None, "gone": reason}).encode())

    def on_oversized(self, found: object) -> None:
        pass

    def on_stalled(self) -> None:
        raise AssertionError

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        self.child.send(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).encode())
        async with asyncio.timeout(45):
            while True:
                answer = json.loads(await self._answers.get())
                assert "gone" not in answer, answer
                if answer.get("id") == method and "method" not in answer:
                    return answer["result"]


@asynccontextmanager
async def running(done: Installed, args: Sequence[str]) -> AsyncIterator[Talk]:
    talk = Talk()
    talk.child = Child(
        (*done.command, *args),
        {"PATH": os.environ["PATH"], "HOME": str(HOME), **done.env},
        HOME,
        max_message_bytes=4_000_000,
        sink=talk,
        stderr=StderrRing(now=lambda: 0.0),
        reaper=None,
    )
    try:
        await talk.child.start()
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        await talk.ask("initialize", hello)
        talk.child.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        yield talk
    finally:
        await talk.child.stop()
