"""The net under a node that is killed, with real processes."""

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from interlock.process import orphan_reaper as reaper_module
from interlock.process.orphan_reaper import OrphanReaper

PATIENCE_S = 20.0
FOREVER = "import signal\nwhile True: signal.pause()"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n" + FOREVER

# A node with one child; child and grandchild ignore SIGTERM and the end of their input.
NODE = """
import asyncio, os, sys, time
import uvloop
from interlock.process.child import Child, StderrRing, child_environment
from interlock.process.orphan_reaper import OrphanReaper

CHILD = '''
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(tell, b"x")
    while True: signal.pause()
os.read(ready, 1)
print(os.getpid(), pid, flush=True)
while True: signal.pause()
'''

class Sink:
    def on_line(self, data): print(guard.pid if guard else 0, data.decode(), flush=True)
    def on_gone(self, reason): print("gone", reason, flush=True)
    def on_oversized(self, found): pass
    def on_stalled(self): pass

async def main():
    global guard
    guard = OrphanReaper() if "guarded" in sys.argv else None
    if guard: await guard.open()
    child = Child([sys.executable, "-I", "-S", "-c", CHILD], child_environment({}, os.environ), None,
        max_message_bytes=1000, sink=Sink(), stderr=StderrRing(now=time.time), reaper=guard)
    await child.start()
    await asyncio.Event().wait()

(uvloop.run if "uvloop" in sys.argv else asyncio.run)(main())
"""


