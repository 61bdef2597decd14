"""What is wrong with a binding's `metadata` before any server is asked: its mapping against its contract, its
result_extract and result_parse in themselves (AIP-map-3 and -4, AIP-extract-3 and -8). The rest of the entry is judged
in `contract_fit`."""

from collections.abc import Collection

from interlock.drivers.protocol.binding.arguments import check_mapping
from interlock.drivers.protocol.files.reading_checks import check_reading
from interlock.drivers.protocol.model import Binding, Contract, Driver
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.protocol.result_pattern import Pattern, read_pattern


def check_binding(
    driver: Driver, binding: Binding, contract: Contract, *, transforms: Collection[str] | None = None
) -> tuple[Problem, ...]:
    """`transforms`: those that driver.py has; None: there is no driver.py."""
    return (*check_reading(driver.places, binding), *check_mapping(driver, binding, contract, transforms))


def maybe_pattern(binding: Binding) -> Pattern | None:
    parse = binding.result_parse
    if parse is None or parse.pattern is None:
        return None
    read = read_pattern(parse.pattern)
    return read if isinstance(read, Pattern) else None
