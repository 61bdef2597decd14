"""An execution and its life cycle (8.4): the states, the moves between them, and a state answer."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final


class ExecutionStatus(Enum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = ExecutionStatus
MOVES: Final[Mapping[ExecutionStatus, frozenset[ExecutionStatus]]] = {
    _S.PENDING: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}
TERMINAL: Final = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})


def may_move(status: ExecutionStatus, to: ExecutionStatus, *, supports_retry: bool = False) -> bool:
    """Return whether a state may follow another (8.4.2). Only a retry leaves `failed`, if it is supported."""
    return to in MOVES[status] or (supports_retry and status is _S.FAILED and to is _S.RUNNING)  # AQL-8.4.2-1


def state_answer(
    execution_id: str,
    status: ExecutionStatus,
    *,
    started_at: str | None = None,
    finished_at: str | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the state of an execution (8.4.3): `started_at` from running on, `finished_at` in terminal states,
    `error` in failed.
    """
    state: dict[str, Any] = {"execution_id": execution_id, "status": status.value}
    if started_at is not None:
        state["started_at"] = started_at
    if finished_at is not None and status in TERMINAL:
        state["finished_at"] = finished_at
    if error is not None and status is _S.FAILED:
        state["error"] = dict(error)
    return state
