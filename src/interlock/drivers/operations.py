"""The operator API's operations on drivers: listing them, showing them, and decisions about them.

The modules that carry out the operations are imported with the first call, so a node without drivers never loads them.
"""

import asyncio
from dataclasses import dataclass

from msgspec.structs import asdict

from interlock.approvals.api import PROOF_REQUIRED
from interlock.approvals.operations.inbox import InboxOperations
from interlock.approvals.trust.anchors import Anchors
from interlock.core.operator_errors import refused_as
from interlock.credentials.api import SetSecret
from interlock.credentials.operations import SecretOperations
from interlock.drivers import api
from interlock.drivers.registry.service import DriverWatcher
from interlock.operator.operation import handles


@dataclass(frozen=True)
class DriverOperations:
    """Handlers of the operator API's requests about drivers."""

    drivers: DriverWatcher
    anchors: Anchors
    approvals: InboxOperations
    secrets: SecretOperations

    @handles(api.LIST_DRIVERS)
    async def list_all(self) -> api.Drivers:
        return await (await self.drivers.service()).list_all()

    @handles(api.GET_DRIVER)
    async def get(self, name: str) -> api.DriverDetail | api.ServedContract:
        return await (await self.drivers.service()).get(name)

    @handles(api.ADD_DRIVER)
    async def add(self, body: api.AddDriver, by: str) -> api.AddedDriver:
        """Add a server that is named by a package or an address.

        Variables of the node's environment are not passed to it, and no command of this machine can be added from here.
        Raise Refused if the server cannot be added, or if an approver could sign the acceptance of its driver. Raise
        StoreError if the store fails.
        """
        from interlock.drivers.add import AddRequest, ServerAdder

        service = await self.drivers.service()
        adder = ServerAdder(service.registry.plan, lambda _: None, environment={}, allows_commands=False)
        wanted = await asyncio.to_thread(adder.read, AddRequest(**asdict(body)))
        if self.anchors.approver_names(f"drivers.{wanted.key}"):
            # The server is started once before an approver accepts its files. Only a user of this machine may do that.
            message = f"this node has approvers: add the server on its machine with `interlock add {body.reference}`"
            raise refused_as(PROOF_REQUIRED, message)
        for secret in wanted.secrets:
            if secret.value and secret.backend is None:
                await self.secrets.set(SetSecret(name=secret.slug, value=secret.value, unless_kept=True), by)
        return await service.add(adder, wanted, by, accept=body.accept)

    @handles(api.TRUST_DRIVER)
    async def trust(self, name: str, body: api.TrustDriver, by: str) -> api.DriverSummary:
        """Accept a driver's files as they were shown to the operator.

        Raise Refused if the files have changed, or if an approver could sign the decision instead.
        """
        service = await self.drivers.service()
        driver = await service.get(name)
        if not isinstance(driver, api.ServedContract) and self.anchors.approver_names(f"drivers.{driver.key}"):
            # The trust request that waits for a signature.
            waiting = self.approvals.list_all("definition", "pending").approvals
            request = next((approval.id for approval in waiting if approval.tool == f"drivers.{driver.key}"), None)
            message = "to accept a driver takes the signature of an approver"
            raise refused_as(PROOF_REQUIRED, message, {"approval": request})
        return await service.trust(name, body.digest, by)

    @handles(api.ALLOW_HOST)
    async def allow(self, name: str, body: api.AllowHost, by: str) -> api.AllowedHosts:
        return await (await self.drivers.service()).allow(name, body.host, by, revoke=body.revoke)

    @handles(api.RUN_EXAMPLES)
    async def test(self, name: str, body: api.RunExamples, by: str) -> api.DriverExamples:
        return await (await self.drivers.service()).test(name, by, allow_mutation=body.allow_mutation)

    @handles(api.UPDATE_DRIVER)
    async def update(self, name: str, body: api.UpdateDriver, by: str) -> api.DriverUpdate | api.SwitchedDriver:
        return await (await self.drivers.service()).update(name, by, body.candidate)

    @handles(api.REMOVE_DRIVER)
    async def remove(self, name: str, by: str, *, forget: bool) -> api.RemovedDriver:
        return await (await self.drivers.service()).remove(name, by, forget=forget)
