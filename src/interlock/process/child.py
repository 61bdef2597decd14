"""A child process that speaks newline-delimited messages on its standard input and output. POSIX only.

A child gets a command, its whole environment and messages to send. Through its `ChildSink` come the lines in the order
in which they were printed, and then, exactly once, why the child is gone. What a message says does not matter here.

Theory of operation. A child leads a process group of its own, so that what it forks can be ended with it: `stop`, the
exit of the leader and every verdict on a misbehaving child end in a sweep of the whole group. If the node is killed,
the kernel kills the child (Linux) and the reaper sweeps the groups (everywhere). A child is gone when it has exited
and its pipes are drained; as a process that left the group may hold the pipes open for ever, draining has a bound.

Ending a child goes through ever harder means: its input is closed, after INPUT_GRACE_S the group gets SIGTERM, after
TERM_GRACE_S SIGKILL. All waiting is done by timers of the loop, so that no step of the ending depends on a task that
could be cancelled half way.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast

import msgspec

from interlock.process.orphan_reaper import (
    OrphanReaper,
    between_fork_and_exec,
    group_exists,
    reap_adopted,
    signal_group,
)
from interlock.process.stderr import LineSplitter, StderrRing, write_line
from interlock.wire.jsonrpc.oversized import Oversized

# What a child process is started with: its environment and its program. Refusals name what to repair.

# fmt: off
INHERITED = frozenset({
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "TERM", "USER", "LOGNAME", "SHELL", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SYSTEMROOT",
})
# fmt: on
INHERITED_PREFIX = "LC_"
RESERVED_PREFIX = "INTERLOCK_"

_INTERPRETER = re.compile(
    r"(?:python|pypy)[\d.]*|node|nodejs|bun|deno|tsx|ts-node|uv|ruby|perl|php|lua|java|sh|bash|dash|zsh", re.ASCII
)
_SCRIPT_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".rb", ".pl", ".php", ".lua", ".jar", ".sh")
_CODE_FOLLOWS = frozenset({"-m", "-c", "-e", "-p", "--eval", "--print", "--"})  # what comes is no path, or the script's


class ChildStartFailed(Exception):
    """An error raised if the child could not be started. The message says what to repair."""


def child_environment(declared: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the complete environment of a child: a few harmless variables of the node, and those declared for the
    child. Raise ChildStartFailed if a declared name starts with RESERVED_PREFIX.
    """
    reserved = sorted(name for name in declared if name.startswith(RESERVED_PREFIX))
    if reserved:
        raise ChildStartFailed(
            f"{', '.join(reserved)}: names that start with {RESERVED_PREFIX} are the node's own and reach no server; "
            "remove it from env"
        )
    environment = {
        name: value
        for name, value in inherited.items()
        # A value that starts with "()" is a function some shells export, and would be code in the child's shell.
        if (name in INHERITED or name.startswith(INHERITED_PREFIX)) and not value.startswith("()")
    }
    return environment | dict(declared)


def program(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> str:
    """Return the path of the file to run for `argv`.

    Raise ChildStartFailed if the command, the environment or the folder is unusable, or if a bare name is not on the
    PATH. Whether a path in `argv[0]` exists is not checked.
    """
    if not argv or not argv[0]:
        raise ChildStartFailed("no command is given; name the program to run")
    # uvloop would cut the text at the NUL and run something else.
    if any("\0" in text for text in (*argv, *env, *env.values())):
        raise ChildStartFailed("a NUL character in command or env; remove it")
    if any(not name or "=" in name for name in env):
        raise ChildStartFailed("a name in env is empty or holds '='; correct it")
    if cwd is not None and not cwd.is_dir():
        raise ChildStartFailed(f"{cwd} is not a folder; correct cwd or make it")
    if os.sep in argv[0]:
        return argv[0]
    path = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if path is None:
        raise ChildStartFailed(f"no program {argv[0]!r} on the PATH of the server; install it or give its full path")
    return path


def missing_script(argv: Sequence[str], cwd: Path | None) -> Path | None:
    """Return the script that an interpreter is told to run, if that script does not exist. Otherwise return None."""
    script = find_script(argv, cwd)
    return None if script is None or script.exists() else script


def find_script(argv: Sequence[str], cwd: Path | None) -> Path | None:
    """Return the script that an interpreter is told to run, or None if `argv` names none.

    Examples are `python3 server.py` and `uv run server.py`.
    """
    if _INTERPRETER.fullmatch(Path(argv[0]).name) is None:
        return None
    for argument in argv[1:]:
        if argument in _CODE_FOLLOWS or "://" in argument:
            return None
        if argument.endswith(_SCRIPT_SUFFIXES):
            return (cwd or Path()) / argument
    return None


# Standard input and output that are files or the null device, in the place of an event loop's pipes.
#
# No loop takes them for pipes, and libuv ends the process over it. They are never waited for.

READ_BYTES: Final = 64 * 1024


def is_never_waited_for(descriptor: int) -> bool:
    """Return whether a descriptor is a regular file or the null device. Reading and writing them never blocks."""
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) or os.path.samestat(status, Path(os.devnull).stat())


