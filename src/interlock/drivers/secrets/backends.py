"""Backends of secrets: the node's own store, or what `backend` in SECRETS.md names. A value is fetched for one use."""

import asyncio
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from interlock.store.sqlite.secrets import VALUE_BYTES_MAX, Secrets

ENVIRONMENT: Final = "env://"
FILE: Final = "file://"
KEYRING: Final = "keyring://"


class BackendFailed(Exception):
    """A backend cannot be asked; the message says what to do, and holds no value."""


async def fetch(
    slug: str,
    backend: str | None,
    store: Secrets,
    environment: Mapping[str, str],
    now: float,
    *,
    private: Iterable[Path] = (),
) -> str:
    """The value of a secret; empty where there is none. `private`: what no file:// reads. Raises BackendFailed,
    StoreError."""
    if backend is None:
        value = await store.get("secret", slug, now)
        return "" if value is None else value.decode("utf-8", "replace")
    if backend.startswith(ENVIRONMENT):
        return environment.get(backend.removeprefix(ENVIRONMENT), "")
    if backend.startswith(FILE):
        return await asyncio.to_thread(_from_file, backend.removeprefix(FILE), tuple(private))
    if backend.startswith(KEYRING):
        return await asyncio.to_thread(_from_keyring, backend.removeprefix(KEYRING))
    raise BackendFailed("its backend is not known: write env://NAME, file:///PATH or keyring://SERVICE/NAME, or none")


def _from_file(written: str, private: tuple[Path, ...]) -> str:
    path = Path(written).expanduser()
    if not path.is_absolute():
        raise BackendFailed("its backend file:// needs an absolute path")
    try:
        # The path is judged without links and opened without following one that came meanwhile, nor waiting for a pipe.
        real = Path(os.path.realpath(path))
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if _is_inside(_path_of(descriptor, real), private):
                raise BackendFailed("its file is in the data or configuration folder of the node, which is never read")
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                raise BackendFailed("its file is a pipe")
            data = file.read(VALUE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such path"
        raise BackendFailed(f"its file cannot be read ({why})") from None
    if len(data) > VALUE_BYTES_MAX:
        raise BackendFailed(f"its file has more than {VALUE_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


def _path_of(descriptor: int, otherwise: Path) -> Path:
    """The path of what was really opened, where the system says it."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return otherwise


def _is_inside(path: Path, places: Iterable[Path]) -> bool:
    """Compared by what the places are, whatever else they are called."""
    around = {_identity(each) for each in (path, *path.parents)}
    return any(_identity(each) in around for each in places)


def _identity(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return path
    return found.st_dev, found.st_ino


def _from_keyring(written: str) -> str:
    service, _, name = written.rpartition("/")
    if not service or not name:
        raise BackendFailed("its backend is to be written keyring://SERVICE/NAME")
    try:
        import keyring
        import keyring.errors
    except ModuleNotFoundError:
        raise BackendFailed("the system's keyring needs the package keyring: install interlock[keyring]") from None
    try:
        value: str | None = keyring.get_password(service, name)
    except keyring.errors.KeyringError as error:
        raise BackendFailed(f"the system's keyring cannot be asked ({type(error).__name__})") from None
    return value or ""
