"""The scan for driver files: finds folders with a driver and detects changes in them. It blocks and opens no file.

The scan runs every second, so it only lists folders and reads the status of files. A folder's mark is a digest of the
status of everything in it: a folder with the same mark need not be read again. Links are listed and not followed. There
are limits for everything that a person can make large.

This is the only module about drivers that a node without drivers needs.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from interlock.config.plan import Plan
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.server_name import exposed_segment

DRIVER_FILE: Final = "DRIVER.md"
DRAFT_FILE: Final = "DRIVER.draft.md"
TOOL_FILE: Final = "TOOL.md"
SECRETS_FILE: Final = "SECRETS.md"
DRIVERS: Final = ".drivers"
TOOLS: Final = ".tools"
SECRETS: Final = ".secrets"

FILES_MAX: Final = 10_000  # in one driver's folder, or below .tools
FOLDERS_MAX: Final = 2_000  # in one root
DEPTH_MAX: Final = 16

Stat = tuple[int, int, int, int, int]


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that contains driver folders. A driver in a root of a lower rank takes precedence (AIP-file-1)."""

    kind: Literal["workspace", "own", "configured"]
    rank: int
    path: Path
    below_tools: bool = False  # a driver may be at any depth, beside a TOOL.md


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder with a DRIVER.md. `mark` changes whenever a file in it changes, and is None if the folder is a link."""

    root: Root
    path: Path
    mark: bytes | None


class ScanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files that concern the drivers of a workspace, with their modification times and other status."""

    folders: tuple[FoundFolder, ...] = ()
    contracts: tuple[tuple[Path, Stat | None], ...] = ()  # every TOOL.md below .tools
    inventories: tuple[tuple[Path, Stat | None], ...] = ()  # every SECRETS.md of the workspace itself
    others: tuple[tuple[Path, Stat | None], ...] = ()  # further files that were asked for
    real_paths: tuple[tuple[Path, str], ...] = ()  # of paths that drivers open to their servers
    drafts: tuple[Path, ...] = ()
    problems: tuple[FileProblem, ...] = ()


def roots_of(plan: Plan) -> tuple[Root, ...]:
    """Return the folders in which drivers are searched for, without repetitions."""
    own = (Root(kind="own", rank=1, path=plan.drivers.own),) if plan.drivers.own is not None else ()
    roots = (
        Root(kind="workspace", rank=0, path=plan.workspace / DRIVERS),
        Root(kind="workspace", rank=0, path=plan.workspace / TOOLS, below_tools=True),
        *own,
        *(Root(kind="configured", rank=rank, path=path) for rank, path in enumerate(plan.drivers.paths, 2)),
    )
    return tuple({root.path: root for root in reversed(roots)}.values())[::-1]


def has_roots(roots: Iterable[Root]) -> bool:
    """Return whether at least one of these folders, in which drivers are searched for, exists."""
    return any(root.path.is_dir() for root in roots)


def scan_workspace(
    plan: Plan, others: Iterable[Path] = (), staged: FoundFolder | None = None, opened: Iterable[Path] = ()
) -> ScanResult:
    """Find all files that concern the drivers of a workspace.

    `others` are further files in the workspace whose changes matter. `staged` is a folder outside the roots that is
    treated as a replacement for the folder of the same name. `opened` are paths that drivers open to their servers.
    """
    folders: list[FoundFolder] = []
    drafts: list[Path] = []
    problems: list[FileProblem] = []
    contracts: list[tuple[Path, Stat | None]] = []
    for root in roots_of(plan):
        if not root.path.is_dir():
            continue
        if root.kind == "workspace" and not inside(root.path, plan.workspace):
            message = "it is a link out of the workspace, and not followed"
            hint = "name the folder in drivers.paths instead"
            problems.append(FileProblem(file=str(root.path), code="path_escape", message=message, hint=hint))
            continue
        if root.below_tools:
            folders += _beside_tools(root, contracts, problems)
        else:
            folders += _driver_folders(root, drafts, problems)
    if staged is not None:
        folders = [staged, *(folder for folder in folders if folder.path.name != staged.path.name)]
    result = ScanResult(contracts=tuple(contracts), drafts=tuple(drafts), problems=tuple(problems))
    if not folders:
        return result
    return msgspec.structs.replace(
        result,
        folders=tuple(folders),
        inventories=tuple((path, find_status(path)) for path in _inventories(plan.workspace / SECRETS)),
        others=tuple((path, find_status(path)) for path in sorted(set(others))),
        real_paths=tuple((path, os.path.realpath(path)) for path in sorted(set(opened))),
    )


