"""Hooks of a driver: the functions in its driver.py, which run in a separate process.

Theory of operation. The first call of a hook starts the process (`HookProcess`), which imports driver.py and reports
what it declares. The process can read the driver's folder and Python's standard library. It has no network access and
cannot start programs (AIP-define-5). Only if the operator turned the driver's sandbox off and the node cannot make one,
the process runs without these limits. It handles one call at a time. If a hook takes longer than HOOK_S, its process is
ended, and the next call starts another process. The process also ends after IDLE_S without a call.

`DriverHooks` calls the hooks and checks their return values. The caller of a contract gets the error `internal` for a
failed hook, because it cannot correct one; the log names the hook and the reason. If the server itself reported an
error, the caller gets that error instead. If a hook fails that makes the arguments, nothing is sent to the server.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

import interlock.drivers.hooks
from interlock.config.plan import SandboxPlan
from interlock.core.background import BackgroundTasks
from interlock.drivers.protocol.binding.match import Bound, HookEntry, HookInvalid, check_entry, read_driver_result
from interlock.drivers.protocol.binding.results import upstream_error
from interlock.drivers.protocol.files.driver import DRIVER_FILE, ENTRY
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import DriverRefusal, FileProblem
from interlock.drivers.workspace.folder import FolderUnreadable, digest_of
from interlock.links.connector import ConnectorParts
from interlock.process.child import Child, ChildStartFailed, child_environment
from interlock.process.sandbox.host_paths import SandboxFailed
from interlock.process.sandbox.sandbox import Sandbox, SandboxedCommand
from interlock.process.stderr import StderrRing
from interlock.wire.jsonrpc.codec import CodecError, decode_value, encode_value
from interlock.wire.jsonrpc.oversized import Oversized

log = logging.getLogger("interlock.drivers")

HOOK_S: Final = 5.0  # AIP-define-2
START_S: Final = 15.0  # for the process, its sandbox and the import of driver.py
IDLE_S: Final = 60.0
STDERR_LINES: Final = 100

_PACKAGE: Final = Path(os.path.realpath(interlock.drivers.hooks.__file__)).parent
# Not a script of its own: the process would see what lies around one.
_BOOT: Final = "import sys; path = sys.argv[1] + '/worker.py'; exec(compile(open(path).read(), path, 'exec'))"


class HookFailed(Exception):
    """Error: a hook of a driver.py failed. The message tells the operator why. `code` says why a driver.py could not be
    loaded.
    """

    def __init__(self, message: str, code: str = "entry_invalid") -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False, kw_only=True)
class HookProcess:
    """Process that runs the hooks of a driver.py in a sandbox. It is started when it is needed."""

    name: str  # the driver's, with its major version
    folder: Path
    home: Path  # an empty folder, because a sandbox needs a home
    digests: Mapping[str, str]  # of the files as they are trusted, by their name in the folder
    connector_parts: ConnectorParts
    may_do_without: bool = False  # the operator turned the sandbox of this driver off: run without one if there is none
    idle_s: float = IDLE_S

    def __post_init__(self) -> None:
        self._turn = asyncio.Lock()
        self._run: _HookRun | None = None
        self._entry = HookEntry()
        self._questions = 0
        self._idle: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if no process is running."""
        return None if self._run is None else self._run.child.pid

    async def load(self) -> HookEntry:
        """Start the process if it is not running, and return what driver.py declares.

        Raise SandboxFailed or ChildStartFailed if the process cannot be started, and HookFailed if driver.py cannot be
        loaded.
        """
        async with self._turn:
            await self._ensure_running()
            self._rest_later()
            return self._entry

    async def ask(self, hook: str, **what: Any) -> Any:
        """Call a hook in the process and return its value. `what` are its arguments. Raise HookFailed if it fails.

        A caller may be cancelled while it waits without affecting other callers.
        """
        return await asyncio.shield(self._tasks.begin_awaited(self._exchange({"do": hook, **what})))

    async def stop(self) -> None:
        self._stopped = True
        if self._idle is not None:
            self._idle.cancel()
        if self._run is not None:
            self._end(self._run, "was stopped")
        await self._tasks.finish()

    async def _exchange(self, question: dict[str, Any]) -> Any:
        async with self._turn:
            try:
                run = await self._ensure_running()
            except (SandboxFailed, ChildStartFailed) as failed:
                raise HookFailed(str(failed)) from failed
            self._questions += 1
            answer = run.expect(self._questions)
            try:
                if not run.child.send(encode_value({"id": self._questions, **question})):
                    raise HookFailed("its process does not listen")
                async with asyncio.timeout(HOOK_S):
                    return _read_value(await answer)
            except TimeoutError:
                self._end(run, f"took longer than {HOOK_S:g} s")
                raise HookFailed(f"it took longer than {HOOK_S:g} s and was ended") from None
            finally:
                self._rest_later()

    async def _ensure_running(self) -> "_HookRun":
        """Return the running process. Start it if there is none.

        Raise HookFailed, SandboxFailed or ChildStartFailed if the start fails.
        """
        if self._stopped:
            raise HookFailed("its driver was stopped")
        if self._run is not None and self._run.reason is None:
            return self._run
        if self._run is not None:
            self._end(self._run, "is gone")
        changed = await asyncio.to_thread(self._find_changed_module)
        if changed is not None:
            raise HookFailed(f"{changed} is not as it was accepted")
        run = self._run = _HookRun(*await self._make_sandbox(), self.connector_parts)
        started = run.expect(0)
        try:
            async with asyncio.timeout(START_S):
                if self._stopped:
                    raise HookFailed("its driver was stopped")
                await run.start()
                self._entry = _read_entry(await started)
        except TimeoutError:
            self._end(run, "took too long to load")
            raise HookFailed(f"{ENTRY} was not loaded within {START_S:g} s") from None
        except BaseException:
            self._end(run, "could not be loaded")
            raise
        return run

    async def _make_sandbox(self) -> tuple[Sandbox | None, tuple[str, ...], StderrRing]:
        """Return what a new process needs: its sandbox, its command, and the buffer for its standard error.

        The sandbox is None if none is available here and the driver may run without one. Raise SandboxFailed if the
        sandbox cannot be made.
        """
        connector_parts = self.connector_parts
        stderr = StderrRing(STDERR_LINES, now=connector_parts.clock.wall)
        python = os.path.realpath(sys.executable)  # without the environment around it, whose packages are not ours
        folder = Path(os.path.realpath(self.folder))
        argv = (python, "-I", "-S", "-B", "-c", _BOOT, str(_PACKAGE), str(folder))
        try:
            if connector_parts.sandboxes is None:
                raise SandboxFailed("sandbox_unavailable", "no sandboxes are made here")
            sandbox = SandboxPlan(home=self.home, read=(_PACKAGE, folder))
            command = SandboxedCommand(argv=argv, env={}, cwd=self.home)
            return await connector_parts.sandboxes.make(f"{self.name} hooks", sandbox, command, stderr), argv, stderr
        except SandboxFailed as failed:
            if failed.code == "sandbox_unavailable" and self.may_do_without:
                return None, argv, stderr
            raise

    def _find_changed_module(self) -> str | None:
        """Return the name of a Python file of the driver that differs from the version that a person accepted.

        Return None if all are unchanged. Blocks on file access.
        """
        for name, digest in self.digests.items():
            if name.endswith(".py"):
                try:
                    if digest_of(self.folder / name) != digest:
                        return name
                except FolderUnreadable:
                    return name
        return None

    def _end(self, run: "_HookRun", reason: str) -> None:
        if self._run is run:
            self._run = None
        run.child.end(reason)
        self._tasks.begin_awaited(run.stop())

    def _rest_later(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if not self._stopped:
            self._idle = asyncio.get_running_loop().call_later(self.idle_s, self._rest)

    def _rest(self) -> None:
        if self._run is not None and not self._turn.locked():
            self._end(self._run, "was idle")


class _HookRun:
    """A run of the hook process, from start to end. It receives the lines that the process writes."""

    def __init__(
        self, sandbox: Sandbox | None, argv: tuple[str, ...], stderr: StderrRing, connector_parts: ConnectorParts
    ) -> None:
        self.stderr = stderr
        self._sandbox = sandbox
        self.reason: str | None = None  # why it is gone
        self._expected: tuple[int, asyncio.Future[dict[str, Any]]] | None = None
        self.child = Child(
            argv if sandbox is None else sandbox.argv,
            child_environment({}, os.environ) if sandbox is None else sandbox.env,
            None if sandbox is None else sandbox.cwd,
            max_message_bytes=connector_parts.message_bytes,
            sink=self,
            stderr=self.stderr,
            reaper=connector_parts.reaper,
            handed=() if sandbox is None else sandbox.handed,
            terminate=None if sandbox is None else sandbox.terminate,
        )

    async def start(self) -> None:
        await self.child.start()
        if self._sandbox is not None:
            await self._sandbox.open(self.child)

    async def stop(self) -> None:
        await self.child.stop(grace_s=0)
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def expect(self, number: int) -> "asyncio.Future[dict[str, Any]]":
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiting caller may be gone
        self._expected = number, future
        return future

    def on_line(self, data: bytes) -> None:
        try:
            message = decode_value(data)
        except CodecError:
            message = None
        if self._expected is None or not isinstance(message, dict) or message.get("id") != self._expected[0]:
            self.child.end("said what answers no question and was ended")
            return
        future = self._expected[1]
        self._expected = None
        if not future.done():
            future.set_result(message)

    def on_oversized(self, oversized: Oversized) -> None:
        self._fail(f"its answer is larger than {oversized.limit} bytes")
        self._expected = None

    def on_gone(self, reason: str) -> None:
        self.reason = reason
        last = self.stderr.tail(1)
        self._fail(f"its process {reason}" + (f" ({last[0].text})" if last else ""))

    def _fail(self, why: str) -> None:
        if self._expected is not None and not self._expected[1].done():
            self._expected[1].set_exception(HookFailed(why))

    def on_stalled(self) -> None:
        self.child.end("does not read and was ended")


def _read_entry(message: dict[str, Any]) -> HookEntry:
    if "value" not in message and message.get("code") is not None:
        raise HookFailed(str(message.get("error") or "driver.py cannot be loaded"), str(message["code"]))
    try:
        return msgspec.convert(_read_value(message), HookEntry)
    except msgspec.ValidationError as error:
        raise HookFailed("what it says when it is loaded cannot be read") from error


def _read_value(message: dict[str, Any]) -> Any:
    if "value" not in message:
        raise HookFailed(str(message.get("error") or "it says neither a value nor an error"))
    return message["value"]


BUILD: Final = "build_arguments"
PARSE: Final = "parse_tool_result"
TRANSFORM: Final = "transform"


@dataclass(eq=False)
class DriverHooks:
    """The hooks of one driver, after they were loaded and checked."""

    _driver: Driver
    entry: HookEntry
    process: HookProcess
    problems: tuple[FileProblem, ...]

    def makes_arguments(self, bound: Bound) -> bool:
        """Return whether a hook of driver.py helps to make the arguments of calls."""
        return self.entry.builds or any(each.transform is not None for each in bound.feeding.inputs.values())

    async def arguments(
        self, bound: Bound, values: Mapping[str, Any], context: Mapping[str, Any]
    ) -> dict[str, Any] | DriverRefusal:
        """Let the hooks make the arguments for the server from the input of a call. Return a refusal if that fails."""
        rules = {name: each.transform for name, each in bound.feeding.inputs.items() if each.transform is not None}
        wanted = {name: (transform, values[name]) for name, transform in rules.items() if name in values}
        try:
            transformed = await self.process.ask(TRANSFORM, values=wanted) if wanted else {}
            if not isinstance(transformed, dict) or transformed.keys() != wanted.keys():
                raise HookFailed("its transforms gave other values than were asked for")
            mapped = bound.feeding.arguments(values, context, transformed)
            if self.entry.builds and not isinstance(mapped, DriverRefusal):
                ids = {"tool_id": bound.contract.id, "tool_name": bound.tool_name}
                args = {"input": values, "mapped": mapped, "context": context, **ids}  # AIP-define-2
                mapped = await self.process.ask(BUILD, args=args)
                if not isinstance(mapped, dict):  # AIP-define-2
                    raise HookFailed("it returns no dict")
        except HookFailed as failed:
            return self._internal(bound, BUILD, str(failed))
        return mapped if isinstance(mapped, DriverRefusal) else bound.check_arguments(mapped)

    async def value(self, bound: Bound, result: Mapping[str, Any]) -> Any:
        """Let the hook parse_tool_result read a result of the server. Return the contract's value, or a DriverRefusal.

        A result that the server marked as an error is always a refusal (AIP-tools-13).
        """
        args = {"result": result, "tool_id": bound.contract.id, "tool_name": bound.tool_name}  # AIP-define-3
        is_error = result.get("isError") is True
        try:
            value = read_driver_result(self._driver, await self.process.ask(PARSE, args=args))
        except (HookFailed, HookInvalid) as failed:
            error = self._internal(bound, PARSE, str(failed))
            return upstream_error(result) if is_error else error
        if isinstance(value, DriverRefusal):
            return value
        # AIP-tools-13: a hook may name the failure of a server, and not make a success of it.
        return upstream_error(result) if is_error else bound.satisfying(value)

    def _internal(self, bound: Bound, hook: str, why: str) -> DriverRefusal:
        log.warning("driver %s: %s for %s: %s", self._driver.segment, hook, bound.contract.id, why)
        cause = {"driver": self._driver.key, "hook": hook, "reason": why}
        # AIP-define-2, AIP-define-5
        return DriverRefusal("internal", "a hook of this tool's driver failed", cause=cause)


async def load_hooks(driver: Driver, contracts: Collection[str], folder: Path, process: HookProcess) -> DriverHooks:
    """Load the hooks of a driver, and check that driver.py and DRIVER.md agree.

    `contracts` are the ids of the contracts that the driver binds. Raise HookFailed if driver.py does not match the
    file or cannot be loaded, and SandboxFailed or ChildStartFailed if its process cannot be started.
    """
    entry = await process.load()
    file = folder / DRIVER_FILE
    try:
        reading = await asyncio.to_thread(lambda: read_frontmatter(file.read_bytes(), str(file)))
    except OSError as error:
        raise HookFailed(f"{file.name} cannot be read: {error.strerror}") from error
    written = {} if reading.value is None else reading.value.data
    if "server" not in written and "server" in entry.manifest:  # then the server is described in server.json
        written = {**written, "server": entry.manifest["server"]}
    problems = tuple(check_entry(driver, entry, written, contracts))
    refused = next((each for each in problems if each.severity == "error"), None)
    if refused is not None:
        raise HookFailed(refused.message, refused.code)
    return DriverHooks(driver, entry, process, problems)
