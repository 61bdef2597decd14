"""Operations on the drivers of a workspace whose node does not run, carried out in the process of the command."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from interlock.cli.client.offline import record_stored, run_stored, stored_secrets
from interlock.cli.client.operator import Answer
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.part import opened
from interlock.core.store_backends import build_store
from interlock.drivers.operations import AddOperations, Trials
from interlock.drivers.registry.operations import DriverService
from interlock.drivers.registry.registry import Registry
from interlock.drivers.workspace.declaration import Memory
from interlock.drivers.workspace.survey import this_machine
from interlock.operator.operation import LOCAL, Operation, handlers_of


@asynccontextmanager
async def stored_drivers(plan: Plan, folder: Path) -> AsyncIterator[DriverService]:
    """Open the store in a data folder, and yield a service for the drivers that starts none of them."""
    clock, store = Clock(), build_store("sqlite", folder)
    async with opened(store):
        memory = Memory(store.kv, clock)
        await memory.open()
        registry = Registry(plan, memory, this_machine(folder / "packages"))
        yield DriverService(registry, clock, lambda line: record_stored(plan, folder, [line]))


@dataclass(eq=False)
class OfflineAdder:
    """A client for the operations that add a server, like `OperatorClient`. It calls the handlers of a node, and keeps
    a trial from one call to the next.
    """

    plan: Plan
    folder: Path
    _trials: Trials = field(default_factory=Trials)

    def call(self, operation: Operation[Any], *, body: object, timeout: float) -> Answer:
        """Call an operation and return its reply. Raise Refused if the operation is refused."""
        answers: list[Answer] = []
        run_stored(self._run(operation, body, answers.append))
        return answers[0]

    def follow(self, operation: Operation[Any], on_event: Callable[[Answer], None], *, body: object) -> None:
        """Call an operation whose reply is a stream, and call `on_event` with each event until the stream ends. Raise
        Refused if the operation is refused.
        """
        run_stored(self._run(operation, body, on_event))

    async def _run(self, operation: Operation[Any], body: object, on_answer: Callable[[Answer], None]) -> None:
        async with stored_drivers(self.plan, self.folder) as drivers, stored_secrets(self.plan, self.folder) as secrets:

            async def service() -> DriverService:
                return drivers

            # The local user may try a server out before an approver accepts its files.
            adding = AddOperations(service=service, secrets=secrets, approver_names=lambda _: (), trials=self._trials)
            reply = await handlers_of([adding])[operation](body=body, by=LOCAL)
            if not operation.is_stream:
                on_answer(Answer(msgspec.json.encode(reply)))
                return
            async with aclosing(reply):
                async for event in reply:
                    on_answer(Answer(msgspec.json.encode(event)))
