"""A real node whose drivers are the reference servers, from the folders that come with Interlock.

The packages are those of `tests.conformance.driver_places`, installed once into .cache; the node finds them where it
would have put them itself, and on record.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.conformance import toolbox
from tests.conformance.driver_places import HOME, STORE, installed, tools_of_node
from tests.conformance.shipping import PLACE, SHIPPED
from tests.support.node_process import RunningNode, running_node, wait_for

from interlock.core.clock import Clock
from interlock.core.store_backends import build_store
from interlock.drivers.install.installation import Locked, Locks
from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.model import Driver

SERVERS = ("filesystem", "everything")
READY_S = 90.0
TRUSTING = "[drivers]\ntrust_workspace = true\n"


def copy_shipped(workspace: Path, name: str, place: Path) -> Driver:
    """The shipped folder, with this place in it."""
    folder = workspace / ".drivers" / f"{name}-mcp"
    shutil.copytree(SHIPPED / f"{name}-mcp", folder)
    file = folder / "DRIVER.md"
    file.write_text(file.read_text().replace(PLACE, str(place)))
    return as_read(file)


def as_read(file: Path) -> Driver:
    reading = read_driver(file.read_bytes(), str(file), folder=file.parent.name)
    assert reading.value is not None, reading.problems
    return reading.value


def furnish(data: Path, drivers: Sequence[Driver], record: str | None = None) -> None:
    """The packages and the record of them, in a node's data folder."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def furnished() -> None:
        locks: dict[str, Locked] = {driver.key: (await installed(driver, record=record)).lock for driver in drivers}
        store = build_store("sqlite", data)
        await store.open()
        try:
            for key, lock in locks.items():
                await Locks(store.kv, Clock()).put(key, lock)
        finally:
            await store.close()

    asyncio.run(furnished())
    (data / "packages").symlink_to(HOME / "packages")


def path_of_programs() -> str:
    """node itself, npm, and whatever else the machine has."""
    return f"{toolbox.node().parent}:{tools_of_node()}:{os.environ['PATH']}"


@contextlib.contextmanager
def reference_node(folder: Path, names: Sequence[str] = SERVERS, extra: str = TRUSTING) -> Iterator[RunningNode]:
    workspace, place = folder / "workspace", folder / "place"
    workspace.mkdir(parents=True)
    make_place(place)
    drivers = [copy_shipped(workspace, name, place) for name in names]
    furnish(folder / "data", drivers)
    with running_node(folder, {}, extra, env={"PATH": path_of_programs(), "INTERLOCK_PACKAGES": str(STORE)}) as node:
        keys = [driver.key for driver in drivers]
        wait_for(lambda: all(state(node, key)["state"] not in ("installing", "checking") for key in keys), READY_S)
        assert {key: (state(node, key)["state"], state(node, key)["reason"]) for key in keys} == dict.fromkeys(
            keys, ("ready", None)
        )
        for name in names:  # a driver is ready a moment before its tools are listed
            wait_for(lambda name=name: any(f"{name}." in tool["name"] for tool in node.admin("/admin/tools")["tools"]))
        yield node


def make_place(place: Path) -> None:
    """A folder with files, which is a repository."""
    place.mkdir()
    (place / "hello.txt").write_text("hello\nthere\n")
    (place / "small.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (place / "kept").mkdir()
    for words in (
        ("init", "--quiet", "--initial-branch", "main"),
        ("config", "user.name", "Test"),
        ("config", "user.email", "test@example.com"),
        ("add", "hello.txt"),
        ("commit", "--quiet", "-m", "first"),
    ):
        subprocess.run(["git", *words], cwd=place, check=True, capture_output=True)


def state(node: RunningNode, key: str) -> dict[str, Any]:
    shown = node.admin(f"/admin/drivers/{key}")
    return {"state": "installing", "reason": None} | shown
