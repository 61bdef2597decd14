"""Does a binding keep to the contract it was found to mean? What the two files say, before any server is asked.

A contract's version is inside the binding's range (AIP-30.implements-3), narrowing drops what callers may leave out
(-4), a timeout is shortened and never lengthened (-5).
"""

from collections.abc import Iterator

from interlock.drivers.protocol.binding.arguments import declared_names
from interlock.drivers.protocol.files.versions import satisfies
from interlock.drivers.protocol.model import Binding, Contract, Driver, JsonObject
from interlock.drivers.protocol.problems import Problem
from interlock.wire.jsontext.pointer import quoted
from interlock.wire.schemas.shapes import Side

UNAVAILABLE = "tool_unavailable"
NARROWING = "narrowing_invalid"  # AIP-30.implements-4
WIDENED = "timeout_widened"  # AIP-30.implements-5


def unfit(driver: Driver, binding: Binding, contract: Contract) -> tuple[Problem, ...]:
    return (
        *_version(driver, binding, contract),
        *_narrowing_problems(driver, binding, contract),
        *_timeout(driver, binding, contract),
    )


def _version(driver: Driver, binding: Binding, contract: Contract) -> Iterator[Problem]:
    if satisfies(contract.version, binding.version) is False:  # AIP-30.implements-3
        yield driver.places.problem(
            f"{binding.pointer}/version",
            UNAVAILABLE,
            f"the contract {contract.id} is {contract.version}, which is not in {quoted(binding.version)}",
            "name a range that holds it, once the driver serves that version",
        )


def _narrowing_problems(driver: Driver, binding: Binding, contract: Contract) -> Iterator[Problem]:
    narrowing = binding.schema_narrowing
    for key, dropped, schema in (
        ("drop_inputs", narrowing.drop_inputs, contract.inputs),
        ("drop_outputs", narrowing.drop_outputs, contract.outputs),
    ):
        for index, name in enumerate(dropped):
            fault = _not_droppable(name, schema)
            if fault is not None:
                yield driver.places.problem(
                    f"{binding.pointer}/schema_narrowing/{key}/{index}",
                    NARROWING,
                    f"{quoted(name)} of {contract.id} {fault}",
                    "drop only what the contract has and does not require",
                )


def _not_droppable(name: str, schema: JsonObject) -> str | None:
    side = Side(schema)
    shape = side.shape(schema)
    if name not in declared_names(side, shape):  # AIP-30.implements-4
        return "does not exist"
    return "is required" if name in shape.required() else None  # AIP-30.implements-4


def _timeout(driver: Driver, binding: Binding, contract: Contract) -> Iterator[Problem]:
    """The binding's own goes before the driver's."""
    own = binding.timeout_ms is not None
    wanted = binding.timeout_ms if own else driver.timeout_ms
    if wanted is not None and wanted > contract.timeout_ms:  # AIP-30.implements-5
        yield driver.places.problem(
            f"{binding.pointer}/timeout_override_ms" if own else "/timeout_override_ms",
            WIDENED,
            f"this is longer than the {contract.timeout_ms} ms that the contract {contract.id} allows",
            "shorten it; a driver never lengthens a contract's time",
        )
