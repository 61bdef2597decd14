"""A fork server: it starts `python -m interlock ...` and fixture servers without the half second of importing.

A test starts a command as usual, with `subprocess` or `asyncio`. `install` redirects suitable commands to one process
per test run (`serve`), which has imported all modules. That process forks, and the fork runs the command with its own
pid, descriptors, environment and folder, as a child of the test.

A command is started normally if a fork could behave differently: with other interpreter options, with an environment
that the interpreter reads while it starts, with inherited descriptors, or as another user. The same holds if the kernel
offers no CLONE_PARENT, or if INTERLOCK_TESTS_PLAIN is set.
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
PLAIN = "INTERLOCK_TESTS_PLAIN"  # in the environment of a command or of the run: start it normally
SETTINGS = "INTERLOCK_TESTS_SETTINGS"  # see `settings`
FIRST = "INTERLOCK_TESTS_FIRST"  # a script that is run before the command, in its process
REQUEST_BYTES_MAX = 128 * 1024
COMMAND_LINE_BYTES = 4096  # of a copy, as `ps` shows it
FORK_EXEC_ARGUMENTS = 23  # of Python 3.11 to 3.13; another number is another meaning

# clone(2) with CLONE_PARENT makes a sibling of the caller, so that the test process can wait for it.
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
    """Start every suitable command of this process through the fork server from now on."""
    if sys.platform == "linux" and platform.machine() in CLONE_NUMBERS and PLAIN not in os.environ:
        subprocess._fork_exec = ForkServer(subprocess._fork_exec).start


def settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return an environment that sets values of modules in a command: {"interlock.net.fetch:TIMEOUT_S": 0.5}.

    A test need not wait for an interval as long as a user's. A name that the module does not have is an error.
    """
    return {SETTINGS: json.dumps(dict(values))}


class ForkServer:
    """The replacement of `subprocess._fork_exec`, and the process that forks."""

    def __init__(self, fork_exec: Any) -> None:
        self.fork_exec = fork_exec
        self.lock = threading.Lock()
        self.owner = os.getpid()
        self.pipe: socket.socket | None = None

    def start(self, *arguments: Any) -> int:
        """Start a command and return its pid, as `_fork_exec` does."""
        pid = self.fork(arguments) if len(arguments) == FORK_EXEC_ARGUMENTS else None
        return self.fork_exec(*_with_settings(arguments)) if pid is None else pid

    def fork(self, arguments: Sequence[Any]) -> int | None:
        """Have the server fork for a command. Return None if the command must be started normally."""
        words, _, close_fds, inherited, cwd, environment = arguments[:6]
        read_in, _, _, write_out, _, write_err, _, error_pipe, restore_signals, new_session, group = arguments[6:17]
        gid, gids, uid, umask, preexec, _ = arguments[17:]
        words = [os.fsdecode(word) for word in words]
        env = _environment(environment)
        is_suitable = (
            close_fds
            and restore_signals
            and tuple(inherited) == (error_pipe,)
            and (group, gid, gids, uid, umask, preexec) == (-1, None, None, None, -1, None)
            and _is_own_python(words, cwd)
            and _starts_equally(env)
            and os.getpid() == self.owner
        )
        if not is_suitable:
            return None
        folder = os.getcwd() if cwd is None else os.path.join(os.getcwd(), os.fsdecode(cwd))  # noqa: PTH109, PTH118
        request = json.dumps({"words": words[1:], "cwd": folder, "env": env, "session": bool(new_session)}).encode()
        if len(request) > REQUEST_BYTES_MAX or not Path(folder).is_dir():
            return None
        fds = [own if wanted == -1 else wanted for own, wanted in enumerate((read_in, write_out, write_err))]
        with self.lock:
            pipe = self.pipe = self.pipe or self.open()
            try:
                socket.send_fds(pipe, [request], fds)
                return int(pipe.recv(64))
            except (OSError, ValueError):  # the server has ended, or cannot fork
                pipe.close()
                self.pipe = None
                return None

    def open(self) -> socket.socket:
        """Start the server and return the connection to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(30)
        with theirs:
            command = [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno()), " " * COMMAND_LINE_BYTES]
            keep = {"pass_fds": [theirs.fileno()], "stdin": subprocess.DEVNULL}
            process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, PLAIN: "1"}, **keep)
        process.returncode = 0  # the server ends with this process; nothing waits for it
        atexit.register(ours.close)
        return ours


def _with_settings(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of `_fork_exec`, changed to run this file first if the environment holds settings."""
    words, environment = arguments[0], arguments[5]
    if not any(each.startswith((f"{SETTINGS}=".encode(), f"{FIRST}=".encode())) for each in environment or ()):
        return arguments
    return [[words[0], os.fsencode(Path(__file__).resolve()), b"run", *words[1:]], *arguments[1:]]


