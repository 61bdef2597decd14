"""Secrets: passwords and tokens for servers, in secrets.db, each sealed with AES-256-GCM.

The key is in a separate file, secrets.key (0600), created with the first secret; it may be a link to one kept
elsewhere. So a copy of the database alone reveals nothing. A sealed value is bound to its name, so that no entry can be
put in another's place. Names are not encrypted: `names` needs no key. Neither file exists before the first secret, and
`cryptography` is not imported before it.

A lost key is never replaced silently. Only a database without secrets gets a new one; otherwise the operator learns
that the old key is missing.

Times are arguments: the module has no clock.
"""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from interlock.store.ports import Damaged, FolderUnusable, StoreRefused
from interlock.store.sqlite.store import STORE_SCHEMA, SqliteStore, open_for_reading

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRETS_FILE: Final = "secrets.db"
KEY_FILE: Final = "secrets.key"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
VALUE_BYTES_MAX: Final = 64 * 1024
_SCHEMA: Final = msgspec.structs.replace(STORE_SCHEMA, application_id=0x494C5345)  # "ILSE"
_VERSION: Final = b"\x01"
_BOUND: Final = b"interlock\0%b\0%b"  # what a sealed value is bound to: its kind and its name

Kind = Literal["secret", "token", "client"]  # a person's own; a server's access token; our registration at an issuer
KINDS: Final[tuple[Kind, ...]] = ("secret", "token", "client")


def names_on_disk(data: Path, kind: Kind) -> frozenset[str]:
    """Return the names of all stored secrets of one kind. The key is not needed, and a node may be running. Raise
    StoreError if the file cannot be opened.
    """
    path = data / SECRETS_FILE
    if not path.exists():
        return frozenset()
    db = open_for_reading(path, _SCHEMA)
    try:
        return frozenset(key for (key,) in db.execute("SELECT key FROM kv WHERE bucket = ?", (kind,)))
    finally:
        db.close()


class SealedSecrets:
    """The encrypted secrets of a node, identified by kind and name."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._store: SqliteStore | None = None
        self._cipher: AESGCM | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Open the file with the secrets if it exists. Otherwise storing the first secret creates it."""
        if (self._data / SECRETS_FILE).exists():
            await self._open_store()

    async def close(self) -> None:
        store, self._store, self._cipher = self._store, None, None
        if store is not None:
            await store.close()

    async def names(self, kind: Kind, now: float) -> list[str]:
        return [] if self._store is None else [entry.key for entry in await self._store.kv.entries(kind, now)]

    async def get(self, kind: Kind, name: str, now: float) -> bytes | None:
        entry = None if self._store is None else await self._store.kv.get(kind, name, now)
        return None if entry is None else self._unseal(kind, name, entry.value)

    async def find_revision(self, kind: Kind, name: str, now: float) -> int | None:
        """Return a number that changes each time the secret is stored, or None if it does not exist. No key is
        needed.
        """
        entry = None if self._store is None else await self._store.kv.get(kind, name, now)
        return None if entry is None else entry.revision

    async def put(self, kind: Kind, name: str, value: bytes, now: float) -> None:
        """Encrypt and store a secret. Raise StoreRefused if it is too large."""
        if len(value) > VALUE_BYTES_MAX:
            raise StoreRefused(f"a secret has at most {VALUE_BYTES_MAX} bytes")
        store = await self._open_store()
        nonce = os.urandom(NONCE_BYTES)
        sealer = self._cipher
        if sealer is None:
            # Only an empty store gets a new key: a lost key is never replaced silently.
            sealer = self._sealer(make=not any([await self.names(kind, now) for kind in KINDS]))
        sealed = sealer.encrypt(nonce, value, _BOUND % (kind.encode(), name.encode()))
        await store.kv.put(kind, name, _VERSION + nonce + sealed, now)

    async def remove(self, kind: Kind, name: str) -> bool:
        return False if self._store is None else await self._store.kv.delete(kind, name)

    async def _open_store(self) -> SqliteStore:
        async with self._opening:
            if self._store is None:
                store = SqliteStore(self._data, file=SECRETS_FILE, schema=_SCHEMA)
                await store.open()
                self._store = store
            return self._store

    def _unseal(self, kind: Kind, name: str, sealed: bytes) -> bytes:
        """Decrypt the stored value of a secret. Raise Damaged if the key is missing or does not open the value."""
        cipher = self._sealer(make=False)
        from cryptography.exceptions import InvalidTag

        nonce, rest = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            return cipher.decrypt(nonce, rest, _BOUND % (kind.encode(), name.encode()))
        except (InvalidTag, ValueError):
            raise Damaged(
                f"{SECRETS_FILE} holds an entry that {KEY_FILE} does not open. Put the right key in its place, "
                f"or remove the entry with `interlock secrets remove {name} --kind {kind}`."
            ) from None

    def _sealer(self, *, make: bool) -> "AESGCM":
        """Return the cipher for the secrets. On first use, read its key from a file, or create the key if `make` is set
        and it is missing.
        """
        if self._cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # here: it takes 10 MiB

            self._cipher = AESGCM(_key(self._data / KEY_FILE, make=make))
        return self._cipher


def _key(path: Path, *, make: bool) -> bytes:
    """Return the key in the file `path`. With `make`, create a missing file. Raise Damaged if the key is missing or too
    short or long, and FolderUnusable if the file cannot be used.
    """
    from interlock.crypto.signing import write_once

    try:
        if make and not path.exists():
            write_once(path, os.urandom(KEY_BYTES))
        key = path.read_bytes()
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except FileNotFoundError:
        raise Damaged(
            f"{path.name} is gone, and without it {SECRETS_FILE} cannot be read. Put it back, or remove "
            f"{SECRETS_FILE} and store the secrets again."
        ) from None
    except OSError as error:
        raise FolderUnusable(f"{path} cannot be used ({error.strerror}).") from error
    if len(key) != KEY_BYTES:
        raise Damaged(f"{path.name} is not a key of {KEY_BYTES} bytes. Put the right one in its place.")
    return key
