"""The resolver of `${secrets.NAME}`: the secret is put in at the last moment, for one use, and not kept here."""

from collections.abc import Mapping
from typing import Literal

from interlock.config.value_types import HEADER_VALUE, SECRET_REFERENCE, secret_slug
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.credentials.errors import Unobtainable
from interlock.store.sqlite.secrets import Kind, Secrets

# The records of the audit log for secrets that are set and removed: which, by whom; never the value.


def secret_line(event: Literal["set", "remove"], kind: Kind, name: str, by: str, now: float) -> bytes:
    outcome = "kept" if event == "set" else "removed"
    return AuditRecord.event(
        now,
        by,
        "operator",
        f"secrets/{event}",
        verdict=outcome,
        secret_kind=kind,
        secret_name=name,
    )


class SecretResolver:
    def __init__(self, secrets: Secrets, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock

    async def begin(self) -> None:
        """Something that needs secrets is about to be started or dialled. Raises Unobtainable, StoreError."""

    async def text(self, text: str) -> str:
        """Replace the references in a text by their secrets. Raise Unobtainable if a secret is not set, or
        StoreError.
        """
        pieces: list[str] = []
        end = 0
        for reference in SECRET_REFERENCE.finditer(text):
            pieces += (text[end : reference.start()], await self._secret(reference[1]))
            end = reference.end()
        return "".join((*pieces, text[end:]))

    async def table(self, table: Mapping[str, str]) -> dict[str, str]:
        return {name: await self.text(text) for name, text in table.items()}

    async def headers(self, table: Mapping[str, str]) -> dict[str, str]:
        """Replace the references in header values by their secrets. Raise Unobtainable if a value cannot be in a
        header.
        """
        resolved = await self.table(table)
        for name, value in resolved.items():
            if not HEADER_VALUE.fullmatch(value):
                raise Unobtainable(f"a secret in its header {name} is no value that a header can carry: set it anew")
        return resolved

    async def _secret(self, name: str) -> str:
        slug = secret_slug(name)
        value = await self._secrets.get("secret", slug, self._clock.wall())
        if value is None:
            raise Unobtainable(f"it needs the secret {slug}: interlock secrets set {slug}")
        return value.decode("utf-8", "replace")


def secrets_named(*texts: str) -> frozenset[str]:
    """Return the slugs of the secrets that these texts refer to."""
    return frozenset(secret_slug(reference[1]) for text in texts for reference in SECRET_REFERENCE.finditer(text))
