"""What is wrong with a binding's `metadata` before any server is asked: its mapping against its contract, its
result_extract and result_parse in themselves (AIP-map-3 and -4, AIP-extract-3 and -8). The rest of the entry is judged
in `fitting`."""

from collections.abc import Collection

from interlock.protocol.drivers.binding.arguments import check_mapping
from interlock.protocol.drivers.binding.result_path import Wrong, read_path
from interlock.protocol.drivers.binding.result_pattern import Pattern, read_pattern
from interlock.protocol.drivers.model import Binding, Contract, Driver, Places, Problem


def check_binding(
    driver: Driver, binding: Binding, contract: Contract, *, transforms: Collection[str] | None = None
) -> tuple[Problem, ...]:
    """`transforms`: those that driver.py has; None: there is no driver.py."""
    return (*check_reading(driver.places, binding), *check_mapping(driver, binding, contract, transforms))


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
