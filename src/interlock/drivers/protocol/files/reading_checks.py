"""Checks of result_extract and result_parse in themselves (AIP-extract-3 and -8), which need no contract."""

from interlock.drivers.protocol.model import Binding
from interlock.drivers.protocol.problems import Places, Problem
from interlock.drivers.protocol.result_path import PathFault, read_path
from interlock.drivers.protocol.result_pattern import read_pattern


def check_reading(places: Places, binding: Binding) -> tuple[Problem, ...]:
    """How results are read, which no contract is needed for."""
    found = []
    path = read_path(binding.result_extract)
    if isinstance(path, PathFault):  # AIP-extract-3
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
