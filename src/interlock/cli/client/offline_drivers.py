"""Operations on the drivers of a workspace while no node runs. Replies have the same form as those of a node."""

from collections.abc import Awaitable, Callable
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


def call_stored_drivers(
    plan: Plan, folder: Path, job: Callable[[DriverService], Awaitable[object]], *, needs_no_approver: bool = False
) -> Answer:
    """Do `job` with the drivers of a workspace whose node does not run, and return the reply that a node would give.

    `folder` is the data folder. With `needs_no_approver`, raise Refused if an approver is enrolled.
    """

    async def with_service() -> Answer:
        clock = Clock()
        store = build_store("sqlite", folder)
        audit = build_audit(plan.store.backend, folder)

        async def record(line: bytes) -> None:
            await audit.open()
            await audit.append([line])

        try:
            await store.open()
            if needs_no_approver and await _has_approvers(plan, folder, clock.wall()):
                message = "an approver signs for this at a running node"
                raise Refused("proof_required", message, hint="interlock serve starts it")
            memory = Memory(store.kv, clock)
            await memory.open()
            registry = Registry(plan, memory, this_machine(folder / "packages"))
            return Answer(msgspec.json.encode(await job(DriverService(registry, clock, record))))
        finally:
            await store.close()
            await audit.close()

    try:
        return run_stored(with_service())
    except NotFound as missing:
        hint = f"there is {', '.join(missing.known)}" if missing.known else "interlock drivers list shows them"
        raise Refused("not_found", f"there is no {missing.what} {missing.name}", hint=hint) from None


async def _has_approvers(plan: Plan, folder: Path, now: float) -> bool:
    """Return whether an approver is enrolled at the time `now`, according to the store of the node."""
    shared = build_shared_store(plan, folder)
    try:
        await shared.open()
        return bool(await shared.kv.entries(APPROVERS, now))
    finally:
        await shared.close()
