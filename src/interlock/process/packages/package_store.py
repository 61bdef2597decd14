"""The package store: installed packages that all data folders of a user share. POSIX only.

Two data folders that need the same package share one installation. A package in the store is a folder whose name says
what exactly is installed: registry, name, version, the versions and hashes of everything below it, and the platform and
interpreter that it was installed for. Nothing is changed in it after it was installed.

    STORE/npm/NAME@VERSION-DIGEST/   one package, read-only, with interlock-package.json
    STORE/npm/.NAME@...-DIGEST.hex/  a package while it is installed
    STORE/.locks/                    one file for each package, which one installer locks at a time
    STORE/.uses/                     for each package, which data folders use it

A package is installed into a temporary folder and renamed when it is complete, so a killed installer leaves no package.
Each use checks it first: all files must belong to the user and have the content that was installed. What differs is
installed again. That another user or a program in a sandbox writes here is prevented. A program that runs unconfined as
the same user can write everything that the user can write, including the record of the content.

A data folder has a record of each package that it uses, and the store remembers where this record is. `prune` removes
the packages of which no record is left. It takes the same locks as installers.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.folders import package_folder
from interlock.config.plan import Plan
from interlock.process.packages.programs import PackageUnavailable, Registry

MANIFEST: Final = "interlock-package.json"
USE: Final = "interlock-installed.json"  # in the data folder
UNREADABLE: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)  # for a file that is not as it was written
# A container with another host name cannot be looked into. Its data folder counts as gone after this time.
OTHER_HOST_S: Final = 30 * 24 * 3600.0
_REGISTRIES: Final[tuple[Registry, ...]] = ("npm", "pypi")
_DIGEST_CHARS: Final = 32
_SUFFIX_BYTES: Final = 4
_CHUNK_BYTES: Final = 1024 * 1024
_WRITABLE: Final = 0o222


class PackageFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The folder for records of one data folder, and the store of all data folders of a user."""

    own: Path
    store: Path


def package_folders(plan: Plan) -> PackageFolders:
    """Return the folders of packages that a node with this plan uses."""
    store = package_folder(os.environ) if plan.packages is None else plan.packages
    return PackageFolders(own=plan.data / "packages", store=store)


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The record in a data folder that says which package the data folder uses.

    `seen` is a digest of the properties of all files when their content was last checked. As long as it is the same,
    the content need not be read again: the time of a file's last change cannot be set.
    """

    entry: str
    seen: str
    python: str


class StoredPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package in the store, its size, and the records that use it."""

    entry: str
    size: int
    users: tuple[str, ...]


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the manifest file of a package. `content` is the digest of all other files."""

    entry: str
    content: str


class _User(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a data folder's record, and the machine on which it is."""

    record: str
    host: str


