"""Drivers at the operator endpoint: which there are, and what is decided about them."""

import asyncio

from interlock.approvals.api import PROOF_REQUIRED
from interlock.approvals.protocol.approval import Kind, Status
from interlock.drivers.api import (
    ADD_DRIVER,
    ALLOW_HOST,
    FORGET,
    GET_DRIVER,
    LIST_DRIVERS,
    REMOVE_DRIVER,
    RUN_EXAMPLES,
    TRUST_DRIVER,
    UPDATE_DRIVER,
    AddDriver,
    AddedDriver,
    AllowedHosts,
    AllowHost,
    DriverDetail,
    DriverExamples,
    Drivers,
    DriverSummary,
    DriverUpdate,
    RemovedDriver,
    RunExamples,
    ServedContract,
    SwitchedDriver,
    TrustDriver,
    UpdateDriver,
)
from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.operator.requests import RejectedRequest


async def list_drivers(exchange: OperatorExchange[None]) -> Drivers:
    return await (await exchange.operations.drivers.open()).list_all()


async def add_driver(exchange: OperatorExchange[AddDriver]) -> AddedDriver:
    """Add a server that is named by a package or an address.

    Variables of the node's environment are not passed to it, and no command of this machine can be added from here.
    """
    from interlock.drivers.add import AddRequest, NotAdded, ServerAdder
    from interlock.drivers.registry.operations import refused

    service, body = await exchange.operations.drivers.open(), exchange.body
    adder = ServerAdder(service.registry.plan, lambda _: None, environment={}, allows_commands=False)
    request = AddRequest(
        reference=body.reference,
        args=body.args,
        identifier=body.id,
        tools=body.tools,
        classes=body.classes,
        env=body.env,
        secrets=body.secrets,
        headers=body.headers,
        egress=body.egress,
        programs=body.programs,
        packages=body.packages,
        replaces=body.replace,
    )
    try:
        wanted = await asyncio.to_thread(adder.read, request)
    except NotAdded as error:
        raise refused(error) from None
    if exchange.operations.approvers.has_approver(f"drivers.{wanted.key}"):
        # The server is started once before an approver accepts its files. Only a user of this machine may do that.
        text = f"this node has approvers: add the server on its machine with `interlock add {body.reference}`"
        raise RejectedRequest(PROOF_REQUIRED.status, PROOF_REQUIRED.name, text)
    for secret in wanted.secrets:
        if secret.value and secret.backend is None:
            await exchange.operations.secrets.keep(secret.slug, secret.value, exchange.principal)
    return await service.add(adder, wanted, exchange.principal, accept=body.accept)


async def get_driver(exchange: OperatorExchange[None]) -> DriverDetail | ServedContract:
    return await (await exchange.operations.drivers.open()).get(exchange.path("name"))


async def trust_driver(exchange: OperatorExchange[TrustDriver]) -> DriverSummary:
    drivers = await exchange.operations.drivers.open()
    found = await drivers.get(exchange.path("name"))
    if not isinstance(found, ServedContract) and exchange.operations.approvers.has_approver(f"drivers.{found.key}"):
        asked = _maybe_asked(exchange, f"drivers.{found.key}")
        raise RejectedRequest(
            403, PROOF_REQUIRED.name, "to accept a driver takes the signature of an approver", {"approval": asked}
        )
    return await drivers.trust(exchange.path("name"), exchange.body.digest, exchange.principal)


def _maybe_asked(exchange: OperatorExchange[TrustDriver], tool: str) -> str | None:
    waiting = exchange.operations.approvals.list_all(Kind.DEFINITION, frozenset((Status.PENDING,))).approvals
    return next((one.id for one in waiting if one.tool == tool), None)


async def allow_host(exchange: OperatorExchange[AllowHost]) -> AllowedHosts:
    wanted, drivers = exchange.body, await exchange.operations.drivers.open()
    return await drivers.allow(exchange.path("name"), wanted.host, exchange.principal, revoke=wanted.revoke)


async def run_examples(exchange: OperatorExchange[RunExamples]) -> DriverExamples:
    drivers = await exchange.operations.drivers.open()
    allow_mutation = exchange.body.allow_mutation
    return await drivers.test(exchange.path("name"), exchange.principal, allow_mutation=allow_mutation)


async def update_driver(exchange: OperatorExchange[UpdateDriver]) -> DriverUpdate | SwitchedDriver:
    drivers = await exchange.operations.drivers.open()
    return await drivers.update(exchange.path("name"), exchange.principal, exchange.body.candidate)


async def remove_driver(exchange: OperatorExchange[None]) -> RemovedDriver:
    forget = exchange.query(FORGET)
    drivers = await exchange.operations.drivers.open()
    return await drivers.remove(exchange.path("name"), exchange.principal, forget=forget)


REQUEST_HANDLERS: RequestHandlers = {
    LIST_DRIVERS: list_drivers,
    ADD_DRIVER: add_driver,
    GET_DRIVER: get_driver,
    REMOVE_DRIVER: remove_driver,
    TRUST_DRIVER: trust_driver,
    ALLOW_HOST: allow_host,
    RUN_EXAMPLES: run_examples,
    UPDATE_DRIVER: update_driver,
}
