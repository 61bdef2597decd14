"""The view that a sandboxed server has of the file system: an ordered list of mounts on an empty root, and its check.

Every mount is at its real path, so that no link decides what is shown; a path that is written through a link gets the
link too. The deeper of two mounts is made later and so lies above. What is denied is taken away from what is declared,
below it too, but not from what the server needs to run at all.

Between the judgement of a path and its mount another program may swap a folder for a link, and back. So what was
judged is remembered by its device and inode, and `check_mounts` compares it with what is mounted, while bubblewrap
still holds the program back.
"""

import enum
import functools
import glob
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.plan import SandboxPlan
from interlock.drivers.protocol.server_name import server_name
from interlock.process.sandbox.host_paths import ROOT, ProgramFiles, ProtectedPaths, SandboxFailed

WAIT_S: Final = 10.0  # for bubblewrap to have mounted everything
LOOK_S: Final = 0.001

Identity = tuple[int, int]  # device, inode


def identity_of(path: Path) -> Identity:
    """Return the device and inode of the file at this path.

    Raise SandboxFailed if the path contains a symbolic link or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        raise _changed(path) from None
    try:
        if Path(f"/proc/self/fd/{descriptor}").readlink() != path:
            raise _changed(path)
        return _identity(os.fstat(descriptor))
    finally:
        os.close(descriptor)


def check_mounts(pid: int, judged: Mapping[Path, Identity]) -> None:
    """Check that the mounts of a sandboxed process are the same files that were checked before it started. `judged` has
    the device and inode of each.

    Raise SandboxFailed if they differ, or if they cannot all be compared within WAIT_S seconds. Return without a result
    if the process has ended. This blocks until the mounts are there, usually for milliseconds.
    """
    root, outside = Path(f"/proc/{pid}/root"), _identity(os.stat("/"))  # noqa: PTH116
    waiting = dict(judged)
    deadline = time.monotonic() + WAIT_S
    while waiting and time.monotonic() < deadline:
        try:
            if _identity(root.stat()) != outside:
                for path in list(waiting):
                    if _identity(os.lstat(f"{root}{path}")) != waiting[path]:
                        raise _changed(path)
                    del waiting[path]
                return
        except FileNotFoundError:  # not mounted yet, or gone
            if not root.parent.exists():
                return
        time.sleep(LOOK_S)
    if waiting:
        raise SandboxFailed("sandbox_unavailable", "what it shows cannot be checked: it took too long")


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _changed(path: Path) -> SandboxFailed:
    return SandboxFailed("sandbox_invalid", f"{path} became another while it was looked at")


# Libraries and data; programs lie beside them.
LIBRARIES: Final = ("lib", "lib32", "lib64", "libx32")
PROGRAMS: Final = ("bin", "sbin")
USR: Final = Path("/usr")
# Below /usr/lib there are programs too. Kept where only the runtime and named programs may be started:
LANGUAGES: Final = ("python", "node", "ruby", "perl", "php", "lua", "locale", "ssl", "engines-")
# fmt: off
SETTINGS: Final = tuple(Path("/etc") / name for name in (  # of /etc: nothing that is private to this machine
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "nsswitch.conf", "services",
    "protocols", "mime.types", "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates",
    "ca-certificates.conf", "pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem", "crypto-policies", "fonts",
))
# fmt: on


SOCKETS: Final = (Path("/run"), Path("/sys"))  # of services; who may read there may connect

STEPS_MAX: Final = 400  # on the way to one path, with the links on it


class MountKind(enum.Enum):
    """The way in which a path appears in a sandbox, or that it is hidden."""

    READ = "read"
    WRITE = "write"
    HIDDEN = "hidden"
    TEMPORARY = "temporary"  # empty at first, and gone with the sandbox
    LINK = "link"


class Mount(msgspec.Struct, frozen=True):
    """A path in a sandbox, and what is mounted there."""

    kind: MountKind
    path: Path
    source: Path  # what is shown there; of a link: where it leads

    @property
    def shows(self) -> bool:
        return self.kind in (MountKind.READ, MountKind.WRITE)


class SandboxView:
    """The file system that a sandboxed server sees. It is assembled step by step before the start."""

    def __init__(self, protected: ProtectedPaths) -> None:
        self._protected = protected
        self._mounts: dict[Path, Mount] = {}
        self._declared: set[Path] = set()  # mounts that somebody may put something else in the place of

    @property
    def mounts(self) -> list[Mount]:
        # A link below what is shown anyway is there already.
        needed = (
            each for each in self._mounts.values() if each.kind is not MountKind.LINK or not self._is_shown(each.path)
        )
        return sorted(needed, key=lambda mount: len(mount.path.parts))

    def identities(self) -> dict[Path, Identity]:
        """Return the device and inode of each declared mount except the root. Raise SandboxFailed if a path has
        changed.
        """
        shown = (self._mounts[path] for path in self._declared if path != ROOT)
        return {mount.path: identity_of(mount.source) for mount in shown if mount.shows}

    def sees(self, path: Path) -> bool:
        return self._is_shown(Path(os.path.realpath(path)))

    def hides(self, path: Path) -> bool:
        mount = self._above(Path(os.path.realpath(path)))
        return mount is not None and mount.kind is MountKind.HIDDEN

    def system(self, programs: Sequence[str], *, any_program: bool) -> None:
        """Mount the system's libraries and data. Also mount its programs if any program may be started."""
        self._put(MountKind.TEMPORARY, ROOT / "tmp")
        for name in (*LIBRARIES, *PROGRAMS):
            top = ROOT / name
            if top.is_symlink():
                self._put(MountKind.LINK, top, top.readlink())
            elif top.is_dir() and (any_program or name in LIBRARIES):
                self._put(MountKind.READ, top)
        if any_program:
            self._put(MountKind.READ, USR)
        else:
            for folder in (USR, USR / "local"):
                for name in (*LIBRARIES, "share"):
                    if (folder / name).is_dir() and not (folder / name).is_symlink():
                        self._put(MountKind.READ, folder / name)
            # Hide folders in /usr/lib that contain programs, except those of languages and of the named programs.
            libraries = USR / "lib"
            for folder in sorted(libraries.iterdir()) if libraries.is_dir() else ():
                is_needed = folder.name.startswith((*LANGUAGES, *(Path(each).name for each in programs)))
                if folder.is_dir() and not folder.is_symlink() and not is_needed and "-linux-" not in folder.name:
                    self._put(MountKind.HIDDEN, folder)
            for each in programs:
                for folder in (USR / "libexec").glob(f"{glob.escape(Path(each).name)}*"):
                    self._put(MountKind.READ, folder)
        for path in (*SETTINGS, Path("/nix/store")):
            if path.exists():
                self.show(path)

    def show_package(self, package: ProgramFiles) -> None:
        """Mount the files of a package. Raise SandboxFailed if a link leads elsewhere."""
        for path in (*package.folders, *package.files):
            self._check_link(path, Path(os.path.realpath(path)))
        before = frozenset(self._mounts)
        self.show_files(package)
        self._declared |= self._mounts.keys() - before

    def show_files(self, needs: ProgramFiles) -> None:
        for path in (*needs.folders, *needs.files):
            self.show(path)

    def show(self, path: Path) -> None:
        """Mount a path for reading, with the links that lead to it."""
        real = Path(os.path.realpath(path))
        if not real.exists():
            return
        if not self._is_shown(real):
            self._put(MountKind.READ, real)
        self._link(path)

    def declare(self, plan: SandboxPlan, implied: Sequence[Path]) -> None:
        """Mount the paths that the plan of the sandbox declares. Raise SandboxFailed if a path cannot be allowed."""
        for path in (*plan.read, *plan.write, *implied, *plan.deny):
            accepted, real = plan.accepted.get(path), Path(os.path.realpath(path))
            if accepted is not None and accepted != real:
                message = f"{path} is {real} now and was {accepted} when it was accepted"
                raise SandboxFailed("sandbox_invalid", message)
        before = frozenset(self._mounts)
        denied = [Path(os.path.realpath(path)) for path in plan.deny]
        writable: list[Path] = []
        wanted = [(MountKind.WRITE, path) for path in (*plan.write, *implied)] + [
            (MountKind.READ, path) for path in plan.read
        ]
        for kind, path in sorted(wanted, key=lambda each: len(each[1].parts)):
            if any(path.is_relative_to(each) for each in writable):
                continue  # it has that already, and may have put a link there that leads anywhere
            real = Path(os.path.realpath(path))
            if not real.exists() and kind is MountKind.READ:
                continue
            if not real.exists():
                message = f"{path}, which it may write, is not there; make it or name its folder"
                raise SandboxFailed("sandbox_invalid", message)
            self._check_link(path, real)
            if any(real.is_relative_to(each) for each in denied):
                continue
            if kind is MountKind.WRITE:
                writable += (path, real)
            self._put(kind, real)
            self._link(path)
        # Shown only if the plan names them explicitly, not as part of a folder around them.
        for place in (*self._protected.private, *SOCKETS):
            is_named = any(path.is_relative_to(place) for path in (*plan.read, *plan.write))
            if self._is_shown(place) and not is_named and place.is_dir():
                self._put(MountKind.HIDDEN, place)
        # A server that could write the files that say which programs are started could leave its sandbox.
        written = {self._protected.roots.plain_path(path) for path in plan.write}  # not what a link leads to
        for path in self._protected.rules:
            above = self._above(path)
            if above is not None and above.kind is MountKind.WRITE and path not in written:
                self._cover(path, MountKind.READ)
        for path in denied:
            self._cover(path, MountKind.HIDDEN)
        self._declared |= self._mounts.keys() - before

    def _cover(self, path: Path, kind: MountKind) -> None:
        """Hide a path inside a mounted folder, or make it read-only, as `kind` says."""
        above = self._above(path)
        if above is None or not above.shows or not path.exists():
            return
        if above.kind is MountKind.WRITE:
            # A folder that is a mount cannot be renamed, so what is covered in it stays where it is.
            for between in path.parents:
                if between == above.path:
                    break
                self._put(MountKind.WRITE, between)
        self._put(kind, path)

    def _check_link(self, path: Path, real: Path) -> None:
        if not self._protected.may_be(path, real):
            raise SandboxFailed("sandbox_invalid", f"{path} is a link to {real}; write that path itself if it is meant")

    @property
    def writes(self) -> bool:
        """Return whether the server may write to any path of the machine."""
        return any(mount.kind is MountKind.WRITE for mount in self._mounts.values())

    def is_written(self, path: Path) -> bool:
        """Return whether the server may write to this real path."""
        mount = self._above(path)
        return mount is not None and mount.kind is MountKind.WRITE

    def own(self, path: Path) -> None:
        """Mount the private home folder of the server for reading and writing, even if another
        setting denies the path.
        """
        self._put(MountKind.WRITE, path)

    def replace_file(self, path: Path, source: Path) -> None:
        if self._above(path) is None or path.exists():
            self._mounts[path] = Mount(MountKind.READ, path, source)

    def _put(self, kind: MountKind, path: Path, source: Path | None = None) -> None:
        self._mounts[path] = Mount(kind, path, source or path)

    def _above(self, path: Path) -> Mount | None:
        """Return the mount that determines whether `path` is visible, or None if there is none."""
        around = (self._mounts.get(each) for each in (path, *path.parents))
        return next((mount for mount in around if mount is not None and mount.kind is not MountKind.LINK), None)

    def _link(self, path: Path) -> None:
        """Add every symbolic link on the way to a path, as it exists outside the sandbox."""
        at, ahead = ROOT, list(path.absolute().parts[1:])
        for _ in range(STEPS_MAX):
            if not ahead:
                return
            name = ahead.pop(0)
            here = at.parent if name == ".." else at / name
            if not here.is_symlink():
                at = here
                continue
            target = here.readlink()
            if not self._is_shown(here):
                self._put(MountKind.LINK, here, target)
            at, ahead = (ROOT, [*target.parts[1:], *ahead]) if target.is_absolute() else (at, [*target.parts, *ahead])

    def _is_shown(self, path: Path) -> bool:
        mount = self._above(path)
        return mount is not None and mount.shows


