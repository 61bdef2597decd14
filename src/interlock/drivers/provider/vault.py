"""The secrets and logins of one driver's server.

Each start of a server, or connection to it, is a run. Before a run, `DriverRevealer.begin` looks up each secret that
the driver file uses. It checks access before it fetches a value, and each reveal or denial leaves an audit row
without the value (AIP-19.audit-1). A value comes from the node's store, or from the backend that SECRETS.md names:
env://, file:// or keyring://. Values are kept only in memory and only until the next run begins: they are passed to the
process, and `redactor` removes them from the server's output.

`Logins` stores which logins have expired, so that a node does not try them again after it restarts.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.value_types import secret_slug
from interlock.core.clock import Clock, rfc3339
from interlock.credentials.secret_references import REVEALED, SecretResolver, Unobtainable
from interlock.drivers.protocol.files import inventory
from interlock.drivers.protocol.model import Driver
from interlock.drivers.workspace.declaration import Declared, read_record
from interlock.store.ports import KeyValue, StoreError
from interlock.store.sqlite.secrets import VALUE_BYTES_MAX, SealedSecrets

log = logging.getLogger("interlock.drivers")

ENVIRONMENT: Final = "env://"
FILE: Final = "file://"
KEYRING: Final = "keyring://"


class BackendFailed(Exception):
    """Error: the place where a secret is kept cannot be read. The message says what to do, and contains no secret
    value.
    """


async def fetch(slug: str, backend: str | None, vault: "Vault") -> str:
    """Return the value of a secret, or an empty string if there is none. `backend` is the place of the secret, such as
    env://NAME; None means the node's store.

    Raise BackendFailed if the backend cannot be read, and StoreError if the node's store cannot.
    """
    if backend is None:
        value = await vault.store.get("secret", slug, vault.clock.wall())
        return "" if value is None else value.decode("utf-8", "replace")
    if backend.startswith(ENVIRONMENT):
        return vault.environment.get(backend.removeprefix(ENVIRONMENT), "")
    if backend.startswith(FILE):
        return await asyncio.to_thread(_from_file, backend.removeprefix(FILE), vault.private)
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
            opened = _path_of(descriptor, real)
            # Folders are compared by file identity, not by name.
            around = {_identity(each) for each in (opened, *opened.parents)}
            if any(_identity(each) in around for each in private):
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
    """Return the path of the open file with this descriptor, or `otherwise` if the system does not report a path."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return otherwise