class FileOutput:
    """An output to a file, with the methods of asyncio.WriteTransport that are needed to write lines.

    It writes at once and is never full.
    """

    def __init__(self, descriptor: int) -> None:
        self._file: BinaryIO | None = os.fdopen(descriptor, "wb", 0)

    def write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def is_closing(self) -> bool:
        return self._file is None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, because writes are not buffered."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    abort = close


class FileInput:
    """An input from a file. It reads piece by piece, and lets the event loop run between the pieces."""

    def __init__(self, protocol: asyncio.Protocol, descriptor: int) -> None:
        self._task = asyncio.get_running_loop().create_task(self._read(protocol, descriptor), name="input")

    async def _read(self, protocol: asyncio.Protocol, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", 0) as file:
            while data := file.read(READ_BYTES):
                protocol.data_received(data)
                await asyncio.sleep(0)
        protocol.eof_received()

    def close(self) -> None:
        self._task.cancel()


async def open_output(
    descriptor: int, make_protocol: Callable[[], asyncio.BaseProtocol] = asyncio.BaseProtocol
) -> asyncio.WriteTransport:
    """Open a descriptor for writing. The transport closes the descriptor, so pass a copy if the original is still
    needed.
    """
    if is_never_waited_for(descriptor):
        return cast(asyncio.WriteTransport, FileOutput(descriptor))
    output = os.fdopen(descriptor, "wb", buffering=0)
    return (await asyncio.get_running_loop().connect_write_pipe(make_protocol, output))[0]


async def open_input(protocol: asyncio.Protocol, descriptor: int) -> asyncio.ReadTransport | FileInput:
    """Open a descriptor for reading, and pass what is read to `protocol`. The transport closes the descriptor."""
    if is_never_waited_for(descriptor):
        return FileInput(protocol, descriptor)
    source = os.fdopen(descriptor, "rb", buffering=0)
    return (await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, source))[0]


ENDLESS_LINE = 16  # times the limit of a line; what is longer has no end, and hides whatever else the child says
LINES_PER_TURN = 32  # per child and loop iteration, so that a flooding child leaves time for the others
STALL_AFTER_S = 1.0  # a full queue that has not moved for so long: the child does not read
DRAIN_S = 0.75  # for the last words in the pipes after the exit; open calls are to fail within a second
MUTE_S = 1.0  # a child that closed a pipe is about to exit; its exit code says more than the closing
INPUT_GRACE_S = 2.0  # between the end of its input and SIGTERM
TERM_GRACE_S = 3.0  # between SIGTERM and SIGKILL
ORPHAN_GRACE_S = 0.5  # the same for what the leader left behind; below DRAIN_S, because orphans hold the pipes
ORPHAN_KILL_S = 0.2  # SIGKILL is certain; this is for burying them
SWEEP_POLL_S = 0.02  # nothing reports that a group has become empty
KILL_WAIT_S = 2.0  # SIGKILL works at once, except on a process that hangs inside the kernel


