"""The operations about executions (8.4), which every adapter with a long-running operation has."""

from typing import TYPE_CHECKING, Annotated, Any

from interlock.aql.protocol.model import Category
from interlock.sdk.aql.context import Context

if TYPE_CHECKING:
    from interlock.sdk.aql.adapter import Adapter

_Id = Annotated[str, "The execution_id of the answer that started it."]


def add_execution_operations(adapter: "Adapter") -> None:
    executions = adapter.executions

    async def get_execution(execution_id: _Id, context: Context) -> dict[str, Any]:
        return executions.found(execution_id, context.caller).answer()

    async def list_executions(context: Context) -> dict[str, Any]:
        return {"items": [{"operation": one.operation, **one.answer()} for one in executions.of(context.caller)]}

    async def cancel_execution(execution_id: _Id, context: Context) -> dict[str, Any]:
        found = executions.found(execution_id, context.caller)
        found.cancel()
        return found.answer()

    async def retry_execution(execution_id: _Id, context: Context) -> dict[str, Any]:
        found = executions.found(execution_id, context.caller)
        found.retry()
        return found.answer()

    for category, function, said in (
        (Category.READ, get_execution, "The state of an execution, with its result once completed. Changes no state."),
        (Category.READ, list_executions, "The executions of this caller. Changes no state."),
        (Category.EXECUTE, cancel_execution, "Ends an execution: pending or running becomes cancelled."),
        (
            Category.EXECUTE,
            retry_execution,
            "Runs a failed execution again, where its operation supports that: failed becomes running.",
        ),
    ):
        adapter.add(category, function, description=said, own=True)
