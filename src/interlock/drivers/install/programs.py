"""Finds the program of a binary server: its path as the driver file writes it, to the file that is run."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from interlock.drivers.install.installation import INSTALL_FAILED, PATH_ESCAPE


class NoProgram(Exception):
    def __init__(self, message: str, code: str = INSTALL_FAILED) -> None:
        super().__init__(message)
        self.code = code


def find_program(path: str, *, folder: Path, workspace: Path, brought: Sequence[Path], search: str) -> Path:
    """AIP-server-1: absolute, or relative to the driver's folder, or a bare name. `brought`: what installing it made,
    where a bare name is looked for before `search`, the PATH. Raises NoProgram."""
    if os.sep in path:
        found = Path(path) if path.startswith(os.sep) else inside(path, folder=folder, workspace=workspace)
        if not found.is_file():
            raise NoProgram(f"{path} does not exist; install the server or correct server.path")
        if not os.access(found, os.X_OK):
            raise NoProgram(f"{path} is not executable; run chmod +x on it, or correct server.path")
        return found
    for place in brought:
        candidate = place / path if place.is_dir() else place
        if candidate.name == path and candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    on_path = shutil.which(path, path=search)
    if on_path is None:
        raise NoProgram(f"no program {path!r} is on the PATH; install the server or write the whole path")
    return Path(on_path).absolute()


def inside(path: str, *, folder: Path, workspace: Path) -> Path:
    """A path of the file, which must not lead out of the workspace, not through a symlink either."""
    found = folder / path
    if not found.resolve().is_relative_to(workspace.resolve()):
        raise NoProgram(
            f"{path} leads out of the workspace; keep the file inside, or write an absolute path", PATH_ESCAPE
        )
    return Path(os.path.normpath(found))
