"""The secrets of one driver's server: which it may have, what they are, and that it had them.

Each start or dial is a run. Before it, every secret the driver names is looked up in its inventory, access is judged
before anything is fetched, and each reveal or denial leaves a row in the audit log, without the value (AIP-19.audit-1).
Values are kept for the run alone: to be put into the process, and to be found again in what it says.
"""

import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.value_types import secret_slug
from interlock.core.clock import Clock, rfc3339
from interlock.credentials.errors import Unobtainable
from interlock.credentials.secret_references import SecretResolver
from interlock.drivers.protocol.model import Driver, Secret
from interlock.drivers.protocol.selection.redaction import NOTHING, Redactor
from interlock.drivers.protocol.selection.secret_access import USER, maybe_granted_by
from interlock.drivers.protocol.selection.secret_hints import UNDECLARED, lines_to_describe, lines_to_grant
from interlock.drivers.secrets.backends import BackendFailed, fetch
from interlock.store.sqlite.secrets import Secrets

REVEALED: Final = "secret.reveal"
DENIED: Final = "secret.reveal.denied"
ACCESS_DENIED: Final = "access_denied"
AUTH_REQUIRED: Final = "auth_required"

_encode = msgspec.json.Encoder().encode


class Vault(msgspec.Struct, frozen=True, kw_only=True):
    """The stores that all drivers share."""

    store: Secrets
    clock: Clock
    record: Callable[[bytes], None]  # into the audit log
    workspace: str
    environment: Mapping[str, str]
    private: tuple[Path, ...]  # of the node and its operator: no backend file:// reads there


class MissingSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret the driver cannot have. `text` is for people, and holds no value."""

    slug: str
    code: str  # auth_required: it is not there; access_denied: the inventory does not grant it
    text: str
    per_user: bool = False  # a user's own process could have it


class SecretsMissing(Unobtainable):
    def __init__(self, lacks: tuple[MissingSecret, ...]) -> None:
        super().__init__("; ".join(lack.text for lack in lacks))
        self.lacks = lacks


class DriverRevealer(SecretResolver):
    def __init__(
        self,
        vault: Vault,
        driver: Driver,
        inventory: Mapping[str, Secret],
        own: Collection[str],
        contracts: Collection[str],
        who: str | None,
    ) -> None:
        """`inventory`: by the NAME the driver uses; `own`: slugs of the SECRETS.md that its auth.ref names."""
        super().__init__(vault.store, vault.clock)
        self.redactor: Redactor = NOTHING
        self.lacks: tuple[MissingSecret, ...] = ()  # found at the last begin
        self._vault = vault
        self._driver = driver
        self._inventory = inventory
        self._own = own
        self._contracts = contracts
        self._who = who
        self._run = ""
        self._values: dict[str, str] = {}  # by NAME

    async def begin(self) -> None:
        """A new run. Raises SecretsMissing naming all that it cannot have, StoreError."""
        self._run = secrets.token_hex(8)
        self._values = {}
        self.lacks = ()
        lacks: list[MissingSecret] = []
        for name in self._driver.secret_names:
            found = await self._reveal(name)
            if isinstance(found, MissingSecret):
                lacks.append(found)
            else:
                self._values[name] = found
        self.redactor = Redactor({self._slug(name): value for name, value in self._values.items()})
        self.lacks = tuple({lack.slug: lack for lack in lacks}.values())
        if self.lacks:
            self._values = {}
            raise SecretsMissing(self.lacks)

    async def _secret(self, name: str) -> str:
        known = self._values.get(name)
        if known is not None:
            return known
        found = await self._reveal(name)
        if isinstance(found, MissingSecret):
            raise SecretsMissing((found,))
        return found

    def _slug(self, name: str) -> str:
        entry = self._inventory.get(name)
        return secret_slug(name) if entry is None else entry.slug

    async def _reveal(self, name: str) -> str | MissingSecret:
        driver, slug, entry = self._driver, self._slug(name), self._inventory.get(name)
        if entry is None:
            text = f"no inventory describes the secret {slug} ({UNDECLARED}): {lines_to_describe(driver, name, slug)}"
            return MissingSecret(slug=slug, code=AUTH_REQUIRED, text=text)
        is_own = slug in self._own
        granted_by = maybe_granted_by(entry, driver, self._contracts, is_own=is_own, user=self._who)
        if granted_by is None:  # AIP-19.access-1
            self._record(DENIED, slug, None)
            per_user = entry.access is not None and any(grant.kind == USER for grant in entry.access.bind)
            how = lines_to_grant(driver, is_beside=None, has_access=entry.access is not None)
            text = f"its inventory does not let it have the secret {slug} ({ACCESS_DENIED}): {how}"
            return MissingSecret(slug=slug, code=ACCESS_DENIED, text=text, per_user=per_user)
        vault = self._vault
        try:
            value = await fetch(
                slug,
                entry.backend,
                vault.store,
                vault.environment,
                vault.clock.wall(),
                private=vault.private,
            )
        except BackendFailed as failed:
            return MissingSecret(slug=slug, code=AUTH_REQUIRED, text=f"it needs the secret {slug}: {failed}")
        if not value:
            how = f"interlock secrets set {slug}" if entry.backend is None else f"{entry.backend} has none"
            return MissingSecret(slug=slug, code=AUTH_REQUIRED, text=f"it needs the secret {slug}: {how}")
        self._record(REVEALED, slug, granted_by)  # AIP-19.audit-1
        return value

    def _record(self, method: str, slug: str, granted_by: str | None) -> None:
        driver, at = self._driver, rfc3339(self._vault.clock.wall())
        context = {"driver": driver.key, "run": self._run, "workspace_id": self._vault.workspace, "user_id": self._who}
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
