"""Children of the node whose start goes otherwise than planned."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from interlock.ax import children
from interlock.ax.children import ChildSupervisor
from interlock.ax.registrar import Registrar
from interlock.config.plan import ChildPlan
from interlock.core.clock import Clock
from interlock.links.connector import ConnectorParts
from interlock.process.child import Child
from interlock.process.packages.package_store import PackageFolders

HASTY = 'import sys; print(\'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\', flush=True); sys.stdin.read()'
PATIENCE_S = 10.0


class _Ax:
    children = (ChildPlan(segment="kid", command=(sys.executable, "-c", HASTY)),)
    heartbeat_min_ms = 1000


class _Plan:
    ax = _Ax()
    access = ()


def _supervisor(tmp_path: Path) -> ChildSupervisor:
    """No child here comes so far as to register."""
    connector_parts = ConnectorParts(
        packages=PackageFolders(own=tmp_path, store=tmp_path),
        message_bytes=100_000,
        reaper=None,
        eras=cast(Any, None),
        clock=Clock(),
        revealer=cast(Any, None),
    )
    return ChildSupervisor(cast(Any, _Plan()), cast(Registrar, None), connector_parts)


async def test_a_line_that_comes_before_the_start_is_over_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    class Slow(Child):
        async def start(self) -> None:
            await super().start()
            await answered

        def send(self, message: bytes) -> bool:
            if not answered.done():
                answered.set_result(message)
            return super().send(message)

    monkeypatch.setattr(children, "Child", Slow)
    supervisor = _supervisor(tmp_path)
    await supervisor.open()
    try:
        assert b"mcpax/register" in await asyncio.wait_for(asyncio.shield(answered), PATIENCE_S)
    finally:
        await supervisor.close()


async def test_an_unexpected_error_does_not_end_the_supervision_of_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts = 0
    again = asyncio.Event()

    class Odd(Child):
        async def start(self) -> None:
            nonlocal starts
            starts += 1
            if starts == 1:
                raise ZeroDivisionError
            again.set()
            await super().start()

    monkeypatch.setattr(children, "Child", Odd)
    monkeypatch.setattr(children, "backoff_s", lambda attempt: 0.0)
    supervisor = _supervisor(tmp_path)
    with caplog.at_level(logging.ERROR, "interlock.ax"):
        await supervisor.open()
        try:
            await asyncio.wait_for(again.wait(), PATIENCE_S)
            ref = supervisor.waiting["kid"].reason.removeprefix("internal error ")
        finally:
            await supervisor.close()
    assert [record.getMessage() for record in caplog.records] == [f"child kid: internal error {ref}"]
