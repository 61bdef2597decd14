"""Installs what a driver's server and install blocks name, apart from starting it, and says how to run it.

In: a driver, the folder it was read from, where packages are kept and, if it was installed before, its lock. Out:
`Installed`, or `InstallFailed` with every method tried. With a lock that still fits, exactly what it names is run,
installed again from it if it is gone; without one the methods are tried in order (AIP-30.install-1). Nothing here is
on the path of a call.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from interlock.protocol.drivers.messages import Driver
from interlock.runtime.drivers.installed import Installed, InstallFailed, Locked
from interlock.transport.warden import Warden


class InstallSettings(Protocol):
    """What the operator allows; `config.plan.DriversPlan` has it."""

    @property
    def allow_unverified_install(self) -> bool: ...

    @property
    def npx(self) -> bool: ...


async def install(
    driver: Driver,
    *,
    packages: Path,
    folder: Path,
    lock: Locked | None,
    progress: Callable[[str], None],
    warden: Warden | None,
    settings: InstallSettings,
    workspace: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Installed | InstallFailed:
    """`folder` holds the DRIVER.md; paths of the file may lead anywhere below `workspace` (default: `folder`)."""
    raise NotImplementedError