def implied_paths(arguments: Iterable[str], protected: ProtectedPaths) -> Iterator[Path]:
    """Yield the arguments that give the server access to a path (AIP-security-5). They are existing absolute paths that
    are not links to other places.
    """
    for argument in arguments:
        path = Path(argument)
        if not path.is_absolute() or not path.exists():
            continue
        real = Path(os.path.realpath(path))
        if protected.may_imply(real) and protected.may_be(path, real):  # AIP-security-5
            yield path


def out_of_sight(arguments: Iterable[str], view: SandboxView) -> list[str]:
    """Return the paths among the arguments that do not exist in the server's view."""
    named = (argument.partition("=")[2] if argument.startswith("-") else argument for argument in arguments)
    return [path for path in named if path.startswith("/") and len(path) > 1 and not view.sees(Path(path))]


# bubblewrap (bwrap): whether it works on this machine, and the options that make it show one view and nothing else.
#
# The options are passed through a file in memory, not as arguments: they hold the values of environment variables, and
# every user of the machine can read the arguments of a process. They are not the environment of bwrap either, because
# the dynamic linker would obey it outside of the sandbox.
#
# `EgressDenial` is here because people read about a host that was refused beside the command that permits it.


_ALLOW: Final = "allow with:"


class EgressDenial(msgspec.Struct, frozen=True, kw_only=True):
    """A host that a sandboxed server tried to reach without permission, as shown to people and clients and in the audit
    log.
    """

    host: str
    port: int  # 0: only its name was asked for
    why: str
    remedy: str  # what permits it

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host

    @property
    def text(self) -> str:
        return f"egress_denied: {self.place}: {self.why}; {self.remedy}"

    @property
    def client_text(self) -> str:
        """Return the text for clients. It does not contain the configuration line that permits the host, because a
        model could add that line itself (AX-11.N-9).
        """
        is_command = self.remedy.startswith(f"{_ALLOW} interlock ")
        way = self.remedy if is_command else "interlock status says how a person allows it"
        return f"egress_denied: {self.place}: {self.why}; {way}"