class PackageStore:
    """The package store in one folder. Its methods block. Call those that read whole packages in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # npm writes a lock that is useless elsewhere for a folder behind a symlink

    def entry(self, registry: Registry, label: str, identity: tuple[str, ...]) -> Path:
        """Return the folder of a package. `identity` is everything that decides about its content."""
        digest = hashlib.sha256(msgspec.json.encode((registry, label, identity))).hexdigest()
        return self.folder / registry / f"{label}-{digest[:_DIGEST_CHARS]}"

    def lock(self, entry: Path) -> Path:
        """Return the file to lock while a package is installed or removed."""
        return self.folder / ".locks" / f"{entry.parent.name}-{entry.name}.lock"

    def prepare(self) -> None:
        """Create the folder of the store. Raise PackageUnavailable if other users could write in it, and OSError if it
        cannot be made.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = self.folder.lstat()
        reason = None
        if own.st_uid not in (os.geteuid(), 0):
            reason = "it belongs to another user"
        # AIP-30.install-5: a store in which others may write
        elif own.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            reason = "other users may write in it"
        for parent in self.folder.parents:
            mode = parent.stat().st_mode
            if reason is None and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                reason = f"every user may write in {parent}"
        if reason is not None:
            raise PackageUnavailable(
                f"packages are not installed in {self.folder}: {reason}; correct that, or set 'packages'"
            )

    def use(self, entry: Path, record: Path) -> None:
        """Remember that a data folder uses a package. `record` is its record, which need not exist yet."""
        user = self._user_file(entry, record)
        user.parent.mkdir(parents=True, exist_ok=True)
        write_whole(user, _User(record=str(record), host=socket.gethostname()))

    def has_user(self, entry: Path, record: Path) -> bool:
        """Return whether the store lists this record of a data folder among the users of the package."""
        return self._user_file(entry, record).is_file()

    def find_seen(self, entry: Path, seen: str | None) -> str | None:
        """Return the digest of the files' properties if the package is complete and unchanged, and None otherwise.

        `seen` is the digest from an earlier check. If it is still the same, the content is not read.
        """
        try:
            manifest = msgspec.json.decode((entry / MANIFEST).read_bytes(), type=_Manifest)
            now = _properties_digest(entry)
            is_whole = manifest.entry == self._name(entry) and (
                now == seen or _content_digest(entry) == manifest.content
            )
            # A Python that was removed is outside of the package.
            is_whole = is_whole and (entry.parent.name != "pypi" or (entry / "bin" / "python").exists())
        except (OSError, *UNREADABLE, _Foreign):
            return None
        return now if is_whole else None

    def make_incoming(self, entry: Path) -> Path:
        """Create a temporary folder in which a package is installed, and remove temporary folders that killed
        installers left behind. The caller must hold the lock of the package.

        Its path is longer than that of the package: a path in the first line of a script that is short enough there
        is short enough afterwards.
        """
        self._sweep(entry)
        incoming = entry.with_name(f".{entry.name}.{secrets.token_hex(_SUFFIX_BYTES)}")
        incoming.mkdir(mode=0o700, parents=True)
        return incoming

    def adopt(self, incoming: Path, entry: Path) -> None:
        """Make an installed package read-only, record its content, and move it to its final place. A package that is
        already there is removed.
        """
        _replace_paths(incoming, entry)
        for path, info in _walk(incoming):
            if not stat.S_ISLNK(info.st_mode):
                path.chmod(stat.S_IMODE(info.st_mode) & 0o555)  # AIP-30.install-5: read-only
        manifest = incoming / MANIFEST
        write_whole(manifest, _Manifest(entry=self._name(entry), content=_content_digest(incoming)))
        manifest.chmod(0o444)
        if entry.exists():
            _retire(entry)
        incoming.rename(entry)
        # Some systems do not rename a folder that is read-only. A package that is still writable is installed again.
        entry.chmod(0o555)
        self._sweep(entry)

    def packages(self) -> Iterator[StoredPackage]:
        """Yield all packages in the store."""
        for entry in self._entries():
            users = tuple(sorted({str(each) for each in self._users(entry)}))
            yield StoredPackage(entry=self._name(entry), size=_size(entry), users=users)

    def prune(self) -> Iterator[StoredPackage]:
        """Remove packages that no data folder uses, and what killed installers left. Yield each package that was
        removed. A package that is being installed stays.
        """
        for entry in self._entries():
            with _try_lock(self.lock(entry)) as is_locked:
                # asked again: a node may have begun to use it
                if is_locked and not any(self._users(entry)):
                    removed = StoredPackage(entry=self._name(entry), size=_size(entry), users=())
                    _retire(entry)
                    self._sweep(entry)
                    shutil.rmtree(self._uses(entry), ignore_errors=True)
                    yield removed
        for registry in _REGISTRIES:
            for left in sorted((self.folder / registry).glob(".*.*")):
                entry = left.with_name(Path(left.name[1:]).stem)
                with _try_lock(self.lock(entry)) as is_locked:
                    if is_locked:
                        remove_tree(left)

    def _entries(self) -> Iterator[Path]:
        for registry in _REGISTRIES:
            for entry in sorted((self.folder / registry).glob("[!.]*")):
                if (entry / MANIFEST).is_file():
                    yield entry

    def _name(self, entry: Path) -> str:
        return f"{entry.parent.name}/{entry.name}"

    def _uses(self, entry: Path) -> Path:
        return self.folder / ".uses" / f"{entry.parent.name}-{entry.name}"

    def _user_file(self, entry: Path, record: Path) -> Path:
        digest = hashlib.sha256(os.fsencode(record)).hexdigest()
        return self._uses(entry) / f"{digest[:_DIGEST_CHARS]}.json"

    def _users(self, entry: Path) -> Iterator[Path]:
        """Yield the records of data folders that use a package."""
        for file in sorted(self._uses(entry).glob("*.json")):
            try:
                user = msgspec.json.decode(file.read_bytes(), type=_User)
                age_s = time.time() - file.stat().st_mtime
            except (OSError, *UNREADABLE):
                continue
            record = Path(user.record)
            use = find_use(record)
            is_elsewhere = user.host != socket.gethostname() and not record.parent.exists()
            if (is_elsewhere and age_s < OTHER_HOST_S) or (use is not None and use.entry == self._name(entry)):
                yield record

    def _sweep(self, entry: Path) -> None:
        for left in entry.parent.glob(f".{_escaped(entry.name)}.*"):
            remove_tree(left)


