"""Child, with real processes, on both loops."""

import asyncio
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from interlock.process import child as stdio
from interlock.process.child import Child, ChildStartFailed, StderrRing, child_environment
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized

MIB = 1024 * 1024
PATIENCE_S = 20.0

ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
FOREVER = "import signal\nwhile True: signal.pause()"
# A grandchild that survives SIGTERM, has said so, and holds the pipes of its parent.
FORKS = (
    "import os, signal, sys\n"
    "ready, tell = os.pipe()\n"
    "pid = os.fork()\n"
    "if pid == 0:\n"
    "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "    os.write(tell, b'x')\n"
    "    while True: signal.pause()\n"
    "os.read(ready, 1)\n"
    "print(pid, flush=True)\n"
)

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        failures: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: failures.append(context))
            try:
                runner.run(asyncio.wait_for(scenario, PATIENCE_S))
            finally:
                runner.run(stop_all())
        gc.collect()  # an unclosed transport warns when it is collected, and a warning is an error
        assert failures == []

    return run


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are a second or so, as short as a busy machine allows."""
    for name, seconds in (("STALL_AFTER_S", 0.2), ("MUTE_S", 0.2), ("DRAIN_S", 0.25), ("ORPHAN_GRACE_S", 0.1)):
        assert getattr(stdio, name) > seconds
        monkeypatch.setattr(stdio, name, seconds)


CHILDREN: list[Child] = []


async def stop_all() -> None:
    """After a failed test; uvloop does not close while a child lives."""
    while CHILDREN:
        await CHILDREN.pop().stop(grace_s=0)


class Sink:
    """Remembers everything and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.oversized: list[Oversized] = []
        self.gone: list[str] = []
        self.stalled = 0
        self._changed = asyncio.Event()

    def on_line(self, data: bytes) -> None:
        self.lines.append(data)
        self._changed.set()

    def on_oversized(self, found: Oversized) -> None:
        self.oversized.append(found)
        self._changed.set()

    def on_gone(self, reason: str) -> None:
        self.gone.append(reason)
        self._changed.set()

    def on_stalled(self) -> None:
        self.stalled += 1
        self._changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def until_gone(self) -> str:
        await self.until(lambda: self.gone)
        return self.gone[0]

    async def line(self, index: int = 0) -> bytes:
        await self.until(lambda: len(self.lines) > index)
        return self.lines[index]


def python(program: str, sink: Any, *, limit: int = MIB, ring: StderrRing | None = None, **options: Any) -> Child:
    child = Child(
        options.pop("argv", [sys.executable, "-I", "-S", "-c", program]),
        options.pop("env", child_environment({}, os.environ)),
        options.pop("cwd", None),
        max_message_bytes=limit,
        sink=sink,
        stderr=ring or StderrRing(now=time.time),
        reaper=None,
        **options,
    )
    CHILDREN.append(child)
    return child


async def until(holds: Callable[[], object]) -> None:
    """For what nobody is told; the patience of the test bounds it."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def alive(pids: list[int]) -> list[int]:
    """Zombies too."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


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