def remedy(segment: str, entries: Sequence[str], host: str) -> str:
    """Return how an operator can permit the host in addition to `entries`.

    Links of drivers are named ID@MAJOR, with +TENANT if there is one.
    """
    segment, _, _ = segment.partition("+")
    if "@" in segment:
        return f"{_ALLOW} interlock drivers allow {server_name(segment)} {host}"
    listed = ", ".join(f'"{each}"' for each in (*entries, host))
    return f"{_ALLOW} egress = [{listed}] in [servers.{segment}] of interlock.toml"


TEMPORARY_BYTES: Final = 64 * 1024 * 1024  # in memory; TMPDIR is on disk
CHECK_S: Final = 10.0
SAFE_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

# The kernel's own settings belong to the user who is root outside, and a node may run as that one: without any
# privilege it could still set which program the kernel starts when another one crashes.
_PROC: Final = Path("/proc")
_KERNEL_READ: Final = ("bus", "fs", "irq", "mtrr", "sys", "sysrq-trigger")  # AIP-security-1
_KERNEL_HIDDEN: Final = (
    "acpi",
    "asound",
    "driver",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
)
_APART: Final = (
    # AIP-security-1
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),  # AIP-security-1
)
_NO_NAMESPACES_INSIDE: Final = "--disable-userns"  # since 0.8


