"""A driver's runner (AIP-17): how its process is run and how much it may use. Of its engines, MCP servers have one."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

LIMITS: Final = ("memory_mb", "cpu_ms")


class RunnerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of all the server's processes together; None is no limit."""

    memory_mb: int | None = None
    cpu_ms: int | None = None


def runner_faults(block: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """AIP-30.front-6: where below the block, what is wrong, what to write instead."""
    if block.get("engine") == "in-process":  # AIP-30.front-6
        yield "/engine", "an MCP server is a process of its own", "write subprocess"
    limits = block.get("limits", {})
    if not isinstance(limits, dict):
        yield "/limits", "limits is a mapping", "write limits: {memory_mb: 512}"
        return
    for name in LIMITS:
        if name in limits and not _is_limit(limits[name]):
            yield f"/limits/{name}", f"{name} is a whole number above 0", "write it without a unit, or leave it out"


def runner_limits(block: object) -> RunnerLimits:
    """What of it can be kept to. A name of a file says nothing here."""
    limits = block.get("limits") if isinstance(block, dict) else None
    if not isinstance(limits, dict):
        return RunnerLimits()
    return RunnerLimits(**{name: int(limits[name]) for name in LIMITS if _is_limit(limits.get(name))})


def _is_limit(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 and value == int(value)
