"""Download of one file over HTTPS, the check of its hash, and the program inside of it. POSIX only.

`download` writes what an address answers to a file and returns its SHA-256. A file that is too large, incomplete or
has another hash leaves nothing behind. Downloads go through the proxies of the node's environment and follow
redirects, never from https to http.

`take_program` takes one program out of a tar or zip archive. What else the archive holds is not unpacked, so that no
path in it can lead elsewhere.
"""

import asyncio
import contextlib
import hashlib
import os
import stat
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final
from urllib.parse import urlsplit

from interlock.net.protocol.address_scope import is_loopback

FILE_BYTES_MAX: Final = 512 * 1024 * 1024
MEMBERS_MAX: Final = 100_000  # of an archive
DOWNLOAD_LIMIT_S: Final = 300.0
SILENCE_S: Final = 30.0
_CHUNK: Final = 256 * 1024
_PROGRAM_MODE: Final = 0o755


class DownloadFailed(Exception):
    """An error raised if the file cannot be downloaded. The message says why, and what to do."""


async def download(url: str, sha256: str | None, into: Path, *, limit_s: float = DOWNLOAD_LIMIT_S) -> str:
    """Download `url` to the file `into` and return its SHA-256 in hex.

    `sha256` is the expected hash; None accepts any. Raise DownloadFailed if the file cannot be downloaded or differs.
    """
    check_address(url)
    stop = threading.Event()
    try:
        async with asyncio.timeout(limit_s):
            # The thread looks at `stop` after every piece, so a cancelled download ends with its next one.
            return await asyncio.to_thread(_fetch, url, sha256, into, stop)
    except TimeoutError as error:
        raise DownloadFailed(f"the download took longer than {limit_s:g} s and was ended; check the network") from error
    finally:
        stop.set()


def check_address(url: str) -> None:
    """Raise DownloadFailed unless `url` is https, or http with a loopback host."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise DownloadFailed("this is not the address of a file; write https://host/path") from error
    if not (host and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))):
        raise DownloadFailed("files are only fetched over https; write https://host/path")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A redirect handler that follows redirects only to addresses that `check_address` accepts."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: object, newurl: str
    ) -> urllib.request.Request | None:
        check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _fetch(url: str, sha256: str | None, into: Path, stop: threading.Event) -> str:
    """Download to a temporary file beside `into`, check its hash, and rename it. This function runs in a thread of its
    own.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    half = into.with_name(f"{into.name}.half")
    request = urllib.request.Request(url, headers={"User-Agent": "interlock"})  # noqa: S310 - checked above
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(request, timeout=SILENCE_S) as answer, half.open("wb") as file:
            digest, size = hashlib.sha256(), 0
            while piece := answer.read(_CHUNK):
                size += len(piece)
                if stop.is_set() or size > FILE_BYTES_MAX:
                    raise DownloadFailed(f"the file is larger than {FILE_BYTES_MAX} bytes, or its reader is gone")
                digest.update(piece)
                file.write(piece)
            declared = answer.headers.get("Content-Length")
            if declared is not None and declared.isdigit() and int(declared) != size:
                raise DownloadFailed("the connection ended before the whole file had come; try again")
        actual_sha256 = digest.hexdigest()
        if sha256 is not None and actual_sha256 != sha256:
            raise DownloadFailed(
                f"the file has SHA-256 {actual_sha256}, not the one in verify_sha256; do not use it before you know why"
            )
        half.replace(into)
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadFailed(f"the server answered {error.code}; check the address") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadFailed(f"the file cannot be fetched: {reason}; check address and network") from error
    finally:
        half.unlink(missing_ok=True)
    return actual_sha256


def take_program(archive: Path, wanted: str, into: Path) -> None:
    """Extract the program `wanted` from a tar or zip archive to `into`, and make it executable.

    If `archive` is not an archive, the file itself is the program. Raise DownloadFailed if the program cannot be taken.
    """
    half = into.with_name(f"{into.name}.half")
    try:
        with _open_member(archive, wanted) as source, half.open("wb") as target:
            size = 0
            while piece := source.read(_CHUNK):
                size += len(piece)
                if size > FILE_BYTES_MAX:
                    raise DownloadFailed(f"{wanted} is larger than {FILE_BYTES_MAX} bytes")
                target.write(piece)
        half.chmod(_PROGRAM_MODE)
        half.replace(into)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, OSError) as error:
        raise DownloadFailed(f"the archive cannot be unpacked: {error}; check the address") from error
    finally:
        half.unlink(missing_ok=True)


@contextlib.contextmanager
def _open_member(archive: Path, wanted: str) -> Iterator[IO[bytes]]:
    """Open the wanted file of a zip or tar archive. If the file is not an archive, open the file itself."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            names = []
            for each in packed.infolist()[:MEMBERS_MAX]:
                mode = each.external_attr >> 16  # of the file system; 0 if the archive was made elsewhere
                if not each.is_dir() and (not mode or not stat.S_IFMT(mode) or stat.S_ISREG(mode)):
                    names.append(each.filename)
            with packed.open(_choose_member(names, wanted)) as source:
                yield source
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as unpacked:
            names = [each.name for _, each in zip(range(MEMBERS_MAX), unpacked, strict=False) if each.isreg()]
            member = unpacked.extractfile(_choose_member(names, wanted))
            if member is None:
                raise DownloadFailed(f"{wanted} is no file in the archive; correct extract_bin")
            with member as source:
                yield source
    else:
        with archive.open("rb") as source:
            yield source


def _choose_member(names: list[str], wanted: str) -> str:
    """Return the archive member with the path `wanted`. If there is none, return the only member with that file name.

    Raise DownloadFailed unless exactly one member matches.
    """
    path = PurePosixPath(os.path.normpath(wanted))
    exact = [name for name in names if PurePosixPath(os.path.normpath(name)) == path]
    matches = exact or [name for name in names if PurePosixPath(name).name == path.name]
    if len(matches) != 1:
        how = "holds no" if not matches else "holds more than one"
        raise DownloadFailed(f"the archive {how} {wanted}; name its path inside the archive in extract_bin")
    return matches[0]
