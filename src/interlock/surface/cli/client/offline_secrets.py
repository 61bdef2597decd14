"""The secrets of a data folder, opened by a command itself while no node runs. Answers as the operator endpoint."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from interlock.config.plan import Plan
from interlock.operator_api.secrets import RemovedSecret, Secret, Secrets, StoredSecret
from interlock.runtime.base.addresses import Addresses
from interlock.runtime.base.clock import SystemClock
from interlock.runtime.credentials.service import BadSecretName, GrantDesk
from interlock.store.sqlite.secrets import Kind
from interlock.surface.cli.client.offline import run_stored
from interlock.surface.cli.client.operator import Answer
from interlock.surface.cli.terminal.errors import Refused


class StoredSecrets:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder

    def list(self) -> Answer:
        async def listed(desk: GrantDesk) -> Secrets:
            return Secrets(secrets=tuple(Secret(kind=kind, name=name) for kind, name in await desk.secret_names()))

        return self._with_desk(listed)

    def set(self, name: str, value: str) -> Answer:
        async def keep(desk: GrantDesk) -> StoredSecret:
            await desk.set_secret(name, value)
            return StoredSecret(name=name, restarted=())

        try:
            return self._with_desk(keep)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None

    def keep(self, name: str, value: str) -> Answer:
        async def keep(desk: GrantDesk) -> StoredSecret:
            return StoredSecret(name=name, state=await desk.keep_secret(name, value), restarted=())

        try:
            return self._with_desk(keep)
        except BadSecretName as error:
            raise Refused("bad_secret_name", str(error)) from None

    def remove(self, kind: Kind, name: str) -> Answer:
        async def remove(desk: GrantDesk) -> RemovedSecret:
            if not await desk.remove_secret(kind, name):
                raise Refused("not_found", f"there is no {kind} {name}", hint="interlock secrets list shows them")
            return RemovedSecret(removed=Secret(kind=kind, name=name))

        return self._with_desk(remove)

    def _with_desk(self, job: Callable[[GrantDesk], Awaitable[object]]) -> Answer:
        async def with_desk() -> Answer:
            desk = GrantDesk(self._folder, SystemClock(), self._plan.node.name, Addresses(self._plan.node))
            try:
                await desk.open()
                return Answer(msgspec.json.encode(await job(desk)))
            finally:
                await desk.close()

        return run_stored(with_desk())
