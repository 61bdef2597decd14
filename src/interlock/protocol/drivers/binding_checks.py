"""What is wrong with a binding before any server is asked: its mapping, narrowing and timeout against its contract, its
result_extract and result_parse in themselves (AIP-map-3 and -4, AIP-30.implements-4 and -5, AIP-extract-3 and -8)."""

from collections.abc import Collection

from interlock.protocol.drivers.extract import Wrong, read_path
from interlock.protocol.drivers.frontmatter import shown
from interlock.protocol.drivers.mapping import check_mapping, declared_inputs
from interlock.protocol.drivers.messages import Binding, Contract, Driver, Places, Problem
from interlock.protocol.drivers.patterns import Pattern, read_pattern
from interlock.protocol.drivers.shapes import Side


def check_binding(
    driver: Driver, binding: Binding, contract: Contract, *, transforms: Collection[str] | None = None
) -> tuple[Problem, ...]:
    """`transforms`: those that driver.py has; None: there is no driver.py."""
    return (
        *check_reading(driver.places, binding),
        *check_mapping(driver, binding, contract, transforms),
        *_narrowing(driver.places, binding, contract),
        *_timeout(driver, binding, contract),
    )


def check_reading(places: Places, binding: Binding) -> tuple[Problem, ...]:
    """How results are read, which no contract is needed for."""
    found = []
    path = read_path(binding.result_extract)
    if isinstance(path, Wrong):
        found.append(
            places.problem(
                f"{binding.pointer}/metadata/mcp/result_extract",
                "extract_path_invalid",
                f"at character {path.position}: {path.reason}",
                "write a path like $.content, $.rows[0] or $.items[*].name",
            )
        )
    parse = binding.result_parse
    if parse is not None and (parse.form == "records" or parse.pattern is not None):
        if parse.pattern is None:
            reason = "records are made by a pattern, and there is none"
        elif parse.form != "records":
            reason = "a pattern is for as: records alone"
        else:
            read = read_pattern(parse.pattern)
            reason = read if isinstance(read, str) else ""
        if reason:
            found.append(
                places.problem(
                    f"{binding.pointer}/metadata/interlock/result_parse",
                    "pattern_invalid",
                    reason,
                    "write as: records with a pattern like ^(?P<name>.*)$",
                )
            )
    return tuple(found)


def maybe_pattern(binding: Binding) -> Pattern | None:
    parse = binding.result_parse
    if parse is None or parse.pattern is None:
        return None
    read = read_pattern(parse.pattern)
    return read if isinstance(read, Pattern) else None


def _narrowing(places: Places, binding: Binding, contract: Contract) -> list[Problem]:
    """Inputs that are dropped are optional ones of the contract; outputs that are dropped are not promised by it."""
    side = Side(contract.inputs)
    shape = side.shape(contract.inputs)
    declared, required = declared_inputs(side, shape), shape.required()
    promised = Side(contract.outputs).shape(contract.outputs).required()
    found = []

    def say(kind: str, index: int, message: str, hint: str) -> None:
        pointer = f"{binding.pointer}/schema_narrowing/{kind}/{index}"
        found.append(places.problem(pointer, "narrowing_invalid", message, hint))

    for index, name in enumerate(binding.schema_narrowing.drop_inputs):
        if name in required:
            say("drop_inputs", index, f"the contract requires {shown(name)}", "drop optional inputs only")
        elif name not in declared:
            say("drop_inputs", index, f"the contract has no input {shown(name)}", "mend its spelling, or remove it")
    for index, name in enumerate(binding.schema_narrowing.drop_outputs):
        if name in promised:
            say("drop_outputs", index, f"the contract promises {shown(name)}", "drop optional outputs only")
    return found


def _timeout(driver: Driver, binding: Binding, contract: Contract) -> list[Problem]:
    """AIP-30.implements-5. The override of the entry goes before that of the driver."""
    override, pointer = binding.timeout_ms, f"{binding.pointer}/timeout_override_ms"
    if override is None:
        override, pointer = driver.timeout_ms, "/timeout_override_ms"
    if override is None or override <= contract.timeout_ms:
        return []
    return [
        driver.places.problem(
            pointer,
            "timeout_widened",
            f"{override} ms is more than the {contract.timeout_ms} ms of the contract {shown(contract.id)}",
            f"write at most {contract.timeout_ms}, or leave it out",
        )
    ]
