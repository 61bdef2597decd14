"""What a client of an AQL surface can do about a refusal: the operation that helps, and the tool that takes it."""

from typing import Final

import msgspec

from interlock.aql.adapter import AqlAdapter
from interlock.aql.loop_operations import DECLARATIONS
from interlock.aql.operation_index import Entry
from interlock.aql.protocol.envelope import Warn
from interlock.aql.protocol.errors import Code, Failure
from interlock.aql.protocol.families import Mode
from interlock.aql.protocol.model import Category
from interlock.aql.quotas import Quotas
from interlock.core.calls.caller import Caller

_CATEGORIES: Final = {one.name: one.category for one in DECLARATIONS}
# By the reason of a refusal of the safety loop.
_OPERATIONS: Final = {
    "execution_required": "execute_agent",
    "unreported_action": "record_execution_step",
    "paused": "record_execution_step",
    "agent_blocked": "verify_challenge",
}


class Guidance:
    def __init__(self, adapter: AqlAdapter, mode: Mode, quotas: Quotas) -> None:
        self._adapter = adapter
        self._mode: Mode = mode
        self._quotas = quotas

    @property
    def has_quotas(self) -> bool:
        return self._quotas.is_needed

    def quota_warnings(self, caller: Caller, entry: Entry) -> tuple[Warn, ...]:
        return self._quotas.warnings(caller, entry)

    def complete(self, failure: Failure) -> Failure:
        details = failure.details or {}
        operation = _OPERATIONS.get(str(details.get("reason")))
        if operation is None or failure.code != Code.PERMISSION_DENIED.value:
            return self._quotas.with_time(failure)
        tool = self._tool(_CATEGORIES[operation])
        said = f"{failure.message}. {_sentence(details.get('detail'))}Operation '{operation}' is called via {tool}"
        return msgspec.structs.replace(failure, message=said, details={**details, "operation": operation, "tool": tool})

    def _tool(self, category: Category) -> str:
        endpoints = self._adapter.endpoints(self._mode)
        return endpoints.tool_of_family(endpoints.profile.by_category[category])


def _sentence(detail: object) -> str:
    return f"{detail[:1].upper()}{detail[1:]}. " if isinstance(detail, str) and detail else ""