def ends_within(pid: int, seconds: float) -> bool:
    """Also of a process that is not our child; a zombie has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)


@pytest.fixture
def spawn() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """A process that leads a group of its own and has printed a line."""
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(program: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE, start_new_session=True
        )
        spawned.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield spawn
    for process in spawned:
        process.kill()
        process.communicate()


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_node_that_is_killed(loop_name: str, number: signal.Signals) -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, loop_name, "guarded"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert node.stdout is not None
    pids = [int(word) for word in node.stdout.readline().split()]
    assert len(pids) == 3
    # To the whole group, as a terminal or a supervisor does it.
    os.killpg(node.pid, number)
    node.wait(PATIENCE_S)
    node.stdout.close()
    try:
        assert [pid for pid in pids if not ends_within(pid, 5)] == []
    finally:
        for pid in pids:
            if not ends_within(pid, 0):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_the_child_dies_with_the_node_even_without_a_reaper(loop_name: str) -> None:
    node = subprocess.Popen([sys.executable, "-c", NODE, loop_name], stdout=subprocess.PIPE, start_new_session=True)
    assert node.stdout is not None
    _, child, grandchild = (int(word) for word in node.stdout.readline().split())
    node.kill()
    node.wait(PATIENCE_S)
    node.stdout.close()
    try:
        assert ends_within(child, 5)
        assert not ends_within(grandchild, 0)  # which is why there is a reaper
    finally:
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the adopting of orphans can be asked for on Linux only")
def test_orphans_that_the_node_has_to_adopt_leave_no_zombies(loop_name: str) -> None:
    # As the first process of a container does: PR_SET_CHILD_SUBREAPER is 36.
    adopting = "import ctypes; ctypes.CDLL(None).prctl(36, 1)\n" + NODE.replace(
        "await asyncio.Event().wait()",
        "while not seen: await asyncio.sleep(0.01)\n"
        "    await child.stop(grace_s=0)\n"
        "    print([p for p in seen if os.path.exists(f'/proc/{p}')], flush=True)",
    ).replace("    def on_line(self, data): ", "    def on_line(self, data): seen.extend(data.decode().split()); ")
    adopting = adopting.replace(
        "class Sink", "seen = []\nfrom interlock.process import child as stdio\nstdio.TERM_GRACE_S = 0.1\nclass Sink"
    )
    done = subprocess.run(
        [sys.executable, "-c", adopting, loop_name], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=True
    )
    assert done.stdout.splitlines()[1:] == [b"gone was killed by SIGKILL", b"[]"]


async def test_guarded_processes_are_ended_when_the_reaper_stops(
    spawn: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    process = spawn(STUBBORN)
    reaper = OrphanReaper()
    await reaper.start()
    reaper.guard(process.pid)
    await reaper.close()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


async def test_a_guarded_group_gets_the_chance_to_end_itself(spawn: Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = spawn("print('ready', flush=True)\n" + FOREVER)
    reaper = OrphanReaper()
    await reaper.start()
    reaper.guard(process.pid)
    await reaper.close()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


async def test_a_released_group_is_left_alone(spawn: Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = spawn("print('ready', flush=True)\n" + FOREVER)
    reaper = OrphanReaper()
    await reaper.start()
    reaper.guard(process.pid)
    reaper.release(process.pid)
    reaper.release(process.pid)
    await reaper.close()
    assert process.poll() is None


async def test_groups_named_before_the_start_are_guarded(spawn: Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = spawn("print('ready', flush=True)\n" + FOREVER)
    reaper = OrphanReaper()
    reaper.guard(process.pid)
    await reaper.start()
    await reaper.close()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_reaper_that_dies_is_replaced_and_learns_everything_again(
    loop_name: str, spawn: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    async def scenario() -> None:
        kept, released, later = (spawn(STUBBORN) for _ in range(3))
        reaper = OrphanReaper()
        await reaper.start()
        first = reaper.pid
        assert first is not None
        reaper.guard(kept.pid)
        reaper.guard(released.pid)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.to_thread(ends_within, first, PATIENCE_S)
        # Told to a pipe without a reader.
        reaper.guard(later.pid)
        reaper.release(released.pid)
        while reaper.pid in (first, None):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await reaper.close()
        assert kept.wait(PATIENCE_S) == -signal.SIGKILL
        assert later.wait(PATIENCE_S) == -signal.SIGKILL
        assert released.poll() is None
        assert not Path(f"/proc/{first}").exists()

    factory = asyncio.new_event_loop if loop_name == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(scenario(), PATIENCE_S))
    gc.collect()


async def test_a_reaper_that_no_longer_listens_is_replaced(spawn: Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = spawn(STUBBORN)
    reaper = OrphanReaper()
    await reaper.start()
    first = reaper.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    for _ in range(20_000):
        reaper.guard(process.pid)
    async with asyncio.timeout(PATIENCE_S):
        while reaper.pid in (first, None):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await reaper.close()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_meant_for_the_node_does_not_end_the_reaper(
    spawn: Callable[[str], subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    process = spawn(STUBBORN)
    reaper = OrphanReaper()
    await reaper.start()
    pid = reaper.pid
    assert pid is not None
    assert os.getsid(pid) == pid
    # It ignores the signals once it reads, and it reads when it has answered to a group being named.
    async with asyncio.timeout(PATIENCE_S):
        while not ignored(pid, number):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    os.kill(pid, number)
    reaper.guard(process.pid)
    await reaper.close()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def ignored(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1]
    return bool(int(mask, 16) & 1 << (number - 1))


async def test_a_reaper_with_nothing_to_guard_leaves_at_once_and_twice_is_harmless() -> None:
    reaper = OrphanReaper()
    await reaper.close()
    await reaper.start()
    pid = reaper.pid
    started = time.monotonic()
    await reaper.close()
    assert time.monotonic() - started < reaper_module.STOP_WAIT_S
    await reaper.close()
    assert reaper.pid is None
    assert not Path(f"/proc/{pid}").exists()


async def test_a_reaper_costs_one_bare_interpreter() -> None:
    reaper = OrphanReaper()
    await reaper.start()
    assert reaper.pid is not None
    async with asyncio.timeout(PATIENCE_S):
        while not ignored(reaper.pid, signal.SIGHUP):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    status = Path(f"/proc/{reaper.pid}/status").read_text()
    resident_kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
    await reaper.close()
    assert resident_kib < 12 * 1024


@pytest.mark.parametrize("pgid", [-5, 0, 1, pytest.param(os.getpgrp(), id="our own")])
def test_a_group_that_is_not_a_childs_is_refused(pgid: int) -> None:
    with pytest.raises(ValueError, match="not the process group of a child"):
        OrphanReaper().guard(pgid)


async def test_the_helper_is_started_once_and_with_the_first_child_only() -> None:
    reaper = OrphanReaper()
    await reaper.open()
    assert reaper.pid is None
    await asyncio.gather(reaper.start(), reaper.start())
    helper = reaper.pid
    assert helper is not None
    await reaper.start()
    assert reaper.pid == helper
    await reaper.close()
    assert reaper.pid is None
    await OrphanReaper().close()