class Bubblewrap:
    """The program bwrap on this machine, after a successful trial, with the options that every sandbox uses."""

    def __init__(self, program: str, base: tuple[str, ...]) -> None:
        self.program, self._base = program, base

    def words(self, mounts: list[Mount], env: Mapping[str, str], cwd: Path, *, make_cwd: bool, nothing: Path) -> bytes:
        """Return the command-line options of bwrap for a sandbox, in the form in which bwrap reads them from a file.

        `nothing` is an empty folder that is mounted over hidden folders.
        """
        words = [*self._base, "--clearenv"]
        for name, value in env.items():
            words += ("--setenv", name, value)
        at_root = [mount for mount in mounts if mount.path == ROOT]
        for mount in at_root:
            words += _mount_options(mount, nothing)
        words += ("--proc", "/proc", "--dev", "/dev")
        for path in (_PROC / name for name in _KERNEL_READ):
            if path.exists():
                words += ("--ro-bind", str(path), str(path))
        for path in (_PROC / name for name in _KERNEL_HIDDEN):
            if path.exists():
                words += _mount_options(Mount(MountKind.HIDDEN, path, path), nothing)
        words += ("--size", str(TEMPORARY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
        holding = {parent for mount in mounts for parent in mount.path.parents}  # folders that others are shown in
        for mount in mounts:
            if mount.path != ROOT:
                words += _mount_options(mount, None if mount.path in holding else nothing)
        if make_cwd:
            words += ("--dir", str(cwd))
        hollow = [mount.path for mount in mounts if mount.kind is MountKind.HIDDEN and mount.path in holding]
        for path in (*hollow, *(() if at_root else (ROOT,))):
            words += ("--remount-ro", str(path))  # AIP-security-1
        words += ("--chdir", str(cwd))
        return b"".join(os.fsencode(word) + b"\0" for word in words)


def _mount_options(mount: Mount, nothing: Path | None) -> tuple[str, ...]:
    """Return the options with which bubblewrap makes one mount.

    `nothing` is mounted over a hidden path. If it is None, an empty folder is created, because other mounts lie below
    it.
    """
    path, source = str(mount.path), str(mount.source)
    match mount.kind:
        case MountKind.READ:
            return ("--ro-bind", source, path)  # AIP-security-1
        case MountKind.WRITE:
            return ("--bind", source, path)
        case MountKind.HIDDEN:
            if nothing is None:
                return ("--tmpfs", path)
            # A device cannot be opened in there, so this is a file that is never read.
            return ("--ro-bind", str(nothing) if mount.path.is_dir() else os.devnull, path)
        case MountKind.TEMPORARY:
            return ("--size", str(TEMPORARY_BYTES), "--perms", "1777", "--tmpfs", path)
        case MountKind.LINK:
            return ("--symlink", source, path)


@functools.lru_cache(maxsize=1)
def bubblewrap() -> Bubblewrap:
    """Return the program bwrap of this machine, after searching for it and trying it out. Raise SandboxFailed if it
    does not work.

    This call blocks for some milliseconds. Only success is remembered: after a failure the next call tries again.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxFailed("sandbox_unavailable", "there is no sandbox for this system")
    program = shutil.which("bwrap", path=SAFE_PATH) or shutil.which("bwrap")
    if program is None:
        how = "install it (Debian, Ubuntu, Fedora, Arch: package bubblewrap)"
        raise SandboxFailed("sandbox_unavailable", f"bubblewrap is not installed; {how}")
    refusal = ""
    for base in ((*_APART, _NO_NAMESPACES_INSIDE), _APART):
        refusal = _try_tool(program, base)
        if not refusal:
            return Bubblewrap(program, base)
    how = "allow unprivileged user namespaces on this machine"
    raise SandboxFailed("sandbox_unavailable", f"bubblewrap does not work here ({refusal}); {how}")


def _try_tool(program: str, base: tuple[str, ...]) -> str:
    """Run bubblewrap once as a trial. Return its error, or an empty string if it works."""
    trial = (program, *base, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/sh", "-c", ":")
    try:
        ended = subprocess.run(
            trial, capture_output=True, stdin=subprocess.DEVNULL, env={"PATH": SAFE_PATH}, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as failed:
        return str(failed)
    error_lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if ended.returncode == 0 else error_lines[-1] if error_lines else f"exit code {ended.returncode}"
