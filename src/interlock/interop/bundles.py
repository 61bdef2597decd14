"""MCPB and DXT bundles: zip files with a manifest, read without unpacking, unpacked into a folder of their own.

A bundle is a file from outside: names that leave the folder, links, encrypted parts and more than it may hold are
refused before the first byte is written. The folder is named after the bundle's digest and does not change.
"""

import hashlib
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from interlock.interop.protocol.package_files import MANIFEST

FILE_BYTES_MAX: Final = 512 * 1024 * 1024
UNPACKED_BYTES_MAX: Final = 1024 * 1024 * 1024
ENTRIES_MAX: Final = 50_000
MANIFEST_BYTES_MAX: Final = 4 * 1024 * 1024
_CHUNK: Final = 1024 * 1024


class BadBundle(Exception):
    """The file cannot be used; the text says why."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    target: Path  # where it is, or will be, unpacked
    manifest: bytes


def look_into(path: Path, packages: Path) -> Bundle:
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > FILE_BYTES_MAX:
                raise BadBundle(f"it is no file of at most {FILE_BYTES_MAX // (1024 * 1024)} MiB")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        with zipfile.ZipFile(path) as archive:
            _check(archive)
            with archive.open(MANIFEST) as manifest:
                data = manifest.read(MANIFEST_BYTES_MAX + 1)
    except KeyError:
        raise BadBundle(f"it holds no {MANIFEST}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
        raise BadBundle("it is not a zip file that can be read") from None
    except OSError as error:
        raise BadBundle(f"it cannot be read ({error.strerror})") from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise BadBundle(f"its {MANIFEST} is too large")
    return Bundle(path=path, target=packages / "bundles" / digest[:32], manifest=data)


def unpack(bundle: Bundle) -> None:
    """Unpack the bundle whole or not at all; do nothing where it is unpacked already."""
    if bundle.target.is_dir():
        return
    try:
        bundle.target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=bundle.target.parent, prefix=".unpacking-"))
    except OSError as error:
        raise BadBundle(f"{bundle.target.parent} cannot be written ({error.strerror})") from None
    try:
        with zipfile.ZipFile(bundle.path) as archive:
            left = UNPACKED_BYTES_MAX
            for entry in _check(archive):
                left -= _write(archive, entry, beside, left)
        beside.chmod(0o755)
        beside.rename(bundle.target)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        if not bundle.target.is_dir():  # another import was quicker
            raise BadBundle(f"it cannot be unpacked ({error})") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the file entries of an archive. Raise BadBundle for the whole archive if any entry is refused."""
    entries = archive.infolist()
    if len(entries) > ENTRIES_MAX:
        raise BadBundle(f"it holds more than {ENTRIES_MAX} files")
    if sum(entry.file_size for entry in entries) > UNPACKED_BYTES_MAX:
        raise BadBundle(f"it is larger than {UNPACKED_BYTES_MAX // (1024 * 1024)} MiB when unpacked")
    for entry in entries:
        if fault := next(_faults(entry), None):
            raise BadBundle(f"a file in it {fault}")
    return [entry for entry in entries if not entry.is_dir()]


def _faults(entry: zipfile.ZipInfo) -> Iterator[str]:
    name = PurePosixPath(entry.orig_filename)
    if name.is_absolute() or ".." in name.parts or "\\" in entry.orig_filename or ":" in entry.orig_filename:
        yield "would be written outside of its folder"
    if "\0" in entry.orig_filename or not entry.filename.strip("/. "):
        yield "has no name that can be used"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        yield "is a link or a device"
    if entry.flag_bits & 0x1:
        yield "is encrypted"


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, left: int) -> int:
    """Write one entry; returns its bytes. The sizes that the archive states are not trusted."""
    path = folder / entry.filename
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadBundle("a file in it would be written outside of its folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(entry) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > left:
                raise BadBundle(f"it is larger than {UNPACKED_BYTES_MAX // (1024 * 1024)} MiB when unpacked")
            file.write(chunk)
    path.chmod(0o755 if (entry.external_attr >> 16) & 0o111 else 0o644)
    return written
