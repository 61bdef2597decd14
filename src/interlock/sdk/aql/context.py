"""`Context`: what a handler may ask of the call it serves, and tell with its answer."""

from collections.abc import Callable, Mapping
from typing import Any

from interlock.aql.protocol.envelope import WARNING_CODES, Severity, Warn


class Context:
    """A parameter of a handler that is annotated `Context` receives it. Usable in threads."""

    def __init__(
        self,
        operation: str,
        caller: str,
        is_cancelled: Callable[[], bool],
        tell_progress: Callable[[float, float | None, str | None], None],
    ) -> None:
        self.operation = operation
        self.caller = caller
        self.warnings: list[Warn] = []
        self._is_cancelled = is_cancelled
        self._tell_progress = tell_progress

    @property
    def cancelled(self) -> bool:
        """The caller no longer waits. An async handler is cancelled anyway; a plain one should look now and then."""
        return self._is_cancelled()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Told to the caller if it asked for progress. `done` must grow."""
        self._tell_progress(done, total, message)

    def warn(
        self, code: str, message: str, details: Mapping[str, Any] | None = None, severity: Severity = "low"
    ) -> None:
        """Stands in `warnings` of a success."""
        if code not in WARNING_CODES:
            raise ValueError(f"'{code}' is none of {', '.join(sorted(WARNING_CODES))}")
        said = None if details is None else dict(details)
        self.add_warning(Warn(code=code, message=message, details=said, severity=severity))

    def add_warning(self, warning: Warn) -> None:
        self.warnings.append(warning)
