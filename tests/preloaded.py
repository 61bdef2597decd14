"""A process that has imported the program already, and of which tests start copies instead of a new interpreter.

A test starts `python -m interlock ...` or a fixture server as ever, with `subprocess` or `asyncio`. `install` makes
those commands reach one process per test run (its `serve`), which has the modules in memory and makes a copy of itself
that runs the same command: a process of its own with its own pid, descriptors, environment and folder, a child of the
test as it would be otherwise, without the half second that importing takes. What a copy could not do alike (other
interpreter options, an environment the interpreter reads while it starts, inherited descriptors, another user) is
started plainly, and so is everything where the kernel offers no such copy or INTERLOCK_TESTS_PLAIN is set.
"""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests"
PLAIN = "INTERLOCK_TESTS_PLAIN"  # in the environment of a command or of the run: start it plainly
SETTINGS = "INTERLOCK_TESTS_SETTINGS"  # see `settings`
FIRST = "INTERLOCK_TESTS_FIRST"  # a script that is run before the command, in its process
REQUEST_BYTES_MAX = 128 * 1024
COMMAND_LINE_BYTES = 4096  # of a copy, as `ps` shows it
FORK_EXEC_ARGUMENTS = 23  # of Python 3.11 to 3.13; another number is another meaning

# clone(2) with CLONE_PARENT makes a sibling of the caller, so that who asked for it can wait for it.
CLONE_PARENT = 0x00008000
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}

USED_LATE = (  # imported inside of functions of the program, or by the fixture servers
    *("argparse", "http.server", "jwt", "jsonschema_rs", "re2", "rich.console", "rich.json", "rich.live", "rich.text"),
    *("ruamel.yaml", "uvicorn", "uvicorn.protocols.http.httptools_impl", "uvloop", "websockets.speedups"),
    *("cryptography.hazmat.primitives.ciphers.aead", "cryptography.x509", "cryptography.x509.verification"),
    *("cryptography.hazmat.primitives.asymmetric.ec", "cryptography.hazmat.primitives.asymmetric.ed25519"),
    *("cryptography.hazmat.primitives.asymmetric.rsa", "cryptography.hazmat.primitives.serialization"),
)


def install() -> None:
    """Make every suitable command of this process a copy from now on."""
    if sys.platform == "linux" and platform.machine() in CLONE_NUMBERS and PLAIN not in os.environ:
        plainly = subprocess._fork_exec
        copies = Copies(plainly)
        subprocess._fork_exec = copies.start


def settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Environment for a command whose modules shall have these values: {"interlock.net.fetch:TIMEOUT_S": 0.5}.

    So a test need not wait for an interval as long as a user's. A name the module does not have is an error.
    """
    return {SETTINGS: json.dumps(dict(values))}


class Copies:
    """Stands where `subprocess` forks and executes."""

    def __init__(self, plainly: Any) -> None:
        self.plainly = plainly
        self.lock = threading.Lock()
        self.owner = os.getpid()
        self.pipe: socket.socket | None = None

    def start(self, *given: Any) -> int:
        pid = self.copied(given) if len(given) == FORK_EXEC_ARGUMENTS else None
        return self.plainly(*_told(given)) if pid is None else pid

    def copied(self, given: Sequence[Any]) -> int | None:
        words, _, close_fds, kept, cwd, environment = given[:6]
        read_in, _, _, write_out, _, write_err, _, error_pipe, restore_signals, new_session, group = given[6:17]
        gid, gids, uid, umask, preexec, _ = given[17:]
        words = [os.fsdecode(word) for word in words]
        env = _environment(environment)
        alike = (
            close_fds
            and restore_signals
            and tuple(kept) == (error_pipe,)
            and (group, gid, gids, uid, umask, preexec) == (-1, None, None, None, -1, None)
            and _is_python_of_ours(words)
            and _starts_alike(env)
            and os.getpid() == self.owner
        )
        if not alike:
            return None
        folder = os.getcwd() if cwd is None else os.path.join(os.getcwd(), os.fsdecode(cwd))  # noqa: PTH109, PTH118
        request = json.dumps({"words": words[1:], "cwd": folder, "env": env, "session": bool(new_session)}).encode()
        if len(request) > REQUEST_BYTES_MAX or not Path(folder).is_dir():
            return None
        fds = [own if wanted == -1 else wanted for own, wanted in enumerate((read_in, write_out, write_err))]
        with self.lock:
            pipe = self.pipe = self.pipe or self.opened()
            try:
                socket.send_fds(pipe, [request], fds)
                return int(pipe.recv(64))
            except (OSError, ValueError):  # it is gone, or makes no copies
                pipe.close()
                self.pipe = None
                return None

    def opened(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(30)
        with theirs:
            command = [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno()), " " * COMMAND_LINE_BYTES]
            keep = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL}
            process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, PLAIN: "1"}, **keep)
        process.returncode = 0  # it ends with this process; nobody waits for it
        return ours


def _told(given: Sequence[Any]) -> Sequence[Any]:
    """The same command, by way of this file where it has settings."""
    words, environment = given[0], given[5]
    if not any(each.startswith((f"{SETTINGS}=".encode(), f"{FIRST}=".encode())) for each in environment or ()):
        return given
    return [[words[0], os.fsencode(Path(__file__).resolve()), b"run", *words[1:]], *given[1:]]


def _environment(given: Sequence[bytes] | None) -> dict[str, str]:
    if given is None:
        return dict(os.environ)
    return dict(os.fsdecode(each).split("=", 1) for each in given)


def _is_python_of_ours(words: Sequence[str]) -> bool:
    """Is it the program, or a script of the tests, without options of the interpreter?"""
    if len(words) < 2 or words[0] != sys.executable:
        return False
    if words[1] == "-m":
        return words[2:3] == ["interlock"]
    return words[1].endswith(".py") and Path(words[1]).is_relative_to(SCRIPTS)


def _starts_alike(env: dict[str, str]) -> bool:
    """Would an interpreter with this environment be as the one that was started with ours?"""
    if PLAIN in env:
        return False
    early = {name for name in (*env, *os.environ) if name.startswith(("PYTHON", "LC_", "LANG", "LD_"))}
    early -= {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
    return all(env.get(name, "") == os.environ.get(name, "") for name in early)


def serve(pipe: socket.socket) -> dict[str, Any] | None:
    """Make copies until nobody can ask any more. A copy comes out of here with its request, and runs it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            text, fds, _, _ = socket.recv_fds(pipe, REQUEST_BYTES_MAX + 1, 3)
        except OSError:
            return None
        if not text:
            return None
        pid = _copy()
        if pid == 0:
            request: dict[str, Any] = json.loads(text)
            _become(request, fds)
            pipe.send(str(os.getpid()).encode())  # as `subprocess`, which returns once the command is executed
            pipe.close()
            os.closerange(3, 64)
            return request
        if pid < 0:
            pipe.send(b"none")
        for fd in fds:
            os.close(fd)


