"""Backends of secrets: the node's own store, or what `backend` in SECRETS.md names. A value is fetched for one use."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlock.store.sqlite.secrets import VALUE_BYTES_MAX, Secrets

ENVIRONMENT: Final = "env://"
FILE: Final = "file://"
KEYRING: Final = "keyring://"


class BackendFailed(Exception):
    """A backend cannot be asked; the message says what to do, and holds no value."""


async def fetch(slug: str, backend: str | None, store: Secrets, environment: Mapping[str, str], now: float) -> str:
    """The value of a secret; empty where there is none. Raises BackendFailed, StoreError."""
    if backend is None:
        value = await store.get("secret", slug, now)
        return "" if value is None else value.decode("utf-8", "replace")
    if backend.startswith(ENVIRONMENT):
        return environment.get(backend.removeprefix(ENVIRONMENT), "")
    if backend.startswith(FILE):
        return await asyncio.to_thread(_from_file, backend.removeprefix(FILE))
    if backend.startswith(KEYRING):
        return await asyncio.to_thread(_from_keyring, backend.removeprefix(KEYRING))
    raise BackendFailed("its backend is not known: write env://NAME, file:///PATH or keyring://SERVICE/NAME, or none")


def _from_file(written: str) -> str:
    path = Path(written).expanduser()
    if not path.is_absolute():
        raise BackendFailed("its backend file:// needs an absolute path")
    try:
        with path.open("rb") as file:
            data = file.read(VALUE_BYTES_MAX + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise BackendFailed(f"its file cannot be read ({error.strerror})") from None
    if len(data) > VALUE_BYTES_MAX:
        raise BackendFailed(f"its file has more than {VALUE_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


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
