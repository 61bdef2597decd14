"""The two rows that a call through a contract leaves in the audit log (AIP-30.audit-1): names and counts, no value.

`driver.resolved` says who could have served it and who was chosen, `driver.invoked` what came of it. A call that was
sent to one driver and went on to another leaves a `driver.invoked` for each. docs/driver-calls.md lists the keys.
"""

from typing import Final

import msgspec

from interlock.protocol.drivers.resolver import Choice
from interlock.runtime.clock import rfc3339
from interlock.runtime.drivers.ports import DriverState, Provider

RESOLVED: Final = "driver.resolved"
INVOKED: Final = "driver.invoked"
INPUT_KEYS_MAX: Final = 100

_encode = msgspec.json.Encoder().encode


def resolved(who: str, via: str, tool: str, at: float, workspace: str, row: bytes, code: str | None) -> bytes:
    """`row`: what `protocol.drivers.resolver.resolved_row` says, encoded. `code`: of the error, where nobody was."""
    head = {
        "at": rfc3339(at),
        "who": who,
        "via": via,
        "method": RESOLVED,
        "tool": tool,
        "outcome": code or "ok",
        "user_id": who,
        "workspace_id": workspace,
    }
    return _encode(head)[:-1] + b"," + row[1:]


def invoked(
    who: str,
    via: str,
    tool: str,
    at: float,
    workspace: str,
    *,
    choice: Choice,
    tool_id: str,
    input_keys: list[str],
    duration_s: float,
    code: str | None,
    auth_state: str,
) -> bytes:
    """`code`: of the error; None when it succeeded."""
    candidate = choice.candidate
    driver = candidate.driver
    return _encode(
        {
            "at": rfc3339(at),
            "who": who,
            "via": via,
            "method": INVOKED,
            "tool": tool,
            "outcome": code or "ok",
            "user_id": who,
            "workspace_id": workspace,
            "provider_id": candidate.key,
            "provider_version": driver.version,
            "tool_id": tool_id,
            "input_keys": input_keys[:INPUT_KEYS_MAX],
            "duration_ms": round(duration_s * 1000, 3),
            "ok": code is None,
            "cost_units_charged": choice.cost_units,
            "auth_state": auth_state,
            "kind": candidate.kind,
            "mcp_tool_name": candidate.binding.tool_name,
            "transport": driver.transport,
            "server_kind": driver.server.__struct_config__.tag,
        }
    )


def auth_of(provider: Provider) -> str:
    if provider.state is DriverState.UNAUTHED:
        return "unauthed"
    return "authed" if provider.driver.secret_names or provider.driver.auth is not None else "unknown"
