"""The check of mounts: does a sandbox show what was judged, and not what was put there meanwhile?

Between the judgement of a path and its mount another program may swap a folder for a link, and back. So what was judged
is remembered by its device and inode, and compared with what is mounted while bubblewrap holds the program back.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlock.process.sandbox.errors import SandboxFailed

WAIT_S: Final = 10.0  # for bubblewrap to have mounted everything
LOOK_S: Final = 0.001

Identity = tuple[int, int]  # device, inode


def identity_of(path: Path) -> Identity:
    """Of what is at this path without any link on the way. Raises SandboxFailed."""
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
    """Compares with what the process inside sees. Raises SandboxFailed. Blocks for some milliseconds."""
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


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _changed(path: Path) -> SandboxFailed:
    return SandboxFailed("sandbox_invalid", f"{path} became another while it was looked at")
