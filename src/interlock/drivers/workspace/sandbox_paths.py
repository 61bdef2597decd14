"""Paths of this machine that a driver's file opens to its server, and what they really are. Blocking."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from interlock.drivers.protocol.model import Docker, Driver, FileAccess, Remote

Use = Literal["read", "write", "deny"]


class DeclaredPath(msgspec.Struct, frozen=True, kw_only=True):
    place: str  # in DRIVER.md, as a JSON pointer
    use: Use
    path: Path
    is_implied: bool = False  # an argument, and granted only if it may follow from one (AIP-security-5)

    @property
    def real(self) -> Path:
        return Path(os.path.realpath(self.path))


def path_of(folder: Path, written: str) -> Path:
    """A path of the file: relative to the folder of DRIVER.md, without `..`."""
    return Path(os.path.normpath(folder / Path(written).expanduser()))


def declared_paths(driver: Driver, folder: Path) -> Iterator[DeclaredPath]:
    server = driver.server
    if isinstance(server, Remote):
        return
    if isinstance(server, Docker):
        for index, volume in enumerate(server.volumes):
            source = volume.partition(":")[0]
            if source.startswith("/"):
                yield DeclaredPath(place=f"/server/volumes/{index}", use="write", path=Path(source))
        return
    fs = (driver.sandbox.fs if driver.sandbox is not None else None) or FileAccess()
    uses: tuple[tuple[Use, tuple[str, ...]], ...] = (("read", fs.read), ("write", fs.write), ("deny", fs.deny))
    for use, written in uses:
        for index, each in enumerate(written):
            yield DeclaredPath(place=f"/sandbox/fs/{use}/{index}", use=use, path=path_of(folder, each))
    for index, each in enumerate(driver.auth.state.paths if driver.auth is not None else ()):
        yield DeclaredPath(place=f"/auth/state/paths/{index}", use="write", path=path_of(folder, each))
    for index, each in enumerate(server.args if driver.sandbox is None else ()):
        path = Path(each)
        if path.is_absolute() and os.path.lexists(path):
            yield DeclaredPath(place=f"/server/args/{index}", use="write", path=path, is_implied=True)
