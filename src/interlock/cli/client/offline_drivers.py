"""Operations on the drivers of a workspace while no node runs. Replies have the same form as those of a node."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from interlock.approvals.enrolments import BUCKET as APPROVERS
from interlock.cli.client.offline import run_stored
from interlock.cli.client.operator import Answer
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.store_backends import build_audit, build_store
from interlock.credentials.shared_store import build_shared_store
from interlock.drivers.registry.operations import DriverService
from interlock.drivers.registry.registry import Registry
from interlock.drivers.workspace.declaration import Memory
from interlock.drivers.workspace.survey import this_machine
from interlock.wire.refusal import NotFound, Refused

BY = "local"


@dataclass(eq=False)
class StoredDrivers:
    """Client for the drivers of a workspace whose node does not run. Methods return the reply that
    a node would give.
    """

    plan: Plan
    folder: Path

    def list(self) -> Answer:
        return self._with_service(DriverService.list_all)

    def show(self, name: str) -> Answer:
        return self._with_service(lambda drivers: drivers.get(name))

    def trust(self, name: str, digest: str) -> Answer:
        return self._with_service(lambda drivers: drivers.trust(name, digest, BY), needs_no_approver=True)

    def allow(self, name: str, host: str, *, revoke: bool) -> Answer:
        return self._with_service(lambda drivers: drivers.allow(name, host, BY, revoke=revoke))

    def remove(self, name: str, *, forget: bool) -> Answer:
        return self._with_service(lambda drivers: drivers.remove(name, BY, forget=forget))

    async def _has_approvers(self, now: float) -> bool:
        """Return whether an approver is enrolled at the time `now`, according to the store of the node."""
        shared = build_shared_store(self.plan, self.folder)
        try:
            await shared.open()
            return bool(await shared.kv.entries(APPROVERS, now))
        finally:
            await shared.close()

    def _with_service(
        self, job: Callable[[DriverService], Awaitable[object]], *, needs_no_approver: bool = False
    ) -> Answer:
        async def with_service() -> Answer:
            clock = Clock()
            store = build_store("sqlite", self.folder)
            audit = build_audit(self.plan.store.backend, self.folder)

            async def record(line: bytes) -> None:
                await audit.open()
                await audit.append([line])

            try:
                await store.open()
                if needs_no_approver and await self._has_approvers(clock.wall()):
                    message = "an approver signs for this at a running node"
                    raise Refused("proof_required", message, hint="interlock serve starts it")
                memory = Memory(store.kv, clock)
                await memory.open()
                registry = Registry(self.plan, memory, this_machine(self.folder / "packages"))
                return Answer(msgspec.json.encode(await job(DriverService(registry, clock, record))))
            finally:
                await store.close()
                await audit.close()

        try:
            return run_stored(with_service())
        except NotFound as missing:
            hint = f"there is {', '.join(missing.known)}" if missing.known else "interlock drivers list shows them"
            raise Refused("not_found", f"there is no {missing.what} {missing.name}", hint=hint) from None
