"""The version check: is what was installed inside the range the driver was written for (AIP-30.version-1, -2)?

In: a driver and what was installed for it. Out: the version, or why it does not fit. Where the command names the very
package of an npm or PyPI server, the version is that of the package and nothing is started: such servers have no
--version, and take it for a directory or begin to serve. The pattern is a stranger's, and a search with it cannot be
interrupted, so a process of its own does it and is ended with the time limit.
"""

import sys
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from interlock.drivers.install.commands import (
    CommandFailed,
    CommandRunner,
    plain_runner,
    run_command,
    words_of,
)
from interlock.drivers.install.installation import VERSION_MISMATCH, Attempt, Installed, InstallFailed, Note
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.files.versions import parse_version, satisfies, semantic
from interlock.drivers.protocol.model import Driver, VersionCheck

SEARCHED_BYTES_MAX: Final = 16 * 1024  # a version stands near the start of what is printed
_SEARCH: Final = (
    "import re, sys\n"
    "found = re.search(sys.argv[1], sys.argv[2])\n"
    "sys.stdout.write((found[1] or '')[:300] if found else '')\n"
)


class VersionFits(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    note: Note | None = None


class VersionMismatch(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


async def check_version(
    driver: Driver, installed: Installed, running: CommandRunner
) -> VersionFits | VersionMismatch | None:
    """Check the installed version. None: the driver has no version_check."""
    check = driver.version_check
    if check is None:
        return None
    try:
        words = words_of(check.cmd)
        kind = kind_of(driver.server)
        if kind.names_package(driver.server, words) and installed.version is not None:  # AIP-30.version-2
            note = Note(
                code="version_from_package",
                message=f"the version is that of the installed package, {installed.version}; the command was not run",
            )
            return _compare_version(check, semantic(installed.version), note)
        ran = await run_command(kind.resolve_program(driver.server, words, installed), check.timeout_ms, running)
        if ran.returncode != 0:  # AIP-30.version-2
            return VersionMismatch(reason=f"the command {ran.reason}; correct version_check.cmd")
        version = await _version_text(check, ran.stdout)
    except CommandFailed as error:
        return VersionMismatch(reason=f"the command {error}; correct version_check.cmd")
    return _compare_version(check, version, None)


async def _version_text(check: VersionCheck, stdout: bytes) -> str:
    text = stdout[:SEARCHED_BYTES_MAX].decode(errors="replace").replace("\0", "")
    words = (sys.executable, "-I", "-S", "-X", "utf8", "-c", _SEARCH, check.parse, text)
    try:
        ran = await run_command(words, check.timeout_ms, plain_runner(None))
    except CommandFailed as error:
        raise CommandFailed(f"is searched with a pattern that {error}") from error
    return ran.stdout.decode(errors="replace").strip()


def _compare_version(check: VersionCheck, version: str, note: Note | None) -> VersionFits | VersionMismatch:
    if not version:
        return VersionMismatch(reason="version_check.parse finds nothing in what the command prints; correct it")
    if parse_version(version) is None:  # AIP-30.version-1
        return VersionMismatch(reason="what version_check.parse finds is no version like 1.2.3; correct the pattern")
    if not satisfies(version, check.range):  # AIP-30.version-1
        return VersionMismatch(reason=f"version {version} is not in {check.range}; install another, or correct range")
    return VersionFits(version=version, note=note)


async def install_checked(
    driver: Driver,
    installer: Callable[[bool], Awaitable[Installed | InstallFailed]],
    running_of: Callable[[Installed], CommandRunner],
) -> Installed | InstallFailed:
    """Install, check, and after a mismatch install once more, without the lock (AIP-30.version-1).

    `installer(anew)` calls `install`, with no lock when `anew`. `running_of`: where the command runs.
    """
    attempts: list[Attempt] = []
    for anew in (False, True):
        installed = await installer(anew)
        if isinstance(installed, InstallFailed):
            return msgspec.structs.replace(installed, attempts=(*attempts, *installed.attempts))
        verdict = await check_version(driver, installed, running_of(installed))
        attempts += installed.attempts
        if not isinstance(verdict, VersionMismatch):
            notes = (*installed.notes, verdict.note) if verdict is not None and verdict.note else installed.notes
            version = installed.version if verdict is None else verdict.version
            return msgspec.structs.replace(installed, version=version, notes=notes, attempts=tuple(attempts))
        attempts.append(Attempt(method="version_check", reason=verdict.reason))
    return InstallFailed(code=VERSION_MISMATCH, attempts=tuple(attempts))  # AIP-30.version-1