def test_messages_go_in_and_lines_come_out_in_order(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python(ECHO, sink)
        await child.start()
        sent = [b'{"id":%d}' % number for number in range(2000)]
        assert all(child.send(message) for message in sent)
        await sink.line(1999)
        assert sink.lines == sent
        assert child.pid is not None
        assert child.returncode is None
        await child.stop()
        assert child.returncode == 0
        assert sink.gone == ["exited with code 0"]

    run(scenario())


def test_a_pretty_printed_message_reaches_the_child_as_one_line(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python(ECHO, sink)
        await child.start()
        child.send(b'{\n  "id": 1\r\n}')
        assert await sink.line() == b'{   "id": 1  }'
        await child.stop()

    run(scenario())


def test_a_message_of_the_full_size_passes_both_ways(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python(ECHO, sink, limit=20 * MIB)
        await child.start()
        message = b"x" * (20 * MIB)
        assert child.send(message)
        assert await sink.line() == message
        assert sink.stalled == 0
        await child.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", "exited with code 0"),
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("raise KeyError('boom')", "exited with code 1"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40"),
    ],
)
def test_a_child_that_ends_by_itself_is_gone_once_with_its_exit_in_words(run: Run, program: str, reason: str) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python(program, sink)
        await child.start()
        assert await sink.until_gone() == reason
        assert child.send(b"anyone?") is False
        await child.stop()
        assert sink.gone == [reason]
        assert sink.lines == []

    run(scenario())


def test_the_last_words_on_both_outputs_are_there_before_the_child_is_gone(run: Run) -> None:
    program = (
        "import sys\nsys.stdout.write(''.join(f'{n}\\n' for n in range(30000)))\n"
        "sys.stdout.flush(); sys.stderr.write('x' * 60000 + '\\n'); raise SystemExit('the reason')"
    )

    class Strict(Sink):
        def on_gone(self, reason: str) -> None:
            self.lines_at_the_end = len(self.lines)
            self.stderr_at_the_end = ring.tail(1)[0].text
            super().on_gone(reason)

    sink = Strict()
    ring = StderrRing(now=time.time)

    async def scenario() -> None:
        child = python(program, sink, ring=ring)
        await child.start()
        assert await sink.until_gone() == "exited with code 1"
        assert sink.lines == [b"%d" % number for number in range(30000)]
        assert sink.lines_at_the_end == 30000
        assert sink.stderr_at_the_end == "the reason"
        await child.stop()

    run(scenario())


def test_the_child_is_not_gone_before_its_standard_error_has_ended(run: Run) -> None:
    program = (
        "import os, signal\n"
        "ready, tell = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (os.write(2, b'last words'), os._exit(0)))\n"
        "    os.close(1)\n"
        "    os.write(tell, b'x')\n"
        "    while True: signal.pause()\n"
        "os.read(ready, 1)\n"
    )
    ring = StderrRing(now=time.time)
    heard: list[str] = []

    class Strict(Sink):
        def on_gone(self, reason: str) -> None:
            heard.extend(line.text for line in ring.tail())
            super().on_gone(reason)

    async def scenario() -> None:
        sink = Strict()
        child = python(program, sink, ring=ring)
        await child.start()
        assert await sink.until_gone() == "exited with code 0"
        assert heard == ["last words"]
        await child.stop()

    run(scenario())


def test_output_without_a_newline_is_no_line(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python("import sys; sys.stdout.write('a\\nhalf')", sink)
        await child.start()
        assert await sink.until_gone() == "exited with code 0"
        assert sink.lines == [b"a"]
        await child.stop()

    run(scenario())


def test_a_line_over_the_limit_is_left_out_and_the_child_lives(run: Run) -> None:
    program = "import sys; sys.stdout.write('a\\n{\"result\":\"' + 'x' * (8 << 20) + '\",\"id\":5}\\nb\\n')"

    async def scenario() -> None:
        sink = Sink()
        child = python(program, sink)
        await child.start()
        assert await sink.until_gone() == "exited with code 0"
        assert sink.lines == [b"a", b"b"]
        assert sink.oversized == [Oversized(MIB, MessageKind.RESPONSE, b"5")]
        await child.stop()

    run(scenario())


def test_an_endless_line_is_reported_and_then_ends_the_child(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "ENDLESS_LINE", 8)
    program = 'import sys; sys.stdout.write(\'a\\n{"id":5,"result":"\')\nwhile True: sys.stdout.write(\'x\' * 65536)'

    async def scenario() -> None:
        sink = Sink()
        child = python(program, sink)
        await child.start()
        await sink.until(lambda: sink.oversized)
        assert sink.gone == []
        assert await sink.until_gone() == "sent a line longer than 8 times the limit of 1048576 bytes and was killed"
        assert sink.lines == [b"a"]
        assert sink.oversized == [Oversized(MIB, MessageKind.RESPONSE, b"5")]
        await child.stop()
        assert child.returncode == -signal.SIGKILL

    run(scenario())


def test_a_child_that_does_not_read_stalls_once_and_reads_on_later(run: Run, hasty: None) -> None:
    program = (
        "import signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nprint('ready', flush=True)\n"
        "signal.pause()\n" + ECHO
    )

    async def scenario() -> None:
        sink = Sink()
        child = python(program, sink, limit=100_000)
        await child.start()
        await sink.line()
        message = b"x" * 10_000
        taken = 0
        while child.send(message):
            taken += 1
            await asyncio.sleep(0)
        assert taken < 100  # the pipe, the queue, one message more
        await sink.until(lambda: sink.stalled)
        assert child.send(message) is False
        assert sink.gone == []
        assert child.pid is not None
        os.kill(child.pid, signal.SIGUSR1)
        assert await sink.line(taken) == message
        assert child.send(b"again")
        assert await sink.line(taken + 1) == b"again"
        assert sink.stalled == 1
        await child.stop()

    run(scenario())


def test_a_child_that_never_reads_can_be_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "STALL_AFTER_S", 0.05)

    async def scenario() -> None:
        sink = Sink()
        child = python(FOREVER, sink, limit=1000)
        await child.start()
        while child.send(b"x" * 900):
            pass
        await sink.until(lambda: sink.stalled)
        await child.stop(grace_s=0.05)
        assert child.returncode == -signal.SIGTERM
        assert sink.gone == ["was killed by SIGTERM"]

    run(scenario())


def test_a_flooding_child_gets_a_bounded_share_of_every_turn_of_the_loop(run: Run) -> None:
    flood = "import os\nchunk = b'y\\n' * 30000\nwhile True: os.write(1, chunk)"

    class PerTurn(Sink):
        largest = 0
        in_turn = 0

        def on_line(self, data: bytes) -> None:
            self.in_turn += 1
            self.largest = max(self.largest, self.in_turn)

        def next_turn(self) -> None:
            self.in_turn = 0
            self.ticker = asyncio.get_running_loop().call_soon(self.next_turn)

    async def scenario() -> None:
        loud, calm = PerTurn(), Sink()
        flooding, quiet = python(flood, loud), python(ECHO, calm)
        loud.next_turn()
        await flooding.start()
        await quiet.start()
        for number in range(50):
            quiet.send(b"%d" % number)
            assert await calm.line(number) == b"%d" % number
        loud.ticker.cancel()
        assert 0 < loud.largest <= stdio.LINES_PER_TURN
        await asyncio.gather(flooding.stop(grace_s=0), quiet.stop())

    run(scenario())


def test_nothing_is_delivered_while_paused_and_everything_after(run: Run) -> None:
    class OneAtATime(Sink):
        child: Child

        def on_line(self, data: bytes) -> None:
            super().on_line(data)
            if len(self.lines) == 1:
                self.child.pause_reading()

    async def scenario() -> None:
        sink = OneAtATime()
        sink.child = python("import os\nos.write(1, b'z\\n' * 40000)", sink, limit=1000)
        await sink.child.start()
        assert sink.child.pid is not None
        await sink.line()
        other = Sink()
        echo = python(ECHO, other)
        await echo.start()
        for number in range(20):
            echo.send(b"%d" % number)
            await other.line(number)
        await echo.stop()
        assert len(sink.lines) == 1
        assert sink.gone == []
        sink.child.resume_reading()
        assert await sink.until_gone() == "exited with code 0"
        assert sink.lines == [b"z"] * 40000
        await sink.child.stop()

    run(scenario())


def test_lines_held_back_by_a_pause_outlive_the_child(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python("print('last words', flush=True)", sink)
        child.pause_reading()
        await child.start()
        assert child.pid is not None
        assert await asyncio.to_thread(ends_within, child.pid, PATIENCE_S)
        await until(lambda: child.returncode is not None)
        assert (sink.lines, sink.gone) == ([], [])
        child.resume_reading()
        assert await sink.until_gone() == "exited with code 0"
        assert sink.lines == [b"last words"]
        await child.stop()

    run(scenario())


def test_a_paused_child_can_be_stopped(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python("import os\nwhile True: os.write(1, b'z\\n' * 1000)", sink)
        await child.start()
        await sink.line()
        child.pause_reading()
        count = len(sink.lines)
        await child.stop(grace_s=0.05)
        assert len(sink.lines) == count
        assert sink.gone == ["was killed by SIGTERM"]

    run(scenario())


@pytest.mark.parametrize(("fd", "name"), [(0, "input"), (1, "output")])
def test_a_child_that_closes_a_pipe_and_lives_on_is_ended(run: Run, hasty: None, fd: int, name: str) -> None:
    ring = StderrRing(now=time.time)

    async def scenario() -> None:
        sink = Sink()
        child = python(f"import os; os.close({fd}); os.write(2, b'closed')\n{FOREVER}", sink, ring=ring)
        await child.start()
        await until(ring.tail)
        child.send(b"uvloop notices a closed input when it is written to")
        assert await sink.until_gone() == f"closed its standard {name} without exiting and was killed"
        assert child.send(b"anyone?") is False
        await child.stop()
        assert child.returncode == -signal.SIGKILL

    run(scenario())


def test_an_error_of_the_owner_does_not_hold_up_the_lines_behind_it() -> None:
    class Clumsy(Sink):
        def on_line(self, data: bytes) -> None:
            super().on_line(data)
            if data == b"1":
                raise RuntimeError("clumsy")

    async def scenario() -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        sink = Clumsy()
        child = python("print('1\\n2\\n3', flush=True)", sink)
        await child.start()
        await sink.until_gone()
        assert sink.lines == [b"1", b"2", b"3"]
        assert [str(error["exception"]) for error in errors] == ["clumsy"]
        await child.stop()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


@pytest.mark.parametrize(
    "options",
    [
        {"argv": []},
        {"argv": [""]},
        {"argv": ["no-such-program-anywhere"]},
        {"argv": ["/no/such/program"]},
        {"argv": ["/"]},
        {"argv": [sys.executable, "nul\0byte"]},
        {"cwd": Path("/no/such/folder")},
        {"env": {"BAD=NAME": "x"}},
        {"env": {"": "x"}},
        {"env": {"NUL\0NAME": "x"}},
        {"env": {"NUL": "a\0b"}},
    ],
)
def test_a_child_that_cannot_start_says_why_and_leaves_nothing(run: Run, options: dict[str, Any]) -> None:
    async def scenario() -> None:
        before = 0
        for _ in range(3):
            sink = Sink()
            child = python("", sink, **options)
            with pytest.raises(ChildStartFailed, match=r"install|correct|check|remove|name the program"):
                await child.start()
            await child.stop()
            await child.stop()
            assert child.pid is None
            assert child.send(b"anyone?") is False
            assert (sink.lines, sink.gone) == ([], [])
            CHILDREN.clear()
            before = before or open_files()  # after the first: the loop keeps a few for all children
        await until(lambda: open_files() <= before)

    run(scenario())


def test_a_child_is_started_once_and_not_after_it_was_stopped(run: Run) -> None:
    async def scenario() -> None:
        never = python(ECHO, Sink())
        await never.stop()
        await never.stop()
        with pytest.raises(ChildStartFailed, match="make a new one"):
            await never.start()
        child = python(ECHO, Sink())
        await child.start()
        with pytest.raises(ChildStartFailed, match="make a new one"):
            await child.start()
        await asyncio.gather(child.stop(), child.stop(), child.stop())
        await child.stop()
        assert child.returncode == 0

    run(scenario())


def test_stopping_while_starting_waits_and_stops(run: Run) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python(ECHO, sink)
        starting = asyncio.create_task(child.start())
        await asyncio.sleep(0)
        await child.stop()
        await starting
        assert child.returncode is not None
        assert len(sink.gone) == 1

    run(scenario())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4])
def test_a_cancelled_start_leaves_no_process(run: Run, turns: int) -> None:
    token = f"interlock-test-{os.getpid()}-{time.monotonic_ns()}"

    def processes() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if token.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
                except (FileNotFoundError, ProcessLookupError):
                    pass
        return found

    async def scenario() -> None:
        child = python("", Sink(), argv=[sys.executable, "-I", "-S", "-c", FOREVER, token])
        starting = asyncio.create_task(child.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            pass
        await child.stop(grace_s=0)
        for pid in processes():
            assert await asyncio.to_thread(ends_within, pid, 5)
        assert processes() == []

    run(scenario())


def test_a_child_that_ignores_sigterm_is_killed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "TERM_GRACE_S", 0.2)

    async def scenario() -> None:
        sink = Sink()
        child = python(f"{IGNORES_TERM}print('ready', flush=True)\n{FOREVER}", sink)
        await child.start()
        await sink.line()
        await child.stop(grace_s=0.05)
        assert child.returncode == -signal.SIGKILL
        assert sink.gone == ["was killed by SIGKILL"]

    run(scenario())


@pytest.mark.parametrize("then", [FOREVER, "sys.stdin.read()", "os.abort()"])
def test_processes_forked_by_a_child_end_with_it(run: Run, hasty: None, then: str) -> None:
    async def scenario() -> None:
        sink = Sink()
        child = python(FORKS + then, sink)
        await child.start()
        grandchild = int(await sink.line())
        if then == "os.abort()":
            assert await sink.until_gone() == "was killed by SIGABRT"
        await child.stop(grace_s=0.1)
        assert await asyncio.to_thread(ends_within, grandchild, 5)
        assert len(sink.gone) == 1

    run(scenario())


def test_a_process_that_left_the_group_does_not_keep_the_child_from_being_gone(run: Run, hasty: None) -> None:
    program = FORKS.replace("if pid == 0:\n", "if pid == 0:\n    os.setsid()\n")

    async def scenario() -> None:
        sink = Sink()
        child = python(program, sink)
        await child.start()
        runaway = int(await sink.line())
        try:
            assert await sink.until_gone() == "exited with code 0"
            await child.stop()
            assert not ends_within(runaway, 0)
        finally:
            os.kill(runaway, signal.SIGKILL)

    run(scenario())


def test_twenty_lives_leave_no_zombie_and_no_open_file(run: Run) -> None:
    async def scenario() -> None:
        pids: list[int] = []
        before = 0
        for number in range(20):
            sink = Sink()
            child = python(ECHO if number % 2 else "", sink)
            await child.start()
            assert child.pid is not None
            pids.append(child.pid)
            await child.stop()
            assert len(sink.gone) == 1
            before = before or open_files()  # after the first: the loop keeps a few for all children
        assert alive(pids) == []
        await until(lambda: open_files() <= before)

    run(scenario())


def test_a_child_sees_only_what_was_declared_and_a_few_harmless_variables(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("INTERLOCK_TOKEN", "AWS_SECRET_ACCESS_KEY", "PIP_INDEX_URL", "npm_config_registry", "LD_PRELOAD_NOTE")
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_MESSAGES", "C")
    monkeypatch.setenv("SSL_CERT_FILE", "/ca.pem")
    monkeypatch.setenv("SHELL", "() { :; }; evil")

    async def scenario() -> None:
        sink = Sink()
        child = python(
            "import os; print(chr(10).join(f'{k}={v}' for k, v in os.environ.items()), flush=True)",
            sink,
            env=child_environment({"API_KEY": "declared", "LANG": "xx"}, os.environ),
        )
        await child.start()
        await sink.until_gone()
        seen = dict(line.decode().split("=", 1) for line in sink.lines)
        assert not set(secrets) & set(seen)
        assert "SHELL" not in seen
        assert "secret" not in seen.values()
        assert seen["PATH"] == os.environ["PATH"]
        assert seen["LC_MESSAGES"] == "C"
        assert seen["SSL_CERT_FILE"] == "/ca.pem"
        assert (seen["API_KEY"], seen["LANG"]) == ("declared", "xx")
        await child.stop()

    run(scenario())


def test_a_variable_of_the_nodes_own_cannot_be_declared() -> None:
    with pytest.raises(ChildStartFailed, match=r"INTERLOCK_TOKEN.*remove it from env"):
        child_environment({"INTERLOCK_TOKEN": "x"}, {})


def test_a_child_runs_in_its_folder_and_its_own_session(run: Run, tmp_path: Path) -> None:
    folder = tmp_path.resolve()

    async def scenario() -> None:
        sink = Sink()
        child = python("import os; print(os.getcwd(), os.getsid(0), os.getpgrp(), flush=True)", sink, cwd=tmp_path)
        await child.start()
        assert (await sink.line()).decode() == f"{folder} {child.pid} {child.pid}"
        await child.stop()

    run(scenario())
