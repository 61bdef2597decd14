"""Is a sandboxed server ended when it uses more than it may, all its processes together?"""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from tests.process.sandboxed_program import SandboxedHome
from tests.servers.caging import needs_sandbox

from interlock.process.limits import descendants, disk_mb, usage

pytestmark = needs_sandbox

HOLD = "held = b'x' * (int(sys.argv[1]) * 1024 * 1024); tell(1); import time; time.sleep(float(sys.argv[2]))"
FORKED = "import os\nfor _ in range(4): os.fork() or os.execv(sys.executable, [sys.executable, '-c', sys.argv[3]])\n"
BURN = "import time\nwhile time.process_time() * 1000 < int(sys.argv[1]): pass\ntell(1)"
PRELUDE = "import json, sys\ndef tell(value): print(json.dumps(value), flush=True)\n"


@pytest.fixture
def house(tmp_path: Path) -> SandboxedHome:
    return SandboxedHome(tmp_path)


@pytest.mark.req("AIP-30.front-6")
async def test_a_server_that_takes_more_memory_than_its_limit_is_ended(house: SandboxedHome) -> None:
    ended = await house.run(house.plan(memory_mb=64), sys.executable, "-c", PRELUDE + HOLD, "120", "20")
    assert ended.reason == "used more memory than its limit of 64 MB (memory_mb) and was ended"


async def test_memory_is_counted_over_all_processes(house: SandboxedHome) -> None:
    child = "import time; held = b'x' * (30 * 1024 * 1024); time.sleep(20)"
    text = PRELUDE + FORKED + "import time; time.sleep(20)"
    ended = await house.run(house.plan(memory_mb=100), sys.executable, "-c", text, "0", "0", child)
    assert "memory_mb" in ended.reason


async def test_memory_that_processes_share_counts_once(house: SandboxedHome) -> None:
    text = "import os, time; held = b'x' * (60 << 20)\nfor _ in range(4): os.fork() or (time.sleep(1.2), os._exit(0))\n"
    ended = await house.run(house.plan(memory_mb=150), sys.executable, "-c", PRELUDE + text + "time.sleep(1); tell(1)")
    assert (ended.reason, ended.said) == ("exited with code 0", 1)


async def test_a_server_below_its_limits_goes_on(house: SandboxedHome) -> None:
    plan = house.plan(memory_mb=200, cpu_ms=20_000)
    ended = await house.run(plan, sys.executable, "-c", PRELUDE + HOLD, "40", "0.7")
    assert (ended.reason, ended.said) == ("exited with code 0", 1)


@pytest.mark.req("AIP-30.front-6")
async def test_a_server_that_takes_more_processor_time_than_its_limit_is_ended(house: SandboxedHome) -> None:
    ended = await house.run(house.plan(cpu_ms=400), sys.executable, "-c", PRELUDE + BURN, "60000")
    assert ended.reason == "used more processor time than its limit of 400 ms (cpu_ms) and was ended"
    free = await house.run(house.plan(), sys.executable, "-c", PRELUDE + BURN, "800")
    assert free.said == 1


@pytest.mark.parametrize("way", ["processes", "threads", "orphans"])
async def test_a_server_that_starts_ever_more_is_ended(tmp_path: Path, way: str) -> None:
    one = {
        "processes": "os.fork() or time.sleep(60)",
        "threads": "threading.Thread(target=time.sleep, args=(60,)).start()",
        "orphans": "os.fork() or (os.fork() and os._exit(0)) or time.sleep(60)",
    }[way]
    text = f"import os, threading, time\nfor _ in range(200): {one}\ntime.sleep(60)"
    house = SandboxedHome(tmp_path, sandbox_processes=100)
    ended = await house.run(house.plan(), sys.executable, "-c", text)
    assert ended.reason == (
        "had more processes and threads than its limit of 100 (limits.sandbox_processes) and was ended"
    )


async def test_memory_has_a_default_limit_and_a_declared_limit_replaces_it(tmp_path: Path) -> None:
    house = SandboxedHome(tmp_path, sandbox_memory_mb=64)
    ended = await house.run(house.plan(), sys.executable, "-c", PRELUDE + HOLD, "120", "20")
    assert ended.reason == "used more memory than its limit of 64 MB (memory_mb) and was ended"
    ended = await house.run(house.plan(memory_mb=300), sys.executable, "-c", PRELUDE + HOLD, "120", "1.5")
    assert (ended.reason, ended.said) == ("exited with code 0", 1)


@pytest.mark.parametrize("where", ["HOME", "TMPDIR"])
async def test_a_server_that_fills_the_disk_is_ended(tmp_path: Path, where: str) -> None:
    house = SandboxedHome(tmp_path, sandbox_disk_mb=16)
    text = (
        "import os, time\nfor each in range(24):\n"
        f"    open(os.environ[{where!r}] + f'/{{each}}', 'wb').write(os.urandom(1 << 20))\ntime.sleep(60)"
    )
    ended = await house.run(house.plan(), sys.executable, "-c", text)
    assert ended.reason.startswith("kept more than its limit of 16 MB (limits.sandbox_disk_mb) in ")


def test_disk_use_is_counted_without_following_links(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "much").write_bytes(os.urandom(8 << 20))
    (inside / "link").symlink_to(outside)
    (inside / "deep" / "some").write_bytes(os.urandom(2 << 20))
    assert 2 <= disk_mb(inside) < 3
    assert disk_mb(tmp_path / "none") == 0


def test_a_folder_that_no_path_reaches_counts_as_too_much(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(20):  # of 250 letters each: together more than a path may have
        os.mkdir("d" * 250, dir_fd=folder)
        inner = os.open("d" * 250, os.O_DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = inner
    with os.fdopen(os.open("much", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "wb") as file:
        file.write(os.urandom(1 << 20))
    os.close(folder)
    assert disk_mb(tmp_path) == float("inf")


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is closed to root")
def test_a_folder_that_its_server_closed_counts_as_too_much(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        assert disk_mb(tmp_path) == float("inf")
    finally:
        closed.chmod(0o700)


async def test_memory_of_a_process_includes_its_children() -> None:
    text = "import subprocess, sys; held = b'x' * (50 * 1024 * 1024); print(flush=True); sys.stdin.read()"
    shell = f'"{sys.executable}" -c "{text}"; true'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", shell), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        assert len(list(descendants(process.pid))) == 1
        seen = usage(process.pid)
        assert 50 < seen.memory_mb < 120
        assert seen.cpu_ms >= 0
        assert seen.processes == 1
        assert process.pid in list(descendants(os.getpid()))
    finally:
        process.stdin.close()
        await process.wait()
    assert usage(process.pid).memory_mb == 0
