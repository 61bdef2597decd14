"""The resolver of `${secrets.NAME}` in configuration, and the exceptions for credentials that cannot be obtained.

Configuration values refer to secrets by name. The resolver replaces the references immediately before a value is used
to start a process or to connect. Therefore a changed secret needs no restart of the node, and no plain text is kept in
memory.
"""

from collections.abc import Mapping
from typing import Literal

from interlock.config.value_types import HEADER_VALUE, SECRET_REFERENCE, secret_slug
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.store.sqlite.secrets import Kind, SealedSecrets


class Unobtainable(Exception):
    """Exception for a credential that the node cannot obtain for a server. The message tells the operator what happened
    and what to do.

    Unobtainable
      NoOAuth        the server refuses the credential and names no authorization server
      TokenRefused   the authorization server refused to give a token; `code` is its error code

    `passing` is true if the same attempt may work later.
    """

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class NoOAuth(Unobtainable):
    """Exception for a server that refuses the credential and names no authorization server that could issue a token."""


class TokenRefused(Unobtainable):
    """Exception for an authorization server that refuses to issue a token. `code` is its error code."""

    def __init__(self, code: str) -> None:
        super().__init__(f"its authorization server refuses us a token: {code}")
        self.code = code


def secret_line(event: Literal["set", "remove"], kind: Kind, name: str, by: str, now: float) -> bytes:
    """Return the audit record of storing or removing a secret. It never contains the value."""
    outcome = "kept" if event == "set" else "removed"
    names = {"secret_kind": kind, "secret_name": name}
    return AuditRecord.event(now, by, "operator", f"secrets/{event}", verdict=outcome, **names)


class SecretResolver:
    """A resolver of references such as `${secrets.NAME}`. It replaces them by the secrets that operators stored."""

    def __init__(self, secrets: SealedSecrets, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock

    async def begin(self) -> None:
        """Prepare to resolve the secrets of a process or a connection that starts. Raise Unobtainable or StoreError.

        This class does nothing here; the resolver of a driver checks that the driver may use its secrets.
        """

    async def text(self, text: str) -> str:
        """Return a text with its references replaced by secrets.

        Raise Unobtainable if a secret does not exist, or StoreError if the store cannot be read.
        """
        pieces: list[str] = []
        end = 0
        for reference in SECRET_REFERENCE.finditer(text):
            pieces += (text[end : reference.start()], await self._secret(reference[1]))
            end = reference.end()
        return "".join((*pieces, text[end:]))

    async def table(self, table: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of a table in which the references in the values are replaced by secrets. Raise Unobtainable or
        StoreError.
        """
        return {name: await self.text(text) for name, text in table.items()}

    async def headers(self, table: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of HTTP headers in which the references in the values are replaced by secrets.

        Raise Unobtainable if a secret does not exist or a value is not allowed in a header, or StoreError.
        """
        resolved = await self.table(table)
        for name, value in resolved.items():
            if not HEADER_VALUE.fullmatch(value):
                raise Unobtainable(f"a secret in its header {name} has invalid characters for a header: set it again")
        return resolved

    async def _secret(self, name: str) -> str:
        """Return the value of the secret with this name in a reference. The resolver of a driver overrides this
        method.
        """
        slug = secret_slug(name)
        value = await self._secrets.get("secret", slug, self._clock.wall())
        if value is None:
            raise Unobtainable(f"it needs the secret {slug}: interlock secrets set {slug}")
        return value.decode("utf-8", "replace")
