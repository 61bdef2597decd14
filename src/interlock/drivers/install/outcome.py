"""Outcomes of an installation: a command and a record of what exactly it runs, or why there is none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

INSTALL_FAILED: Final = "install_failed"
PATH_ESCAPE: Final = "path_escape"  # AIP-server-1
VERSION_MISMATCH: Final = "version_mismatch"  # AIP-30.version-1

Method = Literal["npm", "pip", "docker", "download", "curl", "vendored", "present"]


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    """What was installed, exactly (AIP-30.install-3). Kept under id@major; a restart runs this and nothing newer."""

    asked: str  # what server and install said: when the file asks for something else, the lock counts no more
    method: Method
    package: str = ""  # the name alone
    version: str | None = None
    integrity: str | None = None  # npm's sha512-…, sha256:… of a wheel, an image or a file
    pins: str = ""  # package-lock.json, requirements with hashes, or name@digest: every byte below it as well


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One method that was tried; `reason` None: it succeeded."""

    method: str
    reason: str | None = None
    output: tuple[str, ...] = ()  # the last of what an installer said


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be shown with the driver that keeps nothing from working."""

    code: str
    message: str


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """`command` stands before server.args; nothing of it is a secret. A remote server has none."""

    command: tuple[str, ...]
    version: str | None
    lock: Locked
    reads: tuple[Path, ...] = ()  # what a sandbox has to show the program
    writes: tuple[Path, ...] = ()  # caches without which it does not start
    env: Mapping[str, str] = {}  # of the node's own, which the command needs beside server.env
    url: str | None = None  # where a container serves HTTP
    attempts: tuple[Attempt, ...] = ()
    notes: tuple[Note, ...] = ()


class InstallFailed(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    attempts: tuple[Attempt, ...] = ()

    @property
    def reason(self) -> str:
        """The reason for `interlock drivers show`: every method with what kept it from succeeding."""
        return "; ".join(f"{attempt.method}: {attempt.reason}" for attempt in self.attempts if attempt.reason)
