"""The operator API's operations on drivers: listing them, showing them, adding them, and decisions about them.

The modules that carry out the operations are imported with the first call, so a node without drivers never loads them.

A server is added in two steps. The first tries it out: it is installed and started once, and its tools get proposed
classes. The caller may show these to a person. The second writes the driver with the classes that the person chose.
Between the steps, the node keeps the trial in memory; nothing of it is in the workspace.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict, replace

from interlock.approvals.api import PROOF_REQUIRED, ApprovalSummary
from interlock.core.clock import rfc3339
from interlock.core.operator_errors import refused_as
from interlock.credentials.api import SetSecret
from interlock.credentials.operations import SecretOperations
from interlock.drivers import api
from interlock.operator.operation import INVALID_BODY, LOCAL, handles

if TYPE_CHECKING:
    from interlock.drivers.add import DriverRequest, ServerAdder, TriedServer
    from interlock.drivers.registry.operations import DriverService

TRIALS_MAX: Final = 16  # of all callers: a person adds one server at a time, and each trial holds all tool definitions
TRIAL_KEPT_S: Final = 900.0  # a person reads a long list of tools in this time; later the server may be another


@dataclass(frozen=True)
class DriverOperations:
    """Handlers of the operator API's requests about drivers.

    Without a node, commands call the same handlers in their own process.
    """

    service: "Callable[[], Awaitable[DriverService]]"
    approver_names: Callable[[str], Collection[str]]  # who could sign the acceptance of `drivers.KEY`
    requests: Callable[[], Iterable[ApprovalSummary]]  # the approvals of definitions that wait for a signature

    @handles(api.LIST_DRIVERS)
    async def list_all(self) -> api.Drivers:
        return await (await self.service()).list_all()

    @handles(api.GET_DRIVER)
    async def get(self, name: str) -> api.DriverDetail | api.ServedContract:
        return await (await self.service()).get(name)

    @handles(api.TRUST_DRIVER)
    async def trust(self, name: str, body: api.TrustDriver, by: str) -> api.DriverSummary:
        """Accept a driver's files as they were shown to the operator.

        Raise Refused if the files have changed, or if an approver could sign the decision instead.
        """
        service = await self.service()
        driver = await service.get(name)
        if not isinstance(driver, api.ServedContract) and self.approver_names(f"drivers.{driver.key}"):
            request = next((each.id for each in self.requests() if each.tool == f"drivers.{driver.key}"), None)
            message = "to accept a driver takes the signature of an approver"
            raise refused_as(PROOF_REQUIRED, message, {"approval": request})
        return await service.trust(name, body.digest, by)

    @handles(api.ALLOW_HOST)
    async def allow(self, name: str, body: api.AllowHost, by: str) -> api.AllowedHosts:
        return await (await self.service()).allow(name, body.host, by, revoke=body.revoke)

    @handles(api.RUN_EXAMPLES)
    async def test(self, name: str, body: api.RunExamples, by: str) -> api.DriverExamples:
        return await (await self.service()).test(name, by, allow_mutation=body.allow_mutation)

    @handles(api.UPDATE_DRIVER)
    async def update(self, name: str, body: api.UpdateDriver, by: str) -> api.DriverUpdate | api.SwitchedDriver:
        return await (await self.service()).update(name, by, body.candidate)

    @handles(api.REMOVE_DRIVER)
    async def remove(self, name: str, by: str, *, forget: bool) -> api.RemovedDriver:
        return await (await self.service()).remove(name, by, forget=forget)


@dataclass(frozen=True, kw_only=True)
class KeptTrial:
    """A trial whose driver is not written yet. `by` is the principal who asked for it, and who alone can use it."""

    adder: "ServerAdder"
    tried: "TriedServer"
    by: str


@dataclass(frozen=True)
class Trials:
    """The trials that are kept until their drivers are written: at most TRIALS_MAX, and each for TRIAL_KEPT_S."""

    _trials: dict[str, KeptTrial] = field(default_factory=dict)  # by id, the oldest first

    def keep(self, trial: KeptTrial) -> str:
        """Keep a trial and return its id. If too many trials are kept already, end the oldest one first."""
        if len(self._trials) >= TRIALS_MAX:
            self.end(next(iter(self._trials)))
        id = secrets.token_urlsafe(16)
        self._trials[id] = trial
        asyncio.get_running_loop().call_later(TRIAL_KEPT_S, self.end, id)
        return id

    def get(self, id: str, by: str) -> KeptTrial:
        """Return a trial of this principal. Raise Refused if there is none of this id."""
        trial = self._trials.get(id)
        if trial is None or trial.by != by:
            raise refused_as(
                api.UNKNOWN_TRIAL, "there is no such trial of yours, or it has ended: try the server again"
            )
        return trial

    def end(self, id: str) -> None:
        self._trials.pop(id, None)


@dataclass(frozen=True, kw_only=True)
class AddOperations:
    """Handlers of the operator API's requests that try a server out and add it.

    Without a node, the command `interlock add` calls the same handlers in its own process.
    """

    service: "Callable[[], Awaitable[DriverService]]"
    secrets: SecretOperations
    approver_names: Callable[[str], Collection[str]]  # who could sign the acceptance of `drivers.KEY`
    trials: Trials = field(default_factory=Trials)

    @handles(api.TRY_SERVER)
    async def try_out(self, body: api.TryServer, by: str) -> AsyncGenerator[api.TrialEvent, None]:
        """Install a server, start it once, and yield each step and then the proposed tools. Closing the generator stops
        the trial.

        Raise Refused if the server cannot be added, and StoreError if the store fails.
        """
        service = await self.service()
        steps: asyncio.Queue[str | None] = asyncio.Queue()
        # Another thread calls this while the request is read. That is safe, because nothing waits for a step yet.
        adder, wanted = await self._read(service, body, by, steps.put_nowait)
        return self._events(service, adder, wanted, by, steps)

    @handles(api.ADD_DRIVER)
    async def add(self, body: api.AddDriver, by: str) -> api.AddedDriver:
        """Write the driver of a server that was tried out. Without a trial, try the server out first.

        Raise Refused if the server cannot be added, and StoreError if the store fails.
        """
        service = await self.service()
        if body.trial is None:
            adder, wanted = await self._read(service, body, by, lambda _: None)
            tried = await service.try_out(adder, wanted, by)
            return await service.add(adder, tried, by, classes={}, accept=body.accept)
        if replace(body, trial=None, classes={}, accept=False) != api.AddDriver():
            raise refused_as(
                INVALID_BODY, "the trial says which server it is: only classes and accept are given with it"
            )
        trial = self.trials.get(body.trial, by)
        added = await service.add(trial.adder, trial.tried, by, classes=body.classes, accept=body.accept)
        self.trials.end(body.trial)
        return added

    async def _read(
        self, service: "DriverService", body: api.TryServer, by: str, say: Callable[[str], None]
    ) -> "tuple[ServerAdder, DriverRequest]":
        """Convert a request to add a server to the data of a driver folder, and store the secrets in it. Raise Refused
        if this caller may not add the server.

        Only a user of this machine may name commands, variables and folders of it, and try a server out before an
        approver accepts its files.
        """
        from interlock.drivers.add import ServerAdder
        from interlock.interop.protocol.translation import secret_name

        is_local = by == LOCAL
        if not (body.reference or body.args):
            raise refused_as(INVALID_BODY, "name a server in reference, or a trial")
        if not is_local and (body.passed or body.writes or body.environment):
            raise refused_as(
                api.ONLY_LOCAL, "only the command on the node's machine may name variables and folders of it"
            )
        adder = ServerAdder(service.registry.plan, say, environment=body.environment, allows_commands=is_local)
        wanted = await asyncio.to_thread(adder.read, body)
        if not is_local and self.approver_names(f"drivers.{wanted.key}"):
            message = f"this node has approvers: add the server on its machine with `interlock add {body.reference}`"
            raise refused_as(PROOF_REQUIRED, message)
        values = {secret_name(name): value for name, value in body.environment.items()}
        for secret in wanted.secrets:
            value = secret.value or values.get(secret.name)
            if not value or secret.backend is not None:
                continue
            stored = await self.secrets.set(SetSecret(name=secret.slug, value=value, unless_kept=True), by)
            if stored.state == "differs":
                command = f"interlock secrets set {secret.slug}"
                say(f"note: the store has another value, which stays: {command} replaces it")
        return adder, replace(wanted, secrets=())  # their values are not kept with the trial

    async def _events(
        self,
        service: "DriverService",
        adder: "ServerAdder",
        wanted: "DriverRequest",
        by: str,
        steps: asyncio.Queue[str | None],
    ) -> AsyncGenerator[api.TrialEvent, None]:
        trial = asyncio.ensure_future(service.try_out(adder, wanted, by))
        trial.add_done_callback(lambda _: steps.put_nowait(None))
        try:
            while (step := await steps.get()) is not None:
                yield api.TrialEvent(step=step)
            tried = trial.result()
        finally:
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
        adder.say = lambda _: None
        yield api.TrialEvent(
            trial=api.Trial(
                id=self.trials.keep(KeptTrial(adder=adder, tried=tried, by=by)),
                driver=tried.request.id,
                tools=tuple(api.AddedTool(**asdict(proposal)) for proposal in tried.proposals),
                sandbox=dict(tried.sandbox),
                expires_at=rfc3339(service.clock.wall() + TRIAL_KEPT_S),
            )
        )
