"""Long-running operations of an adapter: the life cycle of an execution (8.4)."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.sdk.aql_library import Library

from interlock.aql.protocol.model import ExecutionStatus, Lifecycle
from interlock.sdk.aql import Adapter, DeclarationInvalid, Execution, OperationFailed
from interlock.sdk.aql.executions import AdapterExecutions

STATUSES = list(ExecutionStatus)
ALLOWED = {
    ("pending", "running"),
    ("pending", "cancelled"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "cancelled"),
}


async def _nothing(execution: Execution) -> None:
    pass


def _at(status: ExecutionStatus, *, supports_retry: bool = False, work: Callable[..., Any] = _nothing) -> Execution:
    execution = Execution("execute_job", "local", Lifecycle((), True, supports_retry), {"queued": "pending"}, work)
    way = {"pending": [], "running": ["running"]}.get(status.value, ["running", status.value])
    if status.value == "cancelled":
        way = ["cancelled"]
    for step in way:
        execution.move(ExecutionStatus(step))
    return execution


@pytest.mark.req("AQL-8.4.2-1", "AQL-8.4.2-2")
@pytest.mark.parametrize("supports_retry", [False, True])
@pytest.mark.parametrize("before", STATUSES)
@pytest.mark.parametrize("to", STATUSES)
def test_only_the_printed_moves_are_possible(
    before: ExecutionStatus, to: ExecutionStatus, supports_retry: bool
) -> None:
    execution = _at(before, supports_retry=supports_retry)
    allowed = ALLOWED | ({("failed", "running")} if supports_retry else set())
    if (before.value, to.value) in allowed:
        execution.move(to)
        assert execution.status is to
        return
    with pytest.raises(OperationFailed) as refused:
        execution.move(to)
    assert refused.value.failure.code == "CONFLICT_INVALID_STATE"
    assert refused.value.failure.details == {
        "execution_id": execution.id,
        "status": before.value,
        "requested": to.value,
    }
    assert execution.status is before


async def _ended(library: Library, execution_id: str) -> dict[str, Any]:
    for _ in range(100):
        reply = await library.call("read", "get_execution", execution_id=execution_id)
        if reply["data"]["status"] in ("completed", "failed", "cancelled"):
            data: dict[str, Any] = reply["data"]
            return data
        await asyncio.sleep(0)
    raise AssertionError("it has not ended")


@pytest.mark.req("AQL-8.4-1", "AQL-8.4.3-1", "AQL-8.4.3-2", "AQL-X-4", "AQL-8.1-5")
async def test_an_execution_answers_at_once_and_is_asked_about() -> None:
    library = Library()
    first = (await library.call("execute", "execute_job"))["data"]
    second = (await library.call("execute", "execute_job"))["data"]
    assert first["execution_id"] != second["execution_id"]
    assert first["execution_id"].startswith("exec_")
    assert len(first["execution_id"]) == len("exec_") + 32
    assert first == {"execution_id": first["execution_id"], "status": "pending"}
    done = await _ended(library, first["execution_id"])
    assert set(done) == {"execution_id", "status", "started_at", "finished_at", "progress", "result"}
    assert done["result"] == {"done": True}
    assert done["progress"] == {"percentage": 50}
    listed = (await library.call("read", "list_executions"))["data"]["items"]
    assert [item["operation"] for item in listed] == ["execute_job", "execute_job"]
    unknown = await library.call("read", "get_execution", execution_id="exec_0")
    assert unknown["error"]["code"] == "NOT_FOUND_RESOURCE"


@pytest.mark.req("AQL-8.4.2-3", "AQL-8.4.3-2", "AQL-8.4-1")
async def test_a_failed_execution_is_run_again_where_that_is_supported() -> None:
    library = Library()
    started = (await library.call("execute", "execute_job", params={"fails": True}))["data"]["execution_id"]
    failed = await _ended(library, started)
    assert failed["error"]["code"] == "NOT_FOUND_RESOURCE"
    assert set(failed) == {"execution_id", "status", "started_at", "finished_at", "progress", "error"}
    assert {"code", "message"} <= set(failed["error"]) <= {"code", "message", "details"}
    again = (await library.call("execute", "retry_execution", execution_id=started))["data"]
    assert again["execution_id"] == started
    assert again["status"] == "running"
    assert set(again) - {"progress"} == {"execution_id", "status", "started_at"}
    assert (await _ended(library, started))["status"] == "completed"
    refused = await library.call("execute", "retry_execution", execution_id=started)
    assert refused["error"]["code"] == "CONFLICT_INVALID_STATE"
    with pytest.raises(OperationFailed):
        _at(ExecutionStatus.FAILED).retry()


@pytest.mark.req("AQL-8.4.2-2", "AQL-2.3.3-3")
async def test_the_first_end_counts() -> None:
    go_on = asyncio.Event()

    async def stubborn(execution: Execution) -> str:
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            execution.progress(message="too late")
        return "late"

    executions = AdapterExecutions()
    started_execution = Execution("execute_job", "local", Lifecycle(()), {}, stubborn)
    executions.start(started_execution)
    await asyncio.sleep(0)
    started_execution.cancel()
    before = started_execution.answer()
    assert started_execution.task is not None
    await started_execution.task
    assert started_execution.answer() == before
    assert before["status"] == "cancelled"
    assert "progress" not in before
    other = executions.start(Execution("execute_job", "local", Lifecycle(()), {}, stubborn))
    await asyncio.sleep(0)
    other.progress(message="half")
    go_on.set()
    assert other.task is not None
    await other.task
    ended = other.answer()
    assert (ended["status"], ended["result"], ended["progress"]) == ("completed", "late", {"message": "half"})
    with pytest.raises(OperationFailed):
        started_execution.cancel()
    with pytest.raises(OperationFailed):
        executions.found(started_execution.id, "somebody else")


@pytest.mark.req("AQL-8.4.2-2", "AQL-8.4.3-2", "AQL-8.4-1")
@pytest.mark.parametrize("first", ["completed", "failed", "cancelled"])
async def test_late_results_do_not_change_how_an_execution_ended(first: str) -> None:
    """A cancellation is refused and keeps finished_at; results, failures, progress and states are dropped."""
    library, go_on, late = Library(), asyncio.Event(), asyncio.Event()
    refusals: list[str] = []

    async def job(execution: Execution) -> str:
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            await late.wait()
            execution.progress(message="late")
            try:
                execution.enter("stopped")
            except OperationFailed as refusal:
                refusals.append(refusal.failure.code)
        if first == "failed":
            raise OSError("it broke")
        return "done"

    started_execution = Execution("execute_job", "local", Lifecycle(("stopped",)), {"stopped": "cancelled"}, job)
    library.adapter.executions.start(started_execution)
    await asyncio.sleep(0)
    if first == "cancelled":
        assert (await library.call("execute", "cancel_execution", execution_id=started_execution.id))["success"]
    else:
        go_on.set()
        assert started_execution.task is not None
        await started_execution.task
    ended = (await library.call("read", "get_execution", execution_id=started_execution.id))["data"]
    more = {"completed": {"result"}, "failed": {"error"}, "cancelled": set[str]()}[first]
    assert ended["status"] == first
    assert set(ended) == {"execution_id", "status", "started_at", "finished_at"} | more
    await asyncio.sleep(0.002)  # finished_at counts milliseconds
    late.set()
    assert started_execution.task is not None
    await started_execution.task
    for operation, requested in (("cancel_execution", "cancelled"), ("retry_execution", "running")):
        refused = (await library.call("execute", operation, execution_id=started_execution.id))["error"]
        assert refused["code"] == "CONFLICT_INVALID_STATE"
        assert refused["details"] == {"execution_id": started_execution.id, "status": first, "requested": requested}
    assert (await library.call("read", "get_execution", execution_id=started_execution.id))["data"] == ended
    assert refusals == ["CONFLICT_INVALID_STATE"] * (first == "cancelled")


@pytest.mark.req("AQL-8.4.2-2")
async def test_of_racing_ends_exactly_one_counts() -> None:
    library, go_on = Library(), asyncio.Event()

    async def job(execution: Execution) -> str:
        await go_on.wait()
        return "done"

    result = library.adapter.executions.start(Execution("execute_job", "local", Lifecycle(()), {}, job))
    await asyncio.sleep(0)
    go_on.set()
    entries = [library.call("execute", "cancel_execution", execution_id=result.id) for _ in range(3)]
    answers = await asyncio.gather(*entries)
    assert result.task is not None
    await result.task
    ended = result.answer()
    accepted = sum(answer["success"] for answer in answers)
    assert accepted == (ended["status"] == "cancelled")
    assert {answer["error"]["code"] for answer in answers if not answer["success"]} == {"CONFLICT_INVALID_STATE"}


STUBBORN = """
import asyncio, sys
from interlock.sdk.aql import Adapter
from interlock.sdk.aql.server import serve_stdio