def find_use(record: Path) -> Use | None:
    """Return a data folder's record of a package, or None if there is none that can be read."""
    try:
        return msgspec.json.decode(record.read_bytes(), type=Use)
    except (OSError, *UNREADABLE):
        return None


def write_whole(path: Path, value: msgspec.Struct) -> None:
    """Write a file so that it is either complete or as it was before."""
    half = path.with_name(f"{path.name}.{secrets.token_hex(_SUFFIX_BYTES)}.half")
    half.write_bytes(msgspec.json.encode(value))
    half.replace(path)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one that is read-only. Ignore errors."""
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(path).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


class _Foreign(Exception):
    """An error raised if a file of a package belongs to another user."""


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all files, links and folders of a package, in one order, except its manifest. Links are not followed."""
    return (each for each in _walk_all(folder) if each[0] != folder / MANIFEST)


def _walk_all(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda each: each.name)
    for each in entries:
        if each.is_dir(follow_symlinks=False):
            yield from _walk_all(Path(each.path))
        yield Path(each.path), each.stat(follow_symlinks=False)


def _content_digest(folder: Path) -> str:
    """Return a digest of names, modes and content of all files of a package."""
    digest = hashlib.sha256()
    for path, info in _walk(folder):
        if stat.S_ISLNK(info.st_mode):
            content = os.fsencode(path.readlink()).hex()
        elif stat.S_ISREG(info.st_mode):
            content = _file_digest(path)
        else:
            content = ""
        name = os.fsencode(path.relative_to(folder)).hex()
        mode = 0 if stat.S_ISLNK(info.st_mode) else stat.S_IMODE(info.st_mode)
        digest.update(f"{name} {stat.S_IFMT(info.st_mode)} {mode} {content}\n".encode())
    return digest.hexdigest()


def _properties_digest(folder: Path) -> str:
    """Return a digest of the properties of all files of a package. Raise _Foreign if one belongs to another user."""
    digest = hashlib.sha256()
    users = (os.geteuid(), 0)
    for path, info in ((folder, folder.lstat()), *_walk(folder)):
        # AIP-30.install-5: a file that may be written, or of another user
        if info.st_uid not in users or (info.st_mode & _WRITABLE and not stat.S_ISLNK(info.st_mode)):
            raise _Foreign(str(path))
        # A folder's own time changes when it is renamed.
        times = (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns) if path != folder else ()
        digest.update(f"{os.fsencode(path).hex()} {info.st_mode} {times}\n".encode())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _size(folder: Path) -> int:
    return sum(info.st_size for _, info in _walk(folder) if stat.S_ISREG(info.st_mode))


def _replace_paths(incoming: Path, entry: Path) -> None:
    """Write the final path into the scripts and settings of a virtual environment, in place of the temporary one."""
    scripts = incoming / "bin"
    files = [incoming / "pyvenv.cfg", *(scripts.iterdir() if scripts.is_dir() else ())]
    before, after = os.fsencode(incoming), os.fsencode(entry)
    for file in files:
        if file.is_file() and not file.is_symlink() and before in (content := file.read_bytes()):
            file.write_bytes(content.replace(before, after))


def _retire(entry: Path) -> None:
    """Rename the folder of a package before it is removed, so that a package that is only partly
    removed is never used.
    """
    entry.chmod(0o700)
    entry.rename(entry.with_name(f".{entry.name}.{secrets.token_hex(_SUFFIX_BYTES)}"))


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Hold a file lock while the context is active, if it is free. The value is whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _escaped(name: str) -> str:
    """Return a name in which no character has a meaning in a glob."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)
