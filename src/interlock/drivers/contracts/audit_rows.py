"""The two rows that a call through a contract leaves in the audit log (AIP-30.audit-1): names and counts, no value.

`driver.resolved` says who could have served it and who was chosen, `driver.invoked` what came of it. A call that was
sent to one driver and went on to another leaves a `driver.invoked` for each. docs/driver-calls.md lists the keys.
"""

import functools
from typing import Final

import msgspec

from interlock.core.clock import rfc3339
from interlock.drivers.protocol.model import Contract, Driver
from interlock.drivers.protocol.selection.resolver import SelectionChoice

RESOLVED: Final = "driver.resolved"
INVOKED: Final = "driver.invoked"
INPUT_KEYS_MAX: Final = 100

_encode = msgspec.json.Encoder().encode


@functools.lru_cache(maxsize=128)
def _resolved_row(at: int, who: str, via: str, tool: str, workspace: str, row: bytes, code: str | None) -> bytes:
    head = {
        "at": rfc3339(at),
        "who": who,
        "via": str(via),
        "method": RESOLVED,
        "tool": tool,
        "outcome": code or "ok",
        "user_id": who,
        "workspace_id": workspace,
    }
    return _encode(head)[:-1] + b"," + row[1:]


def resolved_row(at: float, who: str, via: str, tool: str, workspace: str, row: bytes, code: str | None) -> bytes:
    """The row of a resolution. `row`: an encoded `resolved_row` of the resolver. `code`: why no driver was chosen."""
    return _resolved_row(int(at), who, via, tool, workspace, row, code)


@functools.lru_cache(maxsize=128)
def _frame(
    at: int, who: str, via: str, tool: str, workspace: str, facts: bytes, input_keys: tuple[str, ...], code: str | None
) -> bytes:
    """All but the duration: many calls of one second share it."""
    head = {
        "at": rfc3339(at),
        "who": who,
        "via": str(via),
        "method": INVOKED,
        "tool": tool,
        "outcome": code or "ok",
        "user_id": who,
        "workspace_id": workspace,
        "ok": code is None,
        "input_keys": input_keys[:INPUT_KEYS_MAX],
    }
    return _encode(head)[:-1] + b"," + facts[1:-1]


def invoked_row(
    at: float,
    who: str,
    via: str,
    tool: str,
    workspace: str,
    facts: bytes,
    input_keys: tuple[str, ...],
    seconds: float,
    code: str | None,
) -> bytes:
    """`facts`: what `facts_of` says. `code`: of the error; None when it succeeded."""
    frame = _frame(int(at), who, via, tool, workspace, facts, input_keys, code)
    return b'%b,"duration_ms":%.3f}' % (frame, seconds * 1000)


def facts_of(contract: Contract, choice: SelectionChoice) -> bytes:
    """What is the same for every call that this driver serves."""
    candidate = choice.candidate
    driver = candidate.driver
    return _encode(
        {
            "tool_id": contract.id,
            "mutates": contract.mutates,
            "provider_id": candidate.key,
            "provider_version": driver.version,
            "cost_units_charged": choice.cost_units,
            "auth_state": auth_of(driver),
            "kind": candidate.kind,
            "mcp_tool_name": candidate.binding.tool_name,
            "transport": driver.transport,
            "server_kind": driver.server.__struct_config__.tag,
        }
    )


def auth_of(driver: Driver) -> str:
    """Of a driver that takes calls: one that lacks a login or a secret takes none."""
    return "authed" if driver.secret_names or driver.auth is not None else "unknown"
