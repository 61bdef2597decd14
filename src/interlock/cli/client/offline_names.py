"""Operations on the name registry of a data folder. A running node may use the same registry log at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.part import opened
from interlock.core.recorder import Recorder
from interlock.core.store_backends import build_audit
from interlock.credentials.shared_store import build_names_log
from interlock.names.protocol.entry import RegistryEntry
from interlock.names.state import RegistryState
from interlock.store.ports import StoreError
from interlock.wire.refusal import NotFound, Refused

T = TypeVar("T")


def run_with_names(plan: Plan, folder: Path, job: Callable[[RegistryState], Awaitable[T]]) -> T:
    """Run `job` with the name registry of a data folder, and return its result. Raise Refused if that is impossible."""

    async def run() -> T:
        audit = build_audit(plan.store.backend, folder)
        recorder = Recorder(audit)
        state = RegistryState(build_names_log(plan, folder), recorder, Clock())
        async with opened(audit):
            try:
                async with opened(state):
                    return await job(state)
            finally:
                await recorder.flush()

    try:
        return asyncio.run(run())
    except NotFound as missing:
        raise Refused("not_found", f"no {missing.what} {missing.name[:100]} waits") from None
    except StoreError as error:
        raise Refused("store", str(error)) from None


def read_entries(plan: Plan, folder: Path) -> Mapping[str, RegistryEntry]:
    """Return the entries of the name registry in a data folder, by name. Raise Refused if they cannot be read.

    The function writes nothing and does not connect to a store on another machine, so the result is empty for a
    registry in a shared store.
    """
    if plan.store.backend != "sqlite":
        return {}

    async def read() -> Mapping[str, RegistryEntry]:
        recorder = Recorder(build_audit(plan.store.backend, folder))  # never opened
        state = RegistryState(build_names_log(plan, folder), recorder, Clock())
        async with opened(state):
            return state.registry.entries

    return asyncio.run(read())