def inside(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder after all links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def is_text(name: str) -> bool:
    """Return whether a file name can be printed. File systems also allow names with line breaks or
    invalid characters.
    """
    return name.isprintable()


def find_driver_folder(workspace: Path, called: str, *files: str) -> Path | None:
    """Return the folder of a driver in the workspace, or None if there is none or the name is ambiguous.

    `called` is the driver's id or the name of its server. The folder must contain at least one of `files`.
    """
    there = [folder for folder in (workspace / DRIVERS).glob("*") if any((folder / name).is_file() for name in files)]
    named = [folder for folder in there if exposed_segment(folder.name) == called]
    exact = [folder for folder in there if folder.name == called]
    return exact[0] if exact else named[0] if len(named) == 1 else None


def find_status(path: Path) -> Stat | None:
    """Return the modification time and other status of a file. Return None if it does not exist or cannot be
    examined.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  (the same, without more Paths every second)
    except (OSError, ValueError):
        return None
    return _stat(status)


def walk(top: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all files below `top`, each with its relative path and status, in a fixed order.

    Links are not followed. The walk stops after FILES_MAX + 1 entries. A folder at DEPTH_MAX is yielded itself and not
    entered. Folders and entries that cannot be examined are left out.
    """
    left = [("", 0)]
    count = 0
    while left:
        prefix, depth = left.pop()
        try:
            with os.scandir(top / prefix if prefix else top) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in listed:
            name = f"{prefix}{entry.name}"
            try:
                if entry.is_dir(follow_symlinks=False) and depth < DEPTH_MAX:
                    left.append((f"{name}/", depth + 1))
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield name, status
            count += 1
            if count > FILES_MAX:
                return


def mark_of(folder: Path) -> bytes:
    """Return a digest of the names, sizes and modification times of all files in a folder, which any change of a file
    changes.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, status in walk(folder):
        digest.update(f"{name}\0{_stat(status)}\n".encode("utf-8", "surrogateescape"))
    return digest.digest()


def _stat(status: os.stat_result) -> Stat:
    # With the time of the last change of the status: the time of the content can be set back.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode


def _driver_folders(root: Root, drafts: list[Path], problems: list[FileProblem]) -> Iterator[FoundFolder]:
    """Yield the driver folders directly below `root`.

    Folders that contain only a draft are added to `drafts` instead.
    """
    for name, is_link in _folders(root.path, problems):
        folder = root.path / name
        try:
            # The names are listed, because a file system may take driver.md for the same file.
            with os.scandir(folder) as entries:
                names = {entry.name for entry in entries if entry.name in (DRIVER_FILE, DRAFT_FILE)}
        except OSError:
            continue
        if DRIVER_FILE in names:
            yield FoundFolder(root=root, path=folder, mark=None if is_link else mark_of(folder))
        elif DRAFT_FILE in names:
            drafts.append(folder)


def _folders(path: Path, problems: list[FileProblem]) -> list[tuple[str, bool]]:
    """Return the names of the folders in `path`, each with whether it is a symbolic link.

    Return at most FOLDERS_MAX of them. Folders that are left out are reported in `problems`.
    """
    try:
        with os.scandir(path) as entries:
            folders = sorted((entry.name, entry.is_symlink()) for entry in entries if entry.is_dir())
    except OSError:
        return []
    for name, _ in folders:
        if not is_text(name):
            message = f"the folder {name!r} is not looked at: its name is no plain text"
            problems.append(FileProblem(file=str(path), code="name_invalid", message=message, hint="rename it"))
    folders = [each for each in folders if is_text(each[0])]
    if len(folders) > FOLDERS_MAX:
        hint = "move some of them into a folder of their own and name it in drivers.paths"
        message = f"there are more than {FOLDERS_MAX} folders here, and the rest is not looked at"
        problems.append(FileProblem(file=str(path), code="too_many_drivers", message=message, hint=hint))
    return folders[:FOLDERS_MAX]


def _beside_tools(
    root: Root, contracts: list[tuple[Path, Stat | None]], problems: list[FileProblem]
) -> Iterator[FoundFolder]:
    """Yield the folders below .tools that have a DRIVER.md beside a TOOL.md, as AIP-14 allows.

    All TOOL.md files that are found are added to `contracts`.
    """
    drivers: list[Path] = []
    for count, (name, status) in enumerate(walk(root.path)):
        path = root.path / name
        if count == FILES_MAX:
            message = f"there are more than {FILES_MAX} files here, and the rest is not looked at"
            hint = "keep only contracts here"
            problems.append(FileProblem(file=str(root.path), code="too_many_files", message=message, hint=hint))
        elif not is_text(name):
            continue
        elif path.name == TOOL_FILE:
            contracts.append((path, _stat(status)))
        elif path.name == DRIVER_FILE:
            drivers.append(path.parent)
    beside = {path.parent for path, _ in contracts}
    for folder in drivers:
        if folder in beside:
            yield FoundFolder(root=root, path=folder, mark=mark_of(folder))


def _inventories(secrets: Path) -> Iterator[Path]:
    """Yield .secrets/SECRETS.md and each .secrets/<service>/SECRETS.md that exists (AIP-19.file-3)."""
    if not secrets.is_dir():
        return
    for folder in (secrets, *(secrets / name for name, is_link in _folders(secrets, []) if not is_link)):
        path = folder / SECRETS_FILE
        if path.is_file():
            yield path
