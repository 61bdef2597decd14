"""Stored secrets: set, kept and removed by an operator, with a record of each; never shown."""

from collections.abc import Mapping
from typing import Literal

from interlock.core.clock import Clock
from interlock.core.operator_errors import NotFound, Refused
from interlock.core.recorder import Recorder
from interlock.credentials.api import RemovedSecret, Secret, Secrets, StoredSecret
from interlock.credentials.secret_references import secret_line
from interlock.credentials.service import BadSecretName, CredentialService, referenced_secrets
from interlock.drivers.registry.service import Drivers
from interlock.links.connected_link import ServerLink
from interlock.links.own_links import OwnLinks
from interlock.operator.operations.links import Keepers, shown_names
from interlock.store.sqlite.secrets import Kind


class SecretOperations:
    def __init__(
        self,
        credentials: CredentialService,
        keepers: Keepers,
        own: Mapping[str, OwnLinks],
        drivers: Drivers,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._credentials = credentials
        self._keepers = keepers
        self._own = own
        self._drivers = drivers

    async def list_all(self) -> Secrets:
        names = await self._credentials.secret_names()
        return Secrets(secrets=tuple(Secret(kind=kind, name=name) for kind, name in names))

    async def set(self, name: str, value: str, by: str) -> StoredSecret:
        """Servers that name it are started or dialled anew with it. Raises Refused, StoreError."""
        try:
            await self._credentials.set_secret(name, value)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None
        await self._record("set", "secret", name, by)
        return StoredSecret(name=name, restarted=await self._restart_users_of(name))

    async def keep(self, name: str, value: str, by: str) -> StoredSecret:
        """Unless one is kept already; `state` says new, same or differs. Raises Refused, StoreError."""
        try:
            state = await self._credentials.keep_secret(name, value)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None
        if state == "new":
            await self._record("set", "secret", name, by)
        restarted = await self._restart_users_of(name) if state == "new" else ()
        return StoredSecret(name=name, state=state, restarted=restarted)

    async def remove(self, kind: Kind, name: str, by: str) -> RemovedSecret:
        """Raises NotFound, StoreError."""
        if not await self._credentials.remove_secret(kind, name):
            known = [known for _, known in await self._credentials.secret_names()]
            raise NotFound("secret", name, known)
        if kind == "token":
            await self._forget_token(name)  # first: also where the log cannot be written
        await self._record("remove", kind, name, by)
        return RemovedSecret(removed=Secret(kind=kind, name=name))

    async def _record(self, event: Literal["set", "remove"], kind: Kind, name: str, by: str) -> None:
        await self._recorder.append_now(secret_line(event, kind, name, by, self._clock.wall()))

    async def _forget_token(self, name: str) -> None:
        """A stored token was removed: it is not used from memory either."""
        segment, _, principal = name.partition(" ")
        keeper = self._keepers.get(segment)
        if keeper is None or keeper.holder is None:
            return
        if principal:
            if segment in self._own:
                await self._own[segment].forget(principal)
            return
        await keeper.holder.forget()
        await keeper.restart()

    async def _restart_users_of(self, slug: str) -> tuple[str, ...]:
        configured = [keeper for keeper in self._keepers.values() if keeper.is_offered]
        users = [
            keeper
            for keeper in configured
            if isinstance(keeper.link, ServerLink) and slug in referenced_secrets(keeper.link.plan)
        ]
        for keeper in users:
            await keeper.restart()
        restarted = (*(keeper.link.segment for keeper in users), *self._drivers.on_secret(slug))
        names = shown_names(self._keepers)
        return tuple(names.get(segment, segment) for segment in restarted)
