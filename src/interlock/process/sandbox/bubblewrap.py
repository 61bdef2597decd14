"""bubblewrap (bwrap): whether it works on this machine, and the options that make it show one view and nothing else.

The options are passed through a file in memory, not as arguments: they hold the values of environment variables, and
every user of the machine can read the arguments of a process. They are not the environment of bwrap either, because
the dynamic linker would obey it outside of the sandbox.

`EgressDenial` is here because people read about a host that was refused beside the command that permits it.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from interlock.drivers.protocol.server_name import server_name
from interlock.process.sandbox.host_paths import ROOT, SandboxFailed
from interlock.process.sandbox.mounts import Mount, MountKind


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


def remedy(segment: str, entries: Sequence[str], host: str) -> str:
    """Return how an operator can permit the host in addition to `entries`.

    Links of drivers are named ID@MAJOR, with +TENANT if there is one.
    """
    segment, _, _ = segment.partition("+")
    if "@" in segment:
        return f"allow with: interlock drivers allow {server_name(segment)} {host}"
    listed = ", ".join(f'"{each}"' for each in (*entries, host))
    return f"allow with: egress = [{listed}] in [servers.{segment}] of interlock.toml"


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
    """The tool bwrap on this machine, after a successful trial, with the options that separate a sandbox."""

    def __init__(self, program: str, base: tuple[str, ...]) -> None:
        self.program, self._base = program, base

    def words(self, mounts: list[Mount], env: Mapping[str, str], cwd: Path, *, make_cwd: bool, nothing: Path) -> bytes:
        """Return the options that bwrap reads from a file.

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
    """Return the options of one mount.

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
    """Return the tool, after searching for it and trying it once. Raise SandboxFailed if it does not work.

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
    """Run the tool once, and return its error or an empty string if it works."""
    trial = (program, *base, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/sh", "-c", ":")
    try:
        ended = subprocess.run(
            trial, capture_output=True, stdin=subprocess.DEVNULL, env={"PATH": SAFE_PATH}, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as failed:
        return str(failed)
    error_lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if ended.returncode == 0 else error_lines[-1] if error_lines else f"exit code {ended.returncode}"
