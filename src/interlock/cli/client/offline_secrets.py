"""The secrets of a data folder, opened by a command itself while no node runs. Answers as the operator endpoint."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec

from interlock.cli.client.offline import LOCAL, record_stored, run_stored
from interlock.cli.client.operator import Answer
from interlock.cli.terminal.errors import Refused
from interlock.config.plan import Plan
from interlock.core.addresses import Addresses
from interlock.core.clock import SystemClock
from interlock.credentials.api import RemovedSecret, Secret, Secrets, StoredSecret
from interlock.credentials.secret_references import secret_line
from interlock.credentials.service import BadSecretName, CredentialService
from interlock.store.sqlite.secrets import Kind


class StoredSecrets:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder

    def list(self) -> Answer:
        async def listed(service: CredentialService) -> Secrets:
            return Secrets(secrets=tuple(Secret(kind=kind, name=name) for kind, name in await service.secret_names()))

        return self._with_service(listed)

    def set(self, name: str, value: str) -> Answer:
        async def keep(service: CredentialService) -> StoredSecret:
            await service.set_secret(name, value)
            await self._record("set", "secret", name)
            return StoredSecret(name=name, restarted=())

        try:
            return self._with_service(keep)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None

    def keep(self, name: str, value: str) -> Answer:
        async def keep(service: CredentialService) -> StoredSecret:
            state = await service.keep_secret(name, value)
            if state == "new":
                await self._record("set", "secret", name)
            return StoredSecret(name=name, state=state, restarted=())

        try:
            return self._with_service(keep)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None

    def remove(self, kind: Kind, name: str) -> Answer:
        async def remove(service: CredentialService) -> RemovedSecret:
            if not await service.remove_secret(kind, name):
                raise Refused("not_found", f"there is no {kind} {name}", hint="interlock secrets list shows them")
            await self._record("remove", kind, name)
            return RemovedSecret(removed=Secret(kind=kind, name=name))

        return self._with_service(remove)

    async def _record(self, event: Literal["set", "remove"], kind: Kind, name: str) -> None:
        line = secret_line(event, kind, name, LOCAL, SystemClock().wall())
        await record_stored(self._plan, self._folder, [line])

    def _with_service(self, job: Callable[[CredentialService], Awaitable[object]]) -> Answer:
        async def with_service() -> Answer:
            service = CredentialService(self._folder, SystemClock(), self._plan.node.name, Addresses(self._plan.node))
            try:
                await service.open()
                return Answer(msgspec.json.encode(await job(service)))
            finally:
                await service.close()

        return run_stored(with_service())
