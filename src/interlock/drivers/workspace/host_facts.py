"""Facts about this machine, in the words of AIP-30 `requires`."""

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Final

from interlock.drivers.protocol.selection.requirements import Machine

_OS: Final = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
_ARCH: Final = {
    "x86_64": "x64",
    "amd64": "x64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "i386": "x86",
    "i686": "x86",
    "armv7l": "arm",
    "armv6l": "arm",
}
_MB: Final = 1024 * 1024


def this_machine(packages: Path) -> Machine:
    """The facts of this machine. `packages`: where servers are installed."""
    return Machine(
        os=_OS.get(sys.platform),
        arch=_ARCH.get(platform.machine().lower()),
        disk_mb=_disk_mb(packages),
        memory_mb=_memory_mb(),
    )


def _disk_mb(path: Path) -> float | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free / _MB
    except OSError:
        return None


def _memory_mb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _MB
    except (AttributeError, ValueError, OSError):
        return None
