"""Executions of long-running operations (8.4): started at once, queried, cancelled, retried.

A handler that takes an `Execution` uses it to report progress and to enter declared states. What the handler does after
the execution ended is dropped: the first end counts.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from interlock.aql.protocol.errors import AqlFailure, Code, OperationFailed, failure, internal_error, resource_not_found
from interlock.aql.protocol.model import TERMINAL, ExecutionStatus, Lifecycle, may_move, state_answer

log = logging.getLogger("interlock.aql")

KEEP_S: Final = 86_400.0  # for which an ended execution can be queried
EXECUTIONS_MAX: Final = 1_000  # that are remembered; beyond, those that ended first are forgotten
Work = Callable[["Execution"], Awaitable[Any]]


@dataclass(eq=False)
class Execution:
    """An execution of a long-running operation, running or finished. `extra` maps each additional state to the standard
    state that it counts as (8.4.4).
    """

    operation: str
    owner: str
    lifecycle: Lifecycle
    extra: Mapping[str, str]
    work: Work
    id: str = field(default_factory=lambda: f"exec_{secrets.token_hex(16)}")
    status: ExecutionStatus = ExecutionStatus.PENDING
    ended_at: float | None = None
    task: asyncio.Task[None] | None = None
    # As clients see it: the same members as in `answer`, except those that are not set.
    _state: str = ExecutionStatus.PENDING.value
    _started_at: str | None = None
    _finished_at: str | None = None
    _progress: dict[str, Any] | None = None
    _result: Any = None
    _error: dict[str, Any] | None = None

    def progress(
        self,
        *,
        percentage: float | None = None,
        current: float | None = None,
        total: float | None = None,
        message: str | None = None,
    ) -> None:
        """Report the progress of the execution: a percentage, `current` out of `total`, or a message. Raise ValueError
        if none of them is given or a value is invalid (8.4.3).
        """
        if percentage is None and current is None and message is None:
            raise ValueError("progress needs percentage, current with total, or message")
        if percentage is not None and not 0 <= percentage <= 100:
            raise ValueError(f"percentage is 0 to 100, not {percentage}")
        if (current is None) != (total is None):
            raise ValueError("current and total go together")
        members = {"percentage": percentage, "current": current, "total": total, "message": message}
        if self.status not in TERMINAL:  # AQL-2.3.3-3
            self._progress = {key: value for key, value in members.items() if value is not None}

    def enter(self, state: str) -> None:
        """Enter a state that the operation has declared in addition to the standard ones. Raise ValueError for an
        unknown state, or OperationFailed if the life cycle does not allow the change.
        """
        if state not in self.extra:
            raise ValueError(f"'{state}' is no declared state of '{self.operation}'")
        core = ExecutionStatus(self.extra[state])
        if self.status is not core or core in TERMINAL:  # AQL-8.4.2-2
            self.move(core)
        self._state = state

    def move(self, to: ExecutionStatus) -> None:
        """Change the status. Raise OperationFailed (CONFLICT_INVALID_STATE) if the present status does not allow the
        change.
        """
        if not may_move(self.status, to, supports_retry=self.lifecycle.supports_retry):  # AQL-8.4.2-1
            raise OperationFailed(self.invalid_state(to.value))
        self.status, self._state = to, to.value
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if to is ExecutionStatus.RUNNING:
            self._started_at, self._finished_at, self._error, self.ended_at = now, None, None, None
        elif to in TERMINAL:
            self._finished_at, self.ended_at = now, time.monotonic()

    def invalid_state(self, requested: str) -> AqlFailure:
        """Return the failure that reports a forbidden change of status."""
        details = {"execution_id": self.id, "status": self._state, "requested": requested}  # AQL-8.4.2-1
        message = f"Execution '{self.id}' is '{self._state}' and cannot become '{requested}'"
        return failure(Code.CONFLICT_INVALID_STATE, message, details)

    def answer(self) -> dict[str, Any]:
        """Return the state of the execution in the form that clients receive (8.4.3)."""
        answer = state_answer(
            self.id, self.status, started_at=self._started_at, finished_at=self._finished_at, error=self._error
        )
        if self._state != self.status.value:
            answer |= {"status": self._state, "core_status": self.status.value}
        if self._progress is not None:
            answer["progress"] = self._progress
        if self.status is ExecutionStatus.COMPLETED:
            answer["result"] = self._result
        return answer

    def start(self) -> None:
        """Start the handler in a background task."""
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Run the handler, and end the execution when the handler returns, fails or is cancelled."""
        if self.status is ExecutionStatus.PENDING:
            self.move(ExecutionStatus.RUNNING)
        try:
            result = await self.work(self)
        except asyncio.CancelledError:
            self._end(ExecutionStatus.CANCELLED)
        except OperationFailed as failed:
            self._fail(failed.failure)
        except Exception:
            ref = secrets.token_hex(4)
            log.exception("the execution of %s failed (ref %s)", self.operation, ref)
            self._fail(internal_error(f"the execution failed (ref {ref})"))
        else:
            if self._end(ExecutionStatus.COMPLETED):
                self._result = result

    def _fail(self, failure_: AqlFailure) -> None:
        """End the execution with a failure."""
        if self._end(ExecutionStatus.FAILED):
            self._error = {"code": failure_.code, "message": failure_.message}
            if failure_.details:
                self._error["details"] = failure_.details

    def _end(self, to: ExecutionStatus) -> bool:
        """Set the final status. Return False if the execution had already ended, so that a late result is dropped."""
        with contextlib.suppress(OperationFailed):
            self.move(to)  # AQL-8.4.2-2, AQL-2.3.3-3
            return True
        return False

    def cancel(self) -> None:
        """Cancel the execution. Raise OperationFailed if it has already ended (8.4.4)."""
        if self.status in TERMINAL:
            raise OperationFailed(self.invalid_state("cancelled"))  # AQL-8.4.2-2
        self.move(ExecutionStatus.CANCELLED)  # AQL-8.4.4-4
        if self.task is not None:
            self.task.cancel()

    def retry(self) -> None:
        """Run a failed execution again. Raise OperationFailed if it has not failed or does not support retries."""
        if not self.lifecycle.supports_retry or self.status is not ExecutionStatus.FAILED:
            raise OperationFailed(self.invalid_state("running"))
        self.move(ExecutionStatus.RUNNING)
        self._progress = None
        self.start()