def _copy() -> int:
    """As os.fork, but the copy is a child of our parent."""
    clone = ctypes.PyDLL(None, use_errno=True).syscall
    clone.restype = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(
        clone(*(ctypes.c_long(each) for each in (CLONE_NUMBERS[platform.machine()], CLONE_PARENT | 17, 0, 0, 0, 0)))
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """The descriptors, signals, environment and arguments of a process that was just executed."""
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
    _show([sys.executable, *request["words"]])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    buffered = not request["env"].get("PYTHONUNBUFFERED")
    sys.stdin = sys.__stdin__ = _stream(0, "r", "strict")
    sys.stdout = sys.__stdout__ = _stream(1, "w", "strict", write_through=not buffered)
    sys.stderr = sys.__stderr__ = _stream(2, "w", "backslashreplace", line_buffering=True)


def _show(words: Sequence[str]) -> None:
    """Have the kernel show these as our command line."""
    numbers = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(numbers[45]), int(numbers[46])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _stream(fd: int, mode: str, errors: str, **options: bool) -> Any:
    options.setdefault("line_buffering", os.isatty(fd))
    stream = open(fd, mode, encoding=sys.__stderr__.encoding, errors=errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(**options)
    return stream


def run(request: dict[str, Any]) -> None:
    """What the interpreter does with its command line."""
    for name, value in json.loads(os.environ.pop(SETTINGS, "{}")).items():
        module, _, attribute = name.partition(":")
        getattr(importlib.import_module(module), attribute)
        setattr(sys.modules[module], attribute, value)
    if first := os.environ.pop(FIRST, ""):
        runpy.run_path(first)
    words = request["words"]
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.path[0] = request["cwd"]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def end(ending: SystemExit) -> NoReturn:
    """What the interpreter does at its end, but for taking apart the modules we share, which takes the longest."""
    if not isinstance(ending.code, int | None):
        print(ending.code, file=sys.stderr)
    code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # what complains of being left behind does so now
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the interpreter has its own words for it
        raise ending from None
    os._exit(code & 0xFF)


class Hasty:
    """asyncio as uvicorn sees it, whose pauses while it stops are a sixth of a second for every node."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


def preload() -> None:
    """Import what copies will need."""
    import interlock

    sys.path.insert(1, str(SCRIPTS / "servers"))
    named = [module.name for module in pkgutil.walk_packages(interlock.__path__, "interlock.")]
    named = [name for name in named if "__main__" not in name and ".shipped" not in name]
    for name in (
        *named,
        *USED_LATE,
        *(f"rawserver.{each}" for each in ("http", "stdio", "faults", "features", "guard")),
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del sys.path[1]
    sys.modules["uvicorn.server"].asyncio = Hasty()
    gc.collect()
    gc.freeze()


if __name__ == "__main__" and sys.argv[1] == "run":
    run({"words": sys.argv[2:], "cwd": str(Path.cwd())})
elif __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        preload()
        asked = serve(control)
    if asked is not None:
        try:
            run(asked)
        except SystemExit as ending:
            end(ending)
        end(SystemExit(0))