def _environment(environment: Sequence[bytes] | None) -> dict[str, str]:
    if environment is None:
        return dict(os.environ)
    return dict(os.fsdecode(each).split("=", 1) for each in environment)


def _is_own_python(words: Sequence[str], cwd: bytes | str | None) -> bool:
    """Return whether a command is the program or a script of the tests, without options of the interpreter."""
    if len(words) < 2 or words[0] != sys.executable:
        return False
    if words[1] == "-m":
        is_tests = "".join(words[2:3]).startswith("tests.") and cwd is None and Path.cwd() == ROOT
        return is_tests or words[2:3] == ["interlock"]
    return words[1].endswith(".py") and Path(words[1]).is_relative_to(SCRIPTS)


def _starts_equally(env: dict[str, str]) -> bool:
    """Return whether an interpreter with this environment would start like the server did."""
    if PLAIN in env:
        return False
    early = {name for name in (*env, *os.environ) if name.startswith(("PYTHON", "LC_", "LANG", "LD_", "MALLOC_"))}
    early -= {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
    return all(env.get(name, "") == os.environ.get(name, "") for name in early)


def serve(pipe: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until the connection ends. In a fork, return its request; in the server, return None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            text, fds, _, _ = socket.recv_fds(pipe, REQUEST_BYTES_MAX + 1, 3)
        except OSError:
            return None
        if not text:
            return None
        pid = _fork_sibling()
        if pid == 0:
            request: dict[str, Any] = json.loads(text)
            _take_over(request, fds)
            pipe.send(str(os.getpid()).encode())  # like `subprocess`, which returns once the command is executed
            pipe.close()
            os.closerange(3, 64)
            return request
        if pid < 0:
            pipe.send(b"none")
        for fd in fds:
            os.close(fd)


def _fork_sibling() -> int:
    """Fork like os.fork, but make the fork a child of our parent."""
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


def _take_over(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Set descriptors, signals, environment and arguments to those of a process that was just executed."""
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
    _set_command_line([sys.executable, *request["words"]])
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


def _set_command_line(words: Sequence[str]) -> None:
    """Make the kernel show these words as our command line."""
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
    """Run a command as the interpreter runs its command line."""
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
    """End like the interpreter, except for taking apart the shared modules, which takes the longest."""
    if not isinstance(ending.code, int | None):
        print(ending.code, file=sys.stderr)
    code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    threading._shutdown()
    atexit._run_exitfuncs()
    gc.collect()  # objects that warn about being left open do so now
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the interpreter reports this itself
        raise ending from None
    os._exit(code & 0xFF)


class ShortPauses:
    """The module asyncio as uvicorn sees it, with short pauses: uvicorn waits a sixth of a second while it stops."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


def preload() -> None:
    """Import what the forks will need."""
    import interlock

    sys.path.insert(1, str(SCRIPTS / "servers"))
    names = [module.name for module in pkgutil.walk_packages(interlock.__path__, "interlock.")]
    names = [name for name in names if "__main__" not in name and ".shipped" not in name]
    for name in (
        *names,
        *USED_LATE,
        *(f"rawserver.{each}" for each in ("http", "stdio", "faults", "features", "guard")),
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    del sys.path[1]
    sys.modules["uvicorn.server"].asyncio = ShortPauses()
    gc.collect()
    gc.freeze()


if __name__ == "__main__" and sys.argv[1] == "run":
    run({"words": sys.argv[2:], "cwd": str(Path.cwd())})
elif __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        preload()
        request = serve(control)
    if request is not None:
        try:
            run(request)
        except SystemExit as ending:
            end(ending)
        end(SystemExit(0))
