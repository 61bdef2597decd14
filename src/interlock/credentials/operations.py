"""Operations on secrets, whose values are never shown, and on consents to OAuth tokens. Each change is recorded."""

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET

from interlock.approvals.secret_bindings import SecretBindings
from interlock.config.secret_uses import referenced_secrets
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock
from interlock.core.operator_errors import refused_as
from interlock.core.recorder import Recorder
from interlock.core.views import view_of
from interlock.credentials import api
from interlock.credentials.secret_references import Unobtainable, secret_line
from interlock.credentials.service import CredentialService
from interlock.credentials.token import ConsentPage
from interlock.drivers.protocol.server_name import server_name
from interlock.fronts.audience import Audience
from interlock.links.connected_link import ServerLink
from interlock.links.operations import Keepers, find_keeper, shown_names
from interlock.links.own_links import OwnLinks
from interlock.operator.operation import handles
from interlock.store.sqlite.secrets import KINDS, Kind
from interlock.wire.refusal import NotFound, Refused


@dataclass(eq=False)
class SecretOperations:
    """The operations of the operator API on stored secrets."""

    credentials: CredentialService
    bindings: SecretBindings
    keepers: Keepers
    own: Mapping[str, OwnLinks]
    restart_drivers: Callable[[str], Iterable[str]]
    recorder: Recorder
    clock: Clock

    @handles(api.LIST_SECRETS)
    async def list_all(self) -> api.Secrets:
        names = await self.credentials.secret_names()
        bound = await self.bindings.list_all()
        return api.Secrets(
            secrets=tuple(
                api.Secret(kind=kind, name=name, destinations=bound.get(name, ()) if kind == "secret" else ())
                for kind, name in names
            )
        )

    @handles(api.SET_SECRET)
    async def set(self, body: api.SetSecret, by: str) -> api.StoredSecret:
        """Store a secret with its destinations, and restart the servers that refer to it. Raise Refused or StoreError.

        With `unless_kept`, an existing secret is not replaced; `state` in the result is then new, same or differs.
        """
        if body.unless_kept:
            before = await self.credentials.secrets.get("secret", body.name, self.clock.wall())
            if before is not None:
                is_same = hmac.compare_digest(before, body.value.encode())
                return api.StoredSecret(name=body.name, state="same" if is_same else "differs", restarted=())
        for name in body.destinations:
            if not self.bindings.find_keys(body.name, name):
                reference = body.name.replace("-", "_").upper()
                message = (
                    f"{name} does not use the secret {body.name}: write ${{secrets.{reference}}} there first, or name "
                    "a host, such as api.example.com or localhost:1883"
                )
                raise refused_as(api.BAD_DESTINATION, message)
        # AX-11.N-3: a destination holds for the value alone with which it was named
        await self.bindings.forget(body.name)
        await self.credentials.set_secret(body.name, body.value)
        await self.bindings.bind(body.name, body.destinations)
        await self._record("set", "secret", body.name, by)
        # Restart the servers whose configuration or driver refers to the secret.
        users = [
            keeper
            for keeper in self.keepers.values()
            if keeper.is_offered
            and isinstance(keeper.link, ServerLink)
            and body.name in referenced_secrets(keeper.link.plan)
        ]
        for keeper in users:
            await keeper.restart()
        segments = (*(keeper.link.segment for keeper in users), *self.restart_drivers(body.name))
        names = shown_names(self.keepers)
        restarted = tuple(names.get(segment, segment) for segment in segments)
        return api.StoredSecret(name=body.name, state="new" if body.unless_kept else UNSET, restarted=restarted)

    @handles(api.REMOVE_SECRET)
    async def remove(self, kind: str, name: str, by: str) -> api.RemovedSecret:
        """Remove a secret, a token for a server, or a client registration. Raise NotFound, Refused or StoreError."""
        checked: Kind | None = next((candidate for candidate in KINDS if candidate == kind), None)
        if checked is None:
            raise Refused("unknown_path", "the operator endpoint has no such path", status=404)
        if not await self.credentials.secrets.remove(checked, name):
            raise NotFound("secret", name, [existing for _, existing in await self.credentials.secret_names()])
        if checked == "secret":
            await self.bindings.forget(name)
        if checked == "token":
            # The holder of the token stops using it: first, so that this happens even if the log cannot be written. If
            # the token was the node's own, the link is restarted too.
            segment, _, principal = name.partition(" ")
            keeper = self.keepers.get(segment)
            if keeper is not None and keeper.holder is not None:
                if not principal:
                    await keeper.holder.forget()
                    await keeper.restart()
                elif segment in self.own:
                    await self.own[segment].forget(principal)
        await self._record("remove", checked, name, by)
        return api.RemovedSecret(removed=api.Secret(kind=checked, name=name))

    async def _record(self, event: Literal["set", "remove"], kind: Kind, name: str, by: str) -> None:
        await self.recorder.append_now(secret_line(event, kind, name, by, self.clock.wall()))


@dataclass(eq=False)
class ConsentOperations:
    """Operations of the operator API on consents: a person opens the page of an authorization server, and the browser
    returns with the result.
    """

    keepers: Keepers
    credentials: CredentialService
    audience: Audience
    recorder: Recorder
    clock: Clock

    @handles(api.AUTHORIZE_LINK)
    async def authorize(self, segment: str) -> api.Consent:
        """Return the page on which a person can agree to a token for this server. Raise NotFound or Refused."""
        holder = find_keeper(self.keepers, segment).holder
        if holder is None:
            raise Refused("no_oauth", f"{segment} is reached without OAuth", {"segment": segment})
        try:
            consent = await holder.consent(by_operator=True)
        except Unobtainable as error:
            raise Refused("auth_failed", str(error), {"segment": segment}) from None
        left_s = consent.expires_at - self.clock.now()
        return view_of(api.Consent, consent, segment=segment, expires_at=self.clock.wall() + left_s)

    @handles(api.TAKE_OAUTH_RETURN)
    async def take_return(self, parameters: list[tuple[str, str]]) -> ConsentPage:
        """Finish a consent after the browser has returned from the authorization server with these parameters. Return
        the page to show.

        The request needs no other credential than the `state` in the parameters.
        """
        page, pending = await self.credentials.consents.finish(parameters)
        if pending is not None:
            holder, at = pending.requester, self.clock.wall()
            name = server_name(holder.segment)
            self.recorder.add(
                AuditRecord(at, holder.principal or "operator", "oauth", "oauth/consent", name, None, "admitted", "ok")
            )
            # Notify the client that sent the person to the page.
            if holder.principal:
                self.audience.page_visited(holder.principal, pending.id)
        return page
