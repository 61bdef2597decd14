"""Arguments without what is meant for gateways alone (AX-8.2-5): x-mcpax-*, and `_meta` with its progress token."""

from collections.abc import Mapping
from typing import Any

PREFIX = "x-mcpax-"
META = "_meta"


def without_metadata(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _stripped(value)
        for name, value in arguments.items()
        if name != META and not name.lower().startswith(PREFIX)  # AX-8.2-5
    }


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stripped(member) for name, member in value.items() if not name.lower().startswith(PREFIX)}
    if isinstance(value, list):
        return [_stripped(member) for member in value]
    return value
