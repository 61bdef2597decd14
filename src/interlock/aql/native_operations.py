"""The node's own operations: a declaration and an async handler each. One registry per node.

A capability adds what it serves (`add`). The AQL surfaces route to it, validate its parameters by the declaration, and
show it in introspection. A handler gets the context of the call and the validated parameters under their declared
names, and returns data that can be JSON (or `Raw` text, or a `NativeAnswer` with warnings). To fail with a code it
raises `OperationFailed`; any other exception is answered INTERNAL_ERROR with an id that the log repeats. A handler runs
in a task of its own, which is cancelled when the client cancels the call or disconnects.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from interlock.aql.protocol.envelope import AnswerWarning
from interlock.aql.protocol.model import AqlOperation, check_operation
from interlock.core.calls.caller import Caller


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """Context of one call of a native operation."""

    operation: AqlOperation
    caller: Caller  # whose `principal` is who calls; nothing in a request's `_meta` says that
    session_id: str | None  # aqls_..., of a client that has a session; None over stateless HTTP
    tell_progress: Callable[[float, float | None, str | None], None]  # progress, total, message; nothing without token


class NativeAnswer(msgspec.Struct, frozen=True):
    """Data with warnings, for a handler that has some."""

    data: Any
    warnings: Sequence[AnswerWarning] = ()


Handler = Callable[[OperationContext, dict[str, Any]], Awaitable[Any]]


class NativeOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A registered operation. To a caller for which `is_shown` is false, its name is unknown."""

    declaration: AqlOperation
    handler: Handler
    is_shown: Callable[[Caller], bool]


def _shown_to_all(caller: Caller) -> bool:
    return True


class NativeOperations:
    """The registry of native operations. `version` grows with each change, so that caches notice it."""

    def __init__(self) -> None:
        self._by_name: dict[str, NativeOperation] = {}
        self.version = 0

    def add(
        self, declaration: AqlOperation, handler: Handler, *, is_shown: Callable[[Caller], bool] = _shown_to_all
    ) -> None:
        """Add an operation. Raise ValueError for an invalid declaration, or for a name that is taken (6.2)."""
        problem = check_operation(declaration, may_be_reserved=True)
        if declaration.name in self._by_name:  # AQL-6.2-1
            problem = f"operation '{declaration.name}': there is one of this name already (6.2)"
        if problem is not None:
            raise ValueError(problem)
        self._by_name[declaration.name] = NativeOperation(declaration=declaration, handler=handler, is_shown=is_shown)
        self.version += 1

    def remove(self, name: str) -> None:
        if self._by_name.pop(name, None) is not None:
            self.version += 1

    def maybe(self, name: str) -> NativeOperation | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[NativeOperation]:
        return iter(tuple(self._by_name.values()))
