"""Drivers at the operator endpoint: which there are, and what is decided about them."""

from interlock.approvals.protocol.approval import Kind
from interlock.approvals.protocol.state import Status
from interlock.drivers.api import (
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
from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import (
    AMBIGUOUS,
    BAD_HOST,
    CHANGED,
    NOT_FOUND,
    NOT_LOOKED_AT,
    NOT_RUNNING,
    NOTHING_TO_UPDATE,
    PROOF_REQUIRED,
    REJECTED,
    TOO_MANY_HOSTS,
    UPDATE_FAILED,
)
from interlock.operator.parameters import ChoiceParameter
from interlock.operator.requests import RejectedRequest

FORGET = ChoiceParameter(
    name="forget",
    description="Also what the next version of this driver would be compared with.",
    choices=("true", "false"),
    default="false",
)


async def list_drivers(exchange: OperatorExchange[None]) -> Drivers:
    return await (await exchange.operations.drivers.open()).list_all()


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
    forget = FORGET.read(exchange.request) == "true"
    drivers = await exchange.operations.drivers.open()
    return await drivers.remove(exchange.path("name"), exchange.principal, forget=forget)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/admin/drivers",
        handler=list_drivers,
        summary="Every driver of the workspace.",
    ),
    Endpoint(
        method="GET",
        path="/admin/drivers/{name}",
        handler=get_driver,
        summary="One driver, by its id, ID@MAJOR or folder; or a contract, and which driver serves it.",
        errors=(NOT_FOUND, AMBIGUOUS),
    ),
    Endpoint(
        method="DELETE",
        path="/admin/drivers/{name}",
        handler=remove_driver,
        summary="Delete a driver's folder and stop its server.",
        role="admin",
        query=(FORGET,),
        errors=(NOT_FOUND, AMBIGUOUS),
    ),
    Endpoint(
        method="POST",
        path="/admin/drivers/{name}/trust",
        handler=trust_driver,
        summary="Accept a driver's files as they were shown, where no approver could: its server is then started.",
        role="admin",
        errors=(PROOF_REQUIRED, NOT_FOUND, AMBIGUOUS, REJECTED, CHANGED),
    ),
    Endpoint(
        method="POST",
        path="/admin/drivers/{name}/allow",
        handler=allow_host,
        summary="Let a driver reach a host that its file does not name.",
        role="admin",
        errors=(NOT_FOUND, AMBIGUOUS, REJECTED, BAD_HOST, TOO_MANY_HOSTS),
    ),
    Endpoint(
        method="POST",
        path="/admin/drivers/{name}/test",
        handler=run_examples,
        summary="Run the examples of a driver's contracts through it.",
        role="admin",
        errors=(NOT_FOUND, AMBIGUOUS, NOT_RUNNING),
    ),
    Endpoint(
        method="POST",
        path="/admin/drivers/{name}/update",
        handler=update_driver,
        summary="Look at the newest release of a driver's server; with the candidate that this names, switch to it.",
        role="admin",
        errors=(NOT_FOUND, AMBIGUOUS, NOT_RUNNING, UPDATE_FAILED, NOTHING_TO_UPDATE, NOT_LOOKED_AT),
    ),
)
