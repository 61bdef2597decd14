"""Installs what a driver's server and install blocks name, apart from starting it, and says how to run it.

In: a driver, the folder it was read from, where packages are kept and, if it was installed before, its lock. Out:
`Installed`, or `InstallFailed` with every method tried. With a lock that still fits, exactly what it names is run,
installed again from it if it is gone; without one the methods are tried in order (AIP-30.install-1). Nothing here is
on the path of a call.
"""

import msgspec

from interlock.drivers.install.containers import ContainerRefused
from interlock.drivers.install.installation import (
    INSTALL_FAILED,
    Attempt,
    Installation,
    Installed,
    InstallFailed,
    Locked,
    MethodFailed,
    MethodResult,
)
from interlock.drivers.install.methods import Methods
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver, Install
from interlock.process.packages.references import PackageUnavailable


async def install(installation: Installation, lock: Locked | None = None) -> Installed | InstallFailed:
    """Install what the lock names, or try the methods of the driver in order if there is no lock that still fits."""
    # AIP-30.install-3
    if lock is not None and lock.asked == installation.digest and lock.method not in {"present", "vendored"}:
        return await _install_locked(installation, lock)
    return await _install_newest(installation)


async def _install_locked(installation: Installation, lock: Locked) -> Installed | InstallFailed:
    driver = installation.driver
    methods = Methods(installation)
    # Of two downloads take the one whose hash was recorded; one without a hash must have brought it.
    fitting = [entry.options for entry in _methods_of(driver) if entry.method == lock.method]
    recorded = (lock.integrity or "").removeprefix("sha256:")
    fitting.sort(key=lambda options: options.get("verify_sha256") not in {recorded, None})
    try:
        brought = await methods.repeat(lock, fitting[0] if fitting else {})
        installed = await _complete(installation, brought)
    except MethodFailed as error:
        reason = f"what was recorded cannot be run: {error}; run `interlock drivers update {driver.segment}`"
        attempt = Attempt(method=lock.method, reason=reason, output=error.output)
        return InstallFailed(code=error.code, attempts=(attempt,))
    return msgspec.structs.replace(installed, attempts=(Attempt(method=lock.method),))


async def _install_newest(installation: Installation) -> Installed | InstallFailed:
    driver = installation.driver
    methods = Methods(installation)
    attempts: list[Attempt] = []
    code = INSTALL_FAILED
    is_local = driver.server.address is None
    for entry in _methods_of(driver) if is_local else ():
        try:
            installed = await _complete(installation, await methods.attempt(entry))
        except MethodFailed as error:
            installation.progress(f"{entry.method}: {error}")
            attempts.append(Attempt(method=entry.method, reason=str(error), output=error.output))  # AIP-30.install-1
            code = error.code
            continue
        return msgspec.structs.replace(installed, attempts=(*attempts, Attempt(method=entry.method)))
    try:
        present = kind_of(driver.server).find_present(driver.server, installation)
    except MethodFailed as error:
        attempts.append(Attempt(method="present", reason=str(error)))
        return InstallFailed(code=error.code, attempts=tuple(attempts))
    if present is not None:
        done = (*attempts, Attempt(method="present")) if is_local else ()
        return msgspec.structs.replace(present, attempts=done)
    return InstallFailed(code=code, attempts=tuple(attempts))  # AIP-30.install-1


def _methods_of(driver: Driver) -> tuple[Install, ...]:
    return driver.install or kind_of(driver.server).implied_methods(driver.server)  # AIP-30.install-1


async def _complete(installation: Installation, brought: MethodResult) -> Installed:
    """Return the command of this kind of server from what a method brought. Raises MethodFailed."""
    server = installation.driver.server
    try:
        return await kind_of(server).complete(server, installation, brought)
    except (PackageUnavailable, ContainerRefused) as error:
        raise MethodFailed(str(error), error.output, getattr(error, "code", INSTALL_FAILED)) from error
    except OSError as error:
        raise MethodFailed(f"{installation.root} cannot be used: {error.strerror}; correct its rights") from error
