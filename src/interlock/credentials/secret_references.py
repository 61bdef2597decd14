"""The resolver of `${secrets.NAME}` in configuration, and the exceptions for credentials that cannot be obtained.

Configuration values refer to secrets by name. The resolver replaces the references immediately before a value is used
to start a process or to connect. Therefore a changed secret needs no restart of the node, and no plain text is kept in
memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from interlock.config.secret_uses import STORE, SecretUse
from interlock.config.value_types import HEADER_VALUE, SECRET_REFERENCE, secret_slug
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.current_plan import CurrentPlan
from interlock.store.sqlite.secrets import Kind, SealedSecrets

REVEALED: Final = "secret.reveal"


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


def withheld_reason(use: SecretUse) -> str:
    """Return why a link does not get a secret, and what a person has to do."""
    # Without its store, the node has no inbox.
    approve = "" if use.segment == STORE else "approve it in the inbox (interlock approvals), or "
    return (
        f"no one has confirmed yet that the secret {use.secret} may go to {use.target}: {approve}"
        f"set the secret again for it: interlock secrets set {use.secret} --for {use.destinations}"
    )


def reveal_line(slug: str, segment: str, now: float) -> bytes:
    """Return the audit record of a secret that a link gets. It never contains the value."""
    return AuditRecord.event(now, f"link:{segment}", "links", REVEALED, segment, verdict="ok", slug=slug)


@dataclass(eq=False)
class SecretResolver:
    """A resolver of references such as `${secrets.NAME}`. It replaces them by the secrets that operators stored.

    The resolver of a link (`of_link`) gives no secret whose use a person has to confirm first, and records each secret
    that it gives, once.
    """

    _secrets: SealedSecrets
    _clock: Clock
    _current: CurrentPlan | None = None  # with the uses that are withheld
    _record_line: Callable[[bytes], None] | None = None  # writes to the audit log
    _segment: str | None = None  # of the link that gets the secrets
    _recorded: set[str] = field(default_factory=set, init=False)

    def of_link(self, segment: str) -> "SecretResolver":
        """Return a resolver for one process or connection of a link."""
        return SecretResolver(self._secrets, self._clock, self._current, self._record_line, segment)

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
        uses = self._current.plan.withheld_secrets if self._current is not None else ()
        # AX-11.N-3: a use that no person confirmed gets no value
        for use in uses:
            if use.segment == self._segment and use.secret == slug:
                raise Unobtainable(withheld_reason(use))
        value = await self._secrets.get("secret", slug, self._clock.wall())
        if value is None:
            raise Unobtainable(f"it needs the secret {slug}: interlock secrets set {slug}")
        if self._record_line is not None and self._segment is not None and slug not in self._recorded:
            self._recorded.add(slug)
            self._record_line(reveal_line(slug, self._segment, self._clock.wall()))  # AX-11.N-3: each reveal
        return value.decode("utf-8", "replace")