def _identity(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return path
    return status.st_dev, status.st_ino


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


DENIED: Final = "secret.reveal.denied"
ACCESS_DENIED: Final = "access_denied"
AUTH_REQUIRED: Final = "auth_required"

_encode = msgspec.json.Encoder().encode


class Vault(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a node that are needed to get the secrets of drivers."""

    store: SealedSecrets
    clock: Clock
    record: Callable[[bytes], None]  # into the audit log
    workspace: str
    environment: Mapping[str, str]
    private: tuple[Path, ...]  # of the node and its operator: no backend file:// reads there


class MissingSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that a server needs and does not get. `text` says why, and contains no secret value."""

    slug: str
    code: str  # auth_required: it is not there; access_denied: the inventory does not grant it
    text: str
    per_user: bool = False  # a user's own process could have it


class SecretsMissing(Unobtainable):
    """Error: a server cannot be started because secrets are missing."""

    def __init__(self, lacks: tuple[MissingSecret, ...]) -> None:
        super().__init__("; ".join(lack.text for lack in lacks))
        self.lacks = lacks


class DriverRevealer(SecretResolver):
    """Resolver that gets the secrets of one process of a driver's server, and records each access."""

    def __init__(
        self, vault: Vault, driver: Driver, declared: Declared, contracts: Collection[str], who: str | None
    ) -> None:
        """Prepare to get secrets for a process of `who`, a tenant or user. `contracts` are the ids of the contracts
        that the driver serves.
        """
        super().__init__(vault.store, vault.clock)
        self.redactor: inventory.Redactor = inventory.NOTHING
        self._vault = vault
        self._driver = driver
        self._inventory = declared.secrets
        self._own = declared.bound_secrets
        self._contracts = contracts
        self.who = who
        self._run = ""
        self._values: dict[str, str] = {}  # by the NAME that the driver uses

    def of_link(self, segment: str) -> SecretResolver:
        """Return this resolver for any segment, because it already belongs to a single process."""
        return self

    async def begin(self) -> None:
        """Get all secrets for a new run of the process.

        Raise SecretsMissing, which lists every secret that is missing or not granted, or StoreError if the store cannot
        be read.
        """
        self._run = secrets.token_hex(8)
        self._values = {}
        lacks: list[MissingSecret] = []
        for name in self._driver.secret_names:
            revealed = await self._reveal(name)
            if isinstance(revealed, MissingSecret):
                lacks.append(revealed)
            else:
                self._values[name] = revealed
        self.redactor = inventory.Redactor({self._slug(name): value for name, value in self._values.items()})
        if lacks:
            self._values = {}
            raise SecretsMissing(tuple({lack.slug: lack for lack in lacks}.values()))

    async def _secret(self, name: str) -> str:
        value = self._values.get(name)
        if value is not None:
            return value
        revealed = await self._reveal(name)
        if isinstance(revealed, MissingSecret):
            raise SecretsMissing((revealed,))
        return revealed

    def _slug(self, name: str) -> str:
        entry = self._inventory.get(name)
        return secret_slug(name) if entry is None else entry.slug

    async def _reveal(self, name: str) -> str | MissingSecret:
        driver, slug, entry = self._driver, self._slug(name), self._inventory.get(name)
        if entry is None:
            how = inventory.lines_to_describe(driver, name, slug)
            text = f"no inventory describes the secret {slug} ({inventory.UNDECLARED}): {how}"
            return MissingSecret(slug=slug, code=AUTH_REQUIRED, text=text)
        is_own = slug in self._own
        granted_by = inventory.find_grant(entry, driver, self._contracts, is_own=is_own, user=self.who)
        if granted_by is None:  # AIP-19.access-1
            self._record(DENIED, slug, None)
            per_user = entry.access is not None and any(grant.kind == inventory.USER for grant in entry.access.bind)
            how = inventory.lines_to_grant(driver, is_beside=None, has_access=entry.access is not None)
            text = f"its inventory does not let it have the secret {slug} ({ACCESS_DENIED}): {how}"
            return MissingSecret(slug=slug, code=ACCESS_DENIED, text=text, per_user=per_user)
        try:
            value = await fetch(slug, entry.backend, self._vault)
        except BackendFailed as failed:
            return MissingSecret(slug=slug, code=AUTH_REQUIRED, text=f"it needs the secret {slug}: {failed}")
        if not value:
            how = f"interlock secrets set {slug}" if entry.backend is None else f"{entry.backend} has none"
            return MissingSecret(slug=slug, code=AUTH_REQUIRED, text=f"it needs the secret {slug}: {how}")
        self._record(REVEALED, slug, granted_by)  # AIP-19.audit-1
        return value

    def _record(self, method: str, slug: str, granted_by: str | None) -> None:
        driver, at = self._driver, rfc3339(self._vault.clock.wall())
        context = {"driver": driver.key, "run": self._run, "workspace_id": self._vault.workspace, "user_id": self.who}
        self._vault.record(
            _encode(
                {
                    "at": at,
                    "who": f"driver:{driver.segment}",
                    "via": "drivers",
                    "method": method,
                    "tool": driver.segment,
                    "outcome": "ok" if granted_by is not None else ACCESS_DENIED,
                    "slug": slug,
                    "actor": f"driver:{driver.key}",
                    "purpose": f"server of {driver.key}, run {self._run}",  # AIP-19.audit-1
                    "context": context,
                    "timestamp": at,
                    "granted_by": granted_by,
                }
            )
        )


_NEEDS: Final = "the server behind this tool needs a credential first"


def login_text(driver: Driver, reason: str | None) -> str:
    """Return a text that says that a server needs a login or a secret, with the reason, and how to log in."""
    text = f"{_NEEDS}: {reason}" if reason else _NEEDS
    login = driver.auth.login if driver.auth is not None else None
    if login is not None and login.url is not None:
        text += f"; log in at {login.url}"
    if login is not None and login.cmd is not None:
        text += f"; log in with {login.cmd}"
    return text


BUCKET: Final = "driver-logins"


class _LoginRecord(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    secrets: dict[str, int | None]  # slug -> the revision that was refused


class Logins:
    """Record of which logins of a driver have expired. It survives a restart of the node (AIP-30.auth-2).

    There is one state per driver, workspace and user; `who` is None for a process that all callers share. A login stops
    being expired when the revision of one of the driver's secrets changes or an operator restarts the server.
    """

    def __init__(self, kv: KeyValue, vault: Vault, driver: Driver, slugs: Iterable[str]) -> None:
        self._kv = kv
        self._vault = vault
        self._driver = driver
        self._slugs = sorted(slugs)
        self.expired: dict[str | None, str] = {}  # by `who`, why
        self._loaded: set[str | None] = set()

    async def load(self, who: str | None) -> str | None:
        """Return why the login of `who`, a tenant or user, has expired. Return None if it is valid. Raise StoreError if
        the record cannot be read.
        """
        if who in self._loaded:
            return self.expired.get(who)
        entry = await self._kv.get(BUCKET, self._key(who), self._vault.clock.wall())
        self._loaded.add(who)
        record = None if entry is None else read_record(entry.value, _LoginRecord)
        if record is not None and record.secrets == await self._revisions():
            self.expired[who] = record.reason
        return self.expired.get(who)

    def expire(self, who: str | None, reason: str) -> None:
        """Mark the login of `who`, a tenant or user, as expired. Call `keep` afterwards to store this."""
        self._loaded.add(who)
        self.expired[who] = reason

    async def keep(self, who: str | None) -> None:
        """Write to the store whether the login of `who`, a tenant or user, has expired. If the store fails, only log
        the failure.
        """
        reason = self.expired.get(who)
        try:
            if reason is None:
                await self._kv.delete(BUCKET, self._key(who))
                return
            record = msgspec.json.encode(_LoginRecord(reason=reason, secrets=await self._revisions()))
            await self._kv.put(BUCKET, self._key(who), record, self._vault.clock.wall())
        except StoreError as error:
            log.warning("the login of %s could not be remembered: %s", self._driver.segment, error)

    def renew(self, who: str | None) -> bool:
        """Mark the login of `who`, a tenant or user, as valid. Return whether it had expired."""
        self._loaded.add(who)
        return self.expired.pop(who, None) is not None

    async def _revisions(self) -> dict[str, int | None]:
        now = self._vault.clock.wall()
        return {slug: await self._vault.store.find_revision("secret", slug, now) for slug in self._slugs}

    def _key(self, who: str | None) -> str:
        named = "\0".join((self._driver.id, self._vault.workspace, who or ""))
        return hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()