class ChildSink(Protocol):
    """A receiver of the lines that a child prints, and of its end."""

    def on_line(self, data: bytes) -> None:
        """Handle one line that the child printed."""

    def on_oversized(self, oversized: Oversized) -> None:
        """Handle a line of the child that was dropped because it exceeds the limit.

        Earlier lines may be delivered after this call.
        """

    def on_gone(self, reason: str) -> None:
        """Handle the end of the child.

        Called once, after its last line. `reason` completes the sentence "the server ...".
        """

    def on_stalled(self) -> None:
        """Handle a child that has stopped reading while messages for it are queued.

        `send` refuses until the child reads again.
        """


class Child(asyncio.SubprocessProtocol):
    """A child process, from its start to its end. `start` is called once, and `stop` any number of times.

    States. Before `_spawned` is set there is no process. Then lines are delivered, at most LINES_PER_TURN in each turn
    of the loop, until one of three things happens: the owner calls `stop`, the process exits, or a verdict condemns it
    (`_verdict`: an endless line, a closed pipe, `end`). `_next_step` is the timer of the next harder means to end it.
    `_announced` is set when the sink was told of the end, which is after the last line; `_finished` when the process
    and its group are gone too.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        *,
        max_message_bytes: int,
        max_line_bytes: int | None = None,
        sink: ChildSink,
        stderr: StderrRing,
        reaper: OrphanReaper | None,
        handed: Sequence[int] = (),
        terminate: Callable[[], None] | None = None,
    ) -> None:
        """Prepare a child without starting it. If `start` fails, the sink is not called.

        `env` is the complete environment, as `child_environment` returns it. `max_message_bytes` limits messages to the
        child, and also its lines unless `max_line_bytes` is set. `handed` are descriptors that the child inherits under
        the same numbers. `terminate` asks the child to end if a signal to its group would not reach the program itself.
        """
        self._argv = tuple(argv)
        self._env = dict(env)
        self._cwd, self._max_message_bytes, self._sink, self._stderr = cwd, max_message_bytes, sink, stderr
        self._reaper = reaper
        self._handed = tuple(handed)
        self._ask_to_end = terminate
        self._max_line_bytes = max_line_bytes or max_message_bytes
        self._splitter = LineSplitter(self._max_line_bytes)
        self._lines: deque[bytes] = deque()
        self._transport: asyncio.SubprocessTransport | None = None
        self._pgid = 0  # and the process id, once there is a process
        self._stdin: asyncio.WriteTransport | None = None
        self._returncode: int | None = None
        self._started = False
        self._spawning: asyncio.Task[None] | None = None
        self._spawned = asyncio.Event()
        self._finished = asyncio.Event()
        self._paused = False  # by the owner
        self._reading = True
        self._full = False
        self._stopping = False
        self._killed = False
        self._exited = False
        self._swept = False
        self._verdict: str | None = None
        self._announced = False
        self._open_outputs = {1, 2}
        self._turn: asyncio.Handle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._next_step: asyncio.TimerHandle | None = None  # of ending the child
        self._drain: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        return self._pgid or None

    @property
    def returncode(self) -> int | None:
        """Return the exit code, or None while the child runs. The code is negative if a signal killed the child."""
        return self._returncode

    @property
    def unfinished(self) -> bytes:
        """Return the text that the child printed after its last newline.

        It is no message, but may explain why the child ended.
        """
        return self._splitter.unfinished

    async def start(self) -> None:
        if self._started:
            raise ChildStartFailed("a child is started once and not after it was stopped; make a new one")
        self._started = True
        try:
            # Spawning interrupted half way would leave an unknown process, so it goes on when `start` is cancelled.
            self._spawning = asyncio.create_task(self._spawn())
            await asyncio.shield(self._spawning)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ChildStartFailed(f"{self._argv[0]} cannot be started: {why}; check command and cwd") from error
        except asyncio.CancelledError:
            self._announced = True  # there is no listener
            self._kill()
            raise

    async def _spawn(self) -> None:
        try:
            if self._reaper is not None:
                await self._reaper.start()
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                program(self._argv, self._env, self._cwd),
                *self._argv[1:],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
                pass_fds=self._handed,
                preexec_fn=between_fork_and_exec(self._handed),
            )
            if self._announced:
                self._kill()
        finally:
            self._spawned.set()

    def send(self, message: bytes) -> bool:
        """Queue one message and return True. Return False, and send nothing, if the child is gone or being stopped, or
        if it does not read.
        """
        stdin = self._stdin
        if stdin is None or self._full or stdin.is_closing():
            return False
        write_line(stdin, message)
        return True

    def pause_reading(self) -> None:
        """Stop delivering lines until `resume_reading`.

        Unless the child is stopped, lines that were already received are delivered before `on_gone`.
        """
        self._paused = True
        self._read(False)

    def resume_reading(self) -> None:
        self._paused = False
        if self._exited and self._drain is None and not self._announced:
            self._drain = asyncio.get_running_loop().call_later(DRAIN_S, self._drain_output)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._deliver)

    def end(self, reason: str) -> None:
        """Kill the child immediately, and report `reason` to the sink. Do nothing if the child has ended or is being
        killed.
        """
        if self._transport is not None and self._verdict is None and not self._exited:
            self._condemn(reason)

    async def stop(self, grace_s: float | None = None) -> None:
        """Close the child's input, ask it to end after `grace_s` seconds, and kill it TERM_GRACE_S later.

        Return when no process is left, or KILL_WAIT_S after a SIGKILL that had no effect. If `grace_s` is None,
        INPUT_GRACE_S applies.
        """
        if not self._started:
            self._started = True
            self._spawned.set()
        await self._spawned.wait()
        if self._transport is None:
            return
        if not self._stopping:
            self._stopping = True
            if self._stdin is not None:
                self._stdin.close()
                self._stdin = None
            if not self._exited and not self._killed:
                self._then(INPUT_GRACE_S if grace_s is None else grace_s, self._terminate)
            self._settle()
        await self._finished.wait()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.SubprocessTransport, transport)
        self._pgid = transport.get_pid()
        if self._reaper is not None:
            self._reaper.guard(self._pgid)  # AIP-transport-4: a host that was killed
        self._stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        with contextlib.suppress(RuntimeError):  # uvloop, when the child has ended: `pipe_connection_lost` follows
            self._stdin.set_write_buffer_limits(high=self._max_message_bytes + 1)
        if self._paused:
            self._read(False)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Split output of the child into lines, and deliver the first of them immediately."""
        if fd != 1:
            self._stderr.feed(data)
            return
        if self._verdict is not None or self._announced:
            return
        self._lines.extend(self._splitter.feed(data))
        # Read first: a line that has ended is no longer counted once it was taken.
        if length := self._splitter.skipped:
            for oversized in self._splitter.take_oversized():
                self._sink.on_oversized(oversized)
            if length > ENDLESS_LINE * self._max_line_bytes and self._verdict is None:
                limit = f"{ENDLESS_LINE} times the limit of {self._max_line_bytes} bytes"
                self._condemn(f"sent a line longer than {limit} and was killed")
        if self._turn is None:
            self._deliver()

    def _deliver(self) -> None:
        """Deliver up to LINES_PER_TURN lines. While more lines wait, nothing is read from the child."""
        self._turn = None
        left = LINES_PER_TURN
        try:
            while self._lines and left and not self._paused and not self._announced:
                left -= 1
                self._sink.on_line(self._lines.popleft())
        finally:
            if self._turn is None and self._lines and not self._paused:
                self._turn = asyncio.get_running_loop().call_soon(self._deliver)
            self._read(self._turn is None and not self._paused)
            self._settle()

    def _read(self, wanted: bool) -> None:
        """Start reading from the child's standard output, or stop if `wanted` is False."""
        if self._transport is None or wanted == self._reading or 1 not in self._open_outputs:
            return
        self._reading = wanted
        stdout = cast(asyncio.ReadTransport, self._transport.get_pipe_transport(1))
        (stdout.resume_reading if wanted else stdout.pause_reading)()

    def pause_writing(self) -> None:
        self._full = True
        self._watch_queue(None)

    def resume_writing(self) -> None:
        self._full = False
        if self._stall is not None:
            self._stall.cancel()

    def _watch_queue(self, bytes_before: int | None) -> None:
        """Report the child as stalled if it has read nothing from a full queue for STALL_AFTER_S."""
        if self._stdin is None:
            return
        queued = self._stdin.get_write_buffer_size()
        if bytes_before is None or queued < bytes_before:
            self._stall = asyncio.get_running_loop().call_later(STALL_AFTER_S, self._watch_queue, queued)
        else:
            self._sink.on_stalled()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Record that a pipe is closed. Kill a child that closes its input or output without exiting."""
        self._open_outputs.discard(fd)
        if fd == 0:
            self._stdin = None
        if fd != 2 and not self._exited and not self._stopping and self._next_step is None:
            reason = f"closed its standard {'input' if fd == 0 else 'output'} without exiting and was killed"
            self._then(MUTE_S, lambda: self._condemn(reason))
        self._settle()

    def _condemn(self, reason: str) -> None:
        """Kill the child because it misbehaved.

        The sink gets `reason`, and output that is still in the pipes is lost.
        """
        self._verdict = reason
        self._open_outputs.clear()
        if self._transport is not None and (stdout := self._transport.get_pipe_transport(1)) is not None:
            stdout.close()
        self._kill()
        self._settle()

    def _then(self, delay_s: float, step: Callable[[], None]) -> None:
        """Schedule a step after a delay. It replaces the step that was scheduled before."""
        if self._next_step is not None:
            self._next_step.cancel()
        self._next_step = asyncio.get_running_loop().call_later(delay_s, step)

    def _terminate(self) -> None:
        if self._ask_to_end is not None:
            self._ask_to_end()
        else:
            signal_group(self._pgid, signal.SIGTERM)  # AIP-transport-4
        self._then(TERM_GRACE_S, self._kill)  # AIP-transport-4: one that ignores it

    def _kill(self) -> None:
        self._killed = True
        if self._pgid and not self._exited:
            signal_group(self._pgid, signal.SIGKILL)  # AIP-transport-4
            self._then(KILL_WAIT_S, self._give_up)

    def _give_up(self) -> None:
        """Stop waiting for a child that hangs in the kernel, where even SIGKILL has no effect."""
        self._verdict = self._verdict or "does not end although it was killed"
        self._paused = False
        self._lines.clear()
        self._settle()
        self._finished.set()

    def process_exited(self) -> None:
        self._exited = True
        self._returncode = None if self._transport is None else self._transport.get_returncode()
        if self._next_step is not None:
            self._next_step.cancel()
        self._drain = asyncio.get_running_loop().call_later(DRAIN_S, self._drain_output)
        self._sweep(signal.SIGKILL if self._killed else signal.SIGTERM, None)
        self._settle()

    def _sweep(self, number: signal.Signals, deadline: float | None) -> None:
        """End the processes in the child's process group that still run after the child itself has ended.

        The system cannot reuse the group's number while one exists.
        """
        loop = asyncio.get_running_loop()
        reap_adopted(self._pgid)
        if group_exists(self._pgid):
            if deadline is None:
                signal_group(self._pgid, number)
                deadline = loop.time() + (ORPHAN_GRACE_S if number is signal.SIGTERM else ORPHAN_KILL_S)
            if loop.time() < deadline:
                loop.call_later(SWEEP_POLL_S, self._sweep, number, deadline)
                return
            if number is signal.SIGTERM:
                self._sweep(signal.SIGKILL, None)  # AIP-transport-4: one that it left behind
                return
        self._swept = True
        if self._reaper is not None:
            self._reaper.release(self._pgid)
        self._settle()

    def _drain_output(self) -> None:
        """Stop waiting for output after the child has exited. Another process may keep the pipes open although it has
        left the child's process group.
        """
        self._drain = None
        if not self._paused or self._stopping:
            self._open_outputs.clear()
            self._settle()

    def _settle(self) -> None:
        """Tell the sink that the child has ended, once all output is delivered. Release the resources of the child when
        no process of it is left.
        """
        if not self._announced:
            if self._paused and self._stopping:
                self._lines.clear()
                self._open_outputs.discard(1)
            done = self._verdict is not None or (self._exited and not self._open_outputs)
            if self._lines or not done:
                return
            self._announced = True
            self._stdin = None
            self._stderr.end_line()
            asyncio.get_running_loop().call_soon(self._sink.on_gone, self._verdict or self._exit_reason())
        if self._exited and self._swept and self._transport is not None:
            self._transport.close()
            for handle in (self._turn, self._stall, self._drain):
                if handle is not None:
                    handle.cancel()
            asyncio.get_running_loop().call_soon(self._finished.set)  # after the sink has heard of it

    def _exit_reason(self) -> str:
        """Return how the process ended, as a clause that completes "the server ..."."""
        code = self._returncode
        if code is None:
            return "ended"
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


# Programs that are run to their end for what they print, such as an installer or a version check. POSIX only.
#
# The result says how the program ended and what it printed, both bounded; credentials in addresses are masked. Nothing
# of the program is left when the call returns, is cancelled, or runs out of time. A deadline is the caller's
# `asyncio.timeout`.

if TYPE_CHECKING:
    from interlock.process.sandbox.sandbox import Sandbox

OUTPUT_LINES: Final = 20  # kept for an error
OUTPUT_LINE_BYTES: Final = 500
LINE_BYTES_MAX: Final = 1024 * 1024  # a program that prints a longer line is ended
STDOUT_BYTES_MAX: Final = 256 * 1024  # of standard output, for its reader; the rest is dropped

_CREDENTIALS = re.compile(r"//[^/@\s]+@")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a program: how it ended, and what it printed."""

    returncode: int | None  # negative: the number of the signal that killed it
    reason: str  # completes "the program ..."
    stdout: bytes
    output: tuple[str, ...]  # the last lines of both outputs, without credentials in addresses

    @property
    def gist(self) -> str:
        """Return up to two lines of the output that describe an error, as the end of a message. "; " is in front of
        each line.

        Installers print the reason first and advice after it.
        """
        errors = [line for line in self.output if "error" in line.lower()] or list(self.output[-1:])
        return "".join(f"; {line}" for line in errors[:2])