adapter = Adapter("x")

@adapter.execute(long_running=True)
async def execute_job() -> str:
    "Ends well, although it is told to stop."
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "late"

@adapter.execute(long_running=True)
async def execute_quick() -> str:
    "Ends before the client leaves."
    return "in time"

async def main():
    await serve_stdio([adapter])
    left, done = adapter.executions
    at_the_end = left.answer()
    await left.task
    print(at_the_end["status"], left.answer() == at_the_end, done.answer()["status"], file=sys.stderr)

asyncio.run(main())
"""


@pytest.mark.req("AQL-2.3.3-3")
async def test_executions_are_cancelled_for_good_when_the_client_leaves() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", STUBBORN, **pipes)
    assert server.stdin is not None and server.stdout is not None
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    calls = [
        {"name": f"mcp_aql_{family}", "arguments": {"operation": name}}
        for family, name in (("execute", "execute_job"), ("execute", "execute_quick"), ("read", "list_executions"))
    ]
    for method, params in (("initialize", greeting), *(("tools/call", call) for call in calls)):
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        answer = json.loads(await server.stdout.readline())
    assert answer["result"]["structuredContent"]["data"]["items"][0]["status"] == "running"
    assert (await server.communicate(b""))[1] == b"cancelled True completed\n"


@pytest.mark.req("AQL-8.4.4-1", "AQL-8.4.4-2", "AQL-8.4.4-3", "AQL-8.4.4-4", "AQL-8.4.1-1", "AQL-8.5.1-2")
def test_a_state_of_its_own_is_declared_shown_and_cancelled() -> None:
    execution = _at(ExecutionStatus.PENDING)
    execution.enter("queued")
    assert execution.answer()["status"] == "queued"
    assert execution.answer()["core_status"] == "pending"
    execution.cancel()
    assert execution.status is ExecutionStatus.CANCELLED
    running = _at(ExecutionStatus.RUNNING)
    with pytest.raises(ValueError, match="no declared state"):
        running.enter("dreaming")
    assert running.status is ExecutionStatus.RUNNING
    running.cancel()
    assert running.status is ExecutionStatus.CANCELLED
    library = Library()
    assert "queued" in library.details("execute_job")["lifecycle"]["states"]
    type = library.ask("read", "introspect", params={"query": "types", "name": "ExecutionState"})["data"]["type"]
    assert "queued counts as pending" in type["description"]
    for wrong in ({"paused": ""}, {"paused": "failed"}, {"running": "running"}):
        with pytest.raises(DeclarationInvalid, match="map to pending or running"):

            @Adapter("x").execute(long_running=True, states=wrong)
            async def execute_thing() -> None:
                """Runs."""


@pytest.mark.req("AQL-8.4.5-1", "AQL-8.4.4-5", "AQL-8.4-1")
def test_the_life_cycle_is_introspected() -> None:
    library = Library()
    offered = {
        "get_execution": "READ",
        "list_executions": "READ",
        "cancel_execution": "EXECUTE",
        "retry_execution": "EXECUTE",
    }
    assert {name: library.details(name)["semantic_category"] for name in offered} == offered
    assert library.details("execute_job")["lifecycle"] == {
        "states": ["pending", "running", "completed", "failed", "cancelled", "queued"],
        "supports_cancel": True,
        "supports_retry": True,
        "progress_reporting": True,
    }
    assert "lifecycle" not in library.details("execute_wait")
    assert "becomes cancelled" in library.details("cancel_execution")["description"]
    assert "failed becomes running" in library.details("retry_execution")["description"]
    assert "Changes no state" in library.details("get_execution")["description"]


@pytest.mark.req("AQL-8.4.3-3")
@pytest.mark.parametrize("wrong", [{}, {"percentage": 101}, {"percentage": -1}, {"current": 1}, {"total": 2}])
def test_progress_needs_a_percentage_a_count_or_a_message(wrong: dict[str, float]) -> None:
    execution = _at(ExecutionStatus.RUNNING)
    for entry in ({"percentage": 0}, {"current": 1, "total": 2}, {"message": "x"}):
        execution.progress(**entry)  # type: ignore[arg-type]
        assert execution.answer()["progress"] == entry
    with pytest.raises(ValueError, match=r"progress|percentage|current"):
        execution.progress(**wrong)  # type: ignore[arg-type]
    assert execution.answer()["progress"] == {"message": "x"}
