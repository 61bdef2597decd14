"""One start of a sandboxed server: what is prepared before, opened with it and closed after it. Linux only.

A sandbox gets a SandboxPlan and a command with its environment. It gives the command that starts the program inside,
the descriptors that the child inherits, and, while it runs, the way to the hosts that the program may reach and the
watch over what it uses.

Theory of operation. `Sandboxes.make` does everything that reads or writes the disk, on a thread: it judges every path
and arranges them as a view (`mounts`), finds the files that the program needs (`host_paths`), and writes the options
of bubblewrap. When the child has started, bubblewrap says which process is inside and waits. `Sandbox.open` now
compares the mounts with the paths that were judged, because a path may have been swapped meanwhile, and opens the name
server and the egress proxy inside. Only then does the program run. If any step fails, everything inside is killed.

A sandbox ends with its first process, and that one with the node: bubblewrap and the kernel see to it.
"""

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.folders import guarded_folder
from interlock.config.plan import DriversPlan, LimitsPlan, Plan, SandboxPlan, ServerPlan
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.drivers.protocol.server_name import server_name
from interlock.net.egress_proxy import Egress
from interlock.net.protocol.egress import direct_ports
from interlock.process.child import Child, child_environment, program
from interlock.process.limits import UsageWatch, descendants
from interlock.process.packages.package_store import package_folders
from interlock.process.sandbox.host_paths import (
    LinkRoots,
    ProtectedPaths,
    SandboxFailed,
    package_of,
    program_files,
    server_programs,
)
from interlock.process.sandbox.mounts import (
    EgressDenial,
    Identity,
    SandboxView,
    bubblewrap,
    check_mounts,
    implied_paths,
    out_of_sight,
    remedy,
)
from interlock.process.stderr import StderrRing

# System calls that no server in a sandbox can make, as a filter for the kernel (seccomp(2), classic BPF).
#
# Only what no namespace separates: the keys that the user's session holds for them, which every process of the same
# user may read, and ways into the kernel that a server has no use for. Everything else is left to namespaces and lost
# privileges, so that servers find the system they expect.


# AIP-security-1
_IO_URING: Final = (425, 426, 427)  # setup, enter, register: on every machine; what it does no filter sees
_GENERIC: Final = (217, 218, 219, 241, 280, 282, *_IO_URING)
# By machine: AUDIT_ARCH_*, and add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd.
_MACHINES: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = {
    "x86_64": (0xC000003E, (248, 249, 250, 298, 321, 323, *_IO_URING)),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
}
_X32: Final = 0x40000000  # the same calls under other numbers
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # places in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM


def seccomp_filter(machine: str | None = None) -> bytes | None:
    """Return the seccomp filter of a sandbox, or None if this machine's architecture is not supported."""
    numbers = _MACHINES.get(machine or platform.machine())
    if numbers is None:
        return None
    architecture, calls = numbers
    tests = [(_AT_LEAST, _X32), *((_EQUAL, number) for number in calls)]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        # Programs for another architecture would count calls otherwise: none of theirs is made.
        (_EQUAL, 0, len(tests) + 2, architecture),
        (_LOAD, 0, 0, _NUMBER),
        *((code, len(tests) - index, 0, value) for index, (code, value) in enumerate(tests)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


# Sockets inside the network namespace of another process, held by this one. Linux only.
#
# A socket stays in the namespace in which it was made. So a short-lived helper process enters the namespace, binds
# sockets there and hands them over: what connects to them reaches us, and there is no other way out. A helper process,
# because entering a user namespace needs a process with one thread (setns(2)).

HELPER_S: Final = 10.0

# As the owner of the user namespace we may do anything in it, and so enter the network that belongs to it. FREEBIND:
# its loopback interface may not be up yet.
_HELPER: Final = """
import ctypes, fcntl, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def enter(descriptor, kind):
    if libc.setns(descriptor, kind):
        sys.exit(os.strerror(ctypes.get_errno()))
network = os.open(f"/proc/{int(sys.argv[1])}/ns/net", os.O_RDONLY)
owner = fcntl.ioctl(network, 0xb701)
if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
    enter(owner, 0x10000000)
enter(network, 0x40000000)
made = []
for place in sys.argv[2:]:
    kind, host, port = place.split(" ")
    inside = socket.socket(type=socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    inside.setsockopt(socket.IPPROTO_IP, 15, 1)
    inside.bind((host, int(port)))
    if kind == "tcp":
        inside.listen(128)
    made.append(inside)
socket.send_fds(socket.socket(fileno=0), [b"+"], [each.fileno() for each in made])
"""


class NamespaceClosed(Exception):
    """An error raised if a network namespace cannot be entered. The message says why."""


def listen_inside(pid: int, places: Sequence[str]) -> list[socket.socket]:
    """Open sockets inside the network namespace of a process, in the order of `places`, for example "udp 127.0.0.1 53".

    This call blocks for some tens of milliseconds. Raise NamespaceClosed if the sockets cannot be
    opened, for example because the namespace cannot be entered.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _HELPER, str(pid), *places],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=HELPER_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as failed:
            raise NamespaceClosed(str(failed)) from failed
        if ended.returncode != 0:
            error_lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
            raise NamespaceClosed(error_lines[-1] if error_lines else f"exit code {ended.returncode}")
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            _, descriptors, _, _ = socket.recv_fds(ours, 1, len(places))
            sockets = [socket.socket(fileno=each) for each in descriptors]
            if len(sockets) == len(places):
                return sockets
    raise NamespaceClosed("no socket came out of it")


log = logging.getLogger("interlock.sandbox")

OPEN_S: Final = 10.0  # for bubblewrap to say which process is inside
INFO_BYTES_MAX: Final = 4096
DENIED_HOSTS_MAX: Final = 64  # written to the audit log, of one start; a server may think up any number of hosts
PROXY_PORT: Final = 3128  # nothing else listens in a namespace of its own
DNS_PORT: Final = 53
PROXY: Final = f"http://127.0.0.1:{PROXY_PORT}"
PROXY_KEYS: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
WORKSPACE_RULES: Final = ("interlock.toml", ".drivers", ".tools", ".secrets", ".devices")
OWN_FILES: Final = {  # of /etc; passwd and group are made
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "resolv.conf": "nameserver 127.0.0.1\n",
}

TellDenied = Callable[[EgressDenial], None]


class SandboxedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command to run inside a sandbox."""

    argv: tuple[str, ...]
    env: Mapping[str, str]  # as declared, with secrets
    cwd: Path


def outer_rules(drivers: DriversPlan) -> tuple[Path, ...]:
    """Return the paths outside the workspace that decide what the node runs: driver folders, the user's settings, the
    records of which configuration belongs to which node, and the node's virtual environment.
    """
    own = (drivers.own.parent,) if drivers.own is not None else ()
    environment = (Path(sys.prefix),) if sys.prefix != sys.base_prefix else ()
    return (*drivers.paths, *own, guarded_folder(os.environ), *environment)


def private_paths(plan: Plan, files: Iterable[Path] = ()) -> tuple[Path, ...]:
    """Return the paths that sandboxes hide: the data folder, the package store, the user's configuration with keys, the
    configuration `files` with their folder, and the records of which configuration belongs to which node.

    That folder is omitted if it contains the workspace or the home.
    """
    own = (plan.drivers.own.parent,) if plan.drivers.own is not None else ()
    common = (plan.workspace, Path.home())
    around = (path.parent for path in files if not any(each.is_relative_to(path.parent) for each in common))
    return (plan.data, package_folders(plan).store, guarded_folder(os.environ), *own, *files, *around)


def link_roots(plan: Plan) -> LinkRoots:
    packages = package_folders(plan)
    return LinkRoots((plan.workspace, Path.home(), plan.data, packages.own, packages.store, *outer_rules(plan.drivers)))


class Sandboxes:
    """The sandboxes of a node: the paths that they must protect, and how many sandboxes use each home now."""

    def __init__(
        self,
        *,
        state: Path,
        workspace: Path,
        user_home: Path,
        packages: Path | None = None,
        clock: Clock,
        record: Callable[[AuditRecord], None],
        rules: Iterable[Path] = (),
        private: Iterable[Path] = (),
        limits: Callable[[], LimitsPlan] = LimitsPlan,
        servers: Callable[[], Iterable[ServerPlan]] = tuple,
    ) -> None:
        """Create the sandboxes of a node.

        `packages` is the package store. `rules` are the operator's files and folders outside the workspace that no
        sandbox may write. `private` are paths of the node and its operator that no sandbox may read as part of a larger
        folder. `servers` returns all servers that the node starts: no sandbox may write the program of another server.
        """
        self.limits, self._servers, self._workspace = limits, servers, workspace
        # An installer names what it made by its real path, also where the data folder is a link.
        stores = [] if packages is None else [packages.absolute(), _real(packages)]
        self._packages = tuple(dict.fromkeys((state.absolute() / "packages", _real(state / "packages"), *stores)))
        rules, private = tuple(rules), tuple(private)
        every = (*(workspace / name for name in WORKSPACE_RULES), *rules)
        self._protected = ProtectedPaths(
            home=_real(user_home),
            state=_real(state),
            roots=LinkRoots((workspace.absolute(), user_home, state.absolute(), *self._packages, *rules)),
            rules=tuple(_real(path) for path in every),
            private=tuple(dict.fromkeys(_real(path) for path in (state, *private))),
        )
        self.clock, self.record = clock, record
        self.living: Counter[Path] = Counter()  # by home; the first in a home may empty its temporary folder

    @property
    def private(self) -> tuple[Path, ...]:
        return self._protected.private

    async def make(
        self,
        segment: str,
        plan: SandboxPlan,
        command: SandboxedCommand,
        stderr: StderrRing,
        tell_denied: TellDenied | None = None,
    ) -> "Sandbox":
        """Prepare a sandbox for a command. Raise SandboxFailed or ChildStartFailed if that is impossible.

        `tell_denied` is called for every refused host; the audit log and `stderr` get each host and port once,
        up to a bound.
        """
        home = plan.home.absolute()
        self.living[home] += 1
        try:
            # Segments of a driver's tenants are ID@MAJOR+TENANT: they are the same server.
            name = segment.partition("+")[0]
            others = tuple(server for server in self._servers() if server.segment.partition("+")[0] != name)
            prepared = await asyncio.to_thread(self._prepare, plan, command, others, alone=self.living[home] == 1)
        except OSError as error:  # a path that is swapped for a link while it is read, a full disk
            self.living[home] -= 1
            raise SandboxFailed("sandbox_invalid", f"{error.filename or home}: {error.strerror}") from error
        except BaseException:
            self.living[home] -= 1
            raise

        return Sandbox(self, segment, plan, prepared, stderr, tell_denied)

    def _prepare(
        self, plan: SandboxPlan, command: SandboxedCommand, others: Sequence[ServerPlan], *, alone: bool
    ) -> "_Prepared":
        """Do all work for a new sandbox that reads or writes the disk. `alone` says that no other running sandbox uses
        the same home folder.
        """
        tool = bubblewrap()
        home = plan.home.absolute()
        _prepare_home(home, empty=alone)
        nothing = self._placeholder_path()
        env = _environment(plan, command.env, home)
        start = Path(program(command.argv, env, command.cwd))
        start = start if start.is_absolute() else command.cwd / start
        arguments = command.argv[1:]
        package = package_of(arguments, command.cwd, self._workspace, self._packages, self._protected)
        view = SandboxView(self._protected)
        view.system(plan.programs, any_program=plan.any_program)
        implied = [
            path
            for path in implied_paths(arguments, self._protected)
            if path not in package.files and not any(path.is_relative_to(folder) for folder in package.folders)
        ]
        view.declare(plan, implied if plan.from_arguments else ())
        for each in server_programs(others) if view.writes else ():
            if view.is_written(each.path):  # AIP-security-5
                owner = f"{each.path}, a program of {server_name(each.segment)}"
                raise SandboxFailed("sandbox_invalid", f"what it may write covers {owner}; name folders beside it")
        named = {name: shutil.which(name, path=env["PATH"]) for name in plan.programs}
        for name, path_on_host in named.items():
            if path_on_host is None:
                message = f"there is no program {name!r} on the PATH; install it or remove it"
                raise SandboxFailed("sandbox_invalid", message)
        for path in (start, *(Path(each) for each in named.values() if each is not None)):
            view.show_files(program_files(path, env["PATH"], self._protected))
        view.show_package(package)
        view.own(_real(home))
        for name in ("passwd", "group", *OWN_FILES):
            view.replace_file(Path("/etc") / name, nothing.with_name(name))
        cwd = command.cwd if not view.hides(command.cwd) else home
        identities = view.identities()
        words = tool.words(view.mounts, env, cwd, make_cwd=not view.sees(cwd), nothing=nothing)
        return _Prepared(
            program=tool.program,
            argv=(str(start), *arguments),
            words=words,
            unseen=tuple(out_of_sight(arguments, view)),
            identities=identities,
        )

    def _placeholder_path(self) -> Path:
        """Create and return an empty folder to show in place of hidden paths.

        Files that replace those of /etc lie beside it.
        """
        nothing = self._protected.state / "homes" / ".shown" / "nothing"
        nothing.mkdir(mode=0o755, parents=True, exist_ok=True)
        user, group = os.getuid(), os.getgid()
        own = OWN_FILES | {"passwd": f"user:x:{user}:{group}::/:/bin/sh\n", "group": f"user:x:{group}:\n"}
        for name, text in own.items():
            path = nothing.with_name(name)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        return nothing


class _Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the preparation on disk, before a sandbox is started."""

    program: str
    argv: tuple[str, ...]
    words: bytes
    unseen: tuple[str, ...]
    identities: dict[Path, Identity]  # of what was judged


class Sandbox:
    """A sandbox for one start of a server.

    `argv` and `handed` are passed to the Child. The owner calls `open` when the child has started, and `close` when it
    has ended or was never started. Bubblewrap holds the program back until `open` has compared the mounts with the
    paths that were checked, and has bound the sockets of the name server and the proxy inside.
    """

    env: Final[Mapping[str, str]] = {"PATH": os.defpath}  # of bubblewrap itself, outside
    cwd: Final = Path("/")

    def __init__(
        self,
        sandboxes: Sandboxes,
        segment: str,
        plan: SandboxPlan,
        prepared: _Prepared,
        stderr: StderrRing,
        tell_denied: TellDenied | None,
    ) -> None:
        self._sandboxes, self._stderr = sandboxes, stderr
        self._is_closed = False
        self._segment, self._plan, self._tell_denied = segment, plan, tell_denied
        self._denied: dict[tuple[str, int], EgressDenial] = {}
        self._unseen = prepared.unseen
        self._egress: Egress | None = None
        self._usage_watch: UsageWatch | None = None
        self._pid = 0
        self._theirs: list[int] = [_in_memory(prepared.words)]
        self._ours: list[int] = []
        words = ["--args", str(self._theirs[0])]
        refused = seccomp_filter()
        if refused is not None:
            self._theirs.append(_in_memory(refused))
            words += ("--seccomp", str(self._theirs[-1]))  # AIP-security-1
        self._identities = prepared.identities
        (info, tell), (wait, go) = os.pipe(), os.pipe()
        self._theirs += (tell, wait)
        self._ours += (info, go)
        # bwrap says who is inside, and waits until we have looked and listened there.
        words += ("--info-fd", str(tell), "--block-fd", str(wait))
        self.argv = (prepared.program, *words, "--", *prepared.argv)

    @property
    def handed(self) -> Sequence[int]:
        return tuple(self._theirs)

    @property
    def remark(self) -> str:
        """Return a possible reason why the server failed, to be appended to a message. It is empty if no reason is
        known.
        """
        last = self._stderr.tail(1)
        if last and last[0].text.startswith("bwrap: "):
            return f" ({last[0].text})"
        if self._denied:
            return f"; {next(iter(self._denied.values())).text}"
        if not self._unseen:
            return ""
        paths = ", ".join(self._unseen[:3])
        return f"; its sandbox does not show {paths}, which its arguments name: allow it (sandbox.fs, or files)"

    async def open(self, child: Child) -> None:
        """Complete the sandbox of a started child, and monitor its limits. Raise SandboxFailed if a step fails."""
        _close_all(self._theirs)
        self._pid = child.pid or 0
        await self._enter()
        sandboxes = self._sandboxes
        self._usage_watch = UsageWatch(self._plan, sandboxes.limits(), sandboxes.living.total, self._pid, child.end)

    def terminate(self) -> None:
        """Send SIGTERM to the processes inside.

        It is not sent to bubblewrap, which would exit at once and kill them, unless nothing else is inside.
        """
        inside = list(descendants(self._pid))
        for pid in inside[1:] or inside:  # the first is bubblewrap's own
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        _close_all(self._theirs)
        _close_all(self._ours)
        if self._egress is not None:
            self._egress.close()
        if self._usage_watch is not None:
            self._usage_watch.stop()
        if not self._is_closed:
            self._is_closed = True
            self._sandboxes.living[self._plan.home.absolute()] -= 1

    async def _enter(self) -> None:
        """Check the mounts and open the network access while bubblewrap holds the program back.

        The program continues when the pipe closes. If a step fails, the program is ended before that.
        """
        pid_pipe, go = self._ours
        self._ours.remove(pid_pipe)
        try:
            async with asyncio.timeout(OPEN_S):
                inside = await asyncio.to_thread(_read_child_pid, pid_pipe)
                await asyncio.to_thread(check_mounts, inside, self._identities)
                await self._open_egress(inside)
        except msgspec.DecodeError:
            return  # it ended before a process was inside, and its last words say why
        except TimeoutError as failed:
            self._kill()
            raise SandboxFailed("sandbox_unavailable", f"it took too long to prepare{self.remark}") from failed
        except BaseException:
            self._kill()
            raise
        with contextlib.suppress(BrokenPipeError):  # it has ended: its child says why
            os.write(go, b"+")
        _close_all(self._ours)

    def _kill(self) -> None:
        for pid in (*descendants(self._pid), self._pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    async def _open_egress(self, inside: int) -> None:
        """Open the name server and the proxy inside the sandbox.

        If no hosts are permitted, only the name server runs. It reports which hosts the program wanted to reach.
        """
        entries = self._plan.egress
        places = [f"udp 127.0.0.1 {DNS_PORT}"]
        if entries:
            places.append(f"tcp 127.0.0.1 {PROXY_PORT}")
        places += [f"tcp 0.0.0.0 {port}" for port in direct_ports(entries) if port != PROXY_PORT]
        try:
            sockets = await asyncio.to_thread(listen_inside, inside, places)
        except NamespaceClosed as failed:
            if not any(descendants(self._pid)):
                return
            if not entries:
                log.warning("link %s: what it tries to reach cannot be told (%s)", server_name(self._segment), failed)
                return
            why = str(failed) + self.remark
            raise SandboxFailed(
                "sandbox_unavailable", f"its network cannot be reached to filter it ({why})"
            ) from failed
        self._egress = Egress(entries, self._note_denied)
        await self._egress.start(sockets[0], sockets[1] if entries else None, sockets[2:])

    def _note_denied(self, host: str, port: int, why: str) -> None:
        denied = EgressDenial(host=host, port=port, why=why, remedy=remedy(self._segment, self._plan.egress, host))
        if self._tell_denied is not None:
            self._tell_denied(denied)
        if (host, port) in self._denied or len(self._denied) > DENIED_HOSTS_MAX:
            return
        log.warning("link %s: egress_denied: %s: %s", server_name(self._segment), denied.place, why)
        self._denied[host, port] = denied
        if len(self._denied) > DENIED_HOSTS_MAX:
            denied = msgspec.structs.replace(denied, why=f"{why}; further hosts are not written down")
        self._stderr.feed(f"interlock: {denied.text}\n".encode())
        name, at, text = server_name(self._segment), self._sandboxes.clock.wall(), denied.text
        self._sandboxes.record(
            AuditRecord(at, f"server:{name}", "egress", "egress", name, None, "refused", "refused", reason=text)
        )


class _BubblewrapInfo(msgspec.Struct, frozen=True):
    """The JSON object that bwrap writes to the descriptor of `--info-fd`."""

    child_pid: int = msgspec.field(name="child-pid")


def _read_child_pid(descriptor: int) -> int:
    """Read the JSON object that bwrap writes, close the descriptor, and return the process id in the object."""
    text = b""
    with open(descriptor, "rb", buffering=0) as file:
        while not text.rstrip().endswith(b"}") and (data := file.read(INFO_BYTES_MAX)):
            text += data
    return msgspec.json.decode(text, type=_BubblewrapInfo).child_pid


def _environment(plan: SandboxPlan, declared: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of a sandboxed process (AIP-security-14). Bubblewrap adds PWD."""
    host = os.environ
    environment = {
        "PATH": host.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "LANG": host.get("LANG", "C.UTF-8"),  # AIP-security-14
    }
    if "TZ" in host:
        environment["TZ"] = host["TZ"]  # AIP-security-14
    if plan.egress:
        environment |= dict.fromkeys(PROXY_KEYS, PROXY) | {"NODE_USE_ENV_PROXY": "1"}  # AIP-security-14
    environment |= {name: host[name] for name in plan.passed if name in host}  # AIP-security-14: exactly X
    return child_environment(environment | dict(declared), {})


def _prepare_home(home: Path, *, empty: bool) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = home / "tmp"
    if empty:
        shutil.rmtree(temporary, ignore_errors=True)
    if temporary.is_symlink() or temporary.is_file():
        temporary.unlink()
    temporary.mkdir(mode=0o700, exist_ok=True)


def _in_memory(words: bytes) -> int:
    """Return the descriptor of an unnamed file in memory with this content, positioned at its beginning."""
    descriptor = os.memfd_create("sandbox")
    view = memoryview(words)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