async def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path | None,
    *,
    reaper: OrphanReaper | None,
    output: StderrRing | None = None,
    cell: "Sandbox | None" = None,
) -> Ran:
    """Run a program until it exits. Raise ChildStartFailed if it cannot be started.

    `output` collects the output of several commands. `cell` is the sandbox in which `argv` runs.
    """
    output = output or StderrRing(OUTPUT_LINES, OUTPUT_LINE_BYTES, now=lambda: 0.0)
    collector = _OutputCollector(output)
    child = Child(
        argv,
        env,
        cwd,
        max_message_bytes=LINE_BYTES_MAX,
        sink=collector,
        stderr=output,
        reaper=reaper,
        handed=() if cell is None else cell.handed,
        terminate=None if cell is None else cell.terminate,
    )
    try:
        await child.start()
        if cell is not None:
            await cell.open(child)
        reason = await collector.reason
        if child.unfinished:
            collector.on_line(child.unfinished)
    finally:
        await child.stop(grace_s=0)
    return Ran(returncode=child.returncode, reason=reason, stdout=bytes(collector.stdout), output=output_of(output))


def output_of(output: StderrRing) -> tuple[str, ...]:
    return tuple(_CREDENTIALS.sub("//***@", line.text) for line in output.tail())


class _OutputCollector:
    """The ChildSink of a program that runs until it exits. It collects the output, and has a future for the exit."""

    def __init__(self, output: StderrRing) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.stdout = bytearray()
        self._output = output

    def on_line(self, data: bytes) -> None:
        self._output.feed(data + b"\n")
        if len(self.stdout) < STDOUT_BYTES_MAX:
            self.stdout += data[: STDOUT_BYTES_MAX - len(self.stdout)] + b"\n"

    def on_oversized(self, oversized: Oversized) -> None:
        self._output.feed(b"(a line longer than %d bytes)\n" % oversized.limit)

    def on_gone(self, reason: str) -> None:
        if not self.reason.done():
            self.reason.set_result(reason)

    def on_stalled(self) -> None:
        """Do nothing, because no input is sent."""