class AdapterExecutions:
    """The executions of an adapter, by id. Only the owner that started an execution can find it; the servers of this
    library use one owner for all callers.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Execution] = {}

    def start(self, execution: Execution) -> Execution:
        """Start an execution. First delete executions that ended long ago and, if there are too many, those that ended
        first. Running executions are never deleted.
        """
        now = time.monotonic()
        ended = sorted((each.ended_at, each.id) for each in self._by_id.values() if each.ended_at is not None)
        too_many = len(self._by_id) - EXECUTIONS_MAX + 1
        for index, (ended_at, execution_id) in enumerate(ended):
            if index < too_many or now - ended_at > KEEP_S:
                del self._by_id[execution_id]
        self._by_id[execution.id] = execution
        execution.start()
        return execution

    def found(self, execution_id: str, owner: str) -> Execution:
        """Return the execution with this id. Raise OperationFailed if it is unknown or has another owner."""
        execution = self._by_id.get(execution_id)
        if execution is None or execution.owner != owner:
            raise OperationFailed(resource_not_found("execution", execution_id))
        return execution

    def __iter__(self) -> Iterator[Execution]:
        return iter(tuple(self._by_id.values()))

    def of(self, owner: str) -> Iterator[Execution]:
        """Yield the executions of one owner."""
        return (execution for execution in self._by_id.values() if execution.owner == owner)
