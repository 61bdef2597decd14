"""Dangerous operations of an agent inside an execution: a person confirms them, and the agent never gets the token.

Outside of an execution a caller confirms itself, with a token that it is given. Inside, the token goes to operators: an
operation waits as an approval, the next directives say so, and when a person has agreed the same call runs. CREATE is
agreed to once for the execution, everything else for one call (C.gate-1, 8.7.3).
"""

from typing import Any, Final

import msgspec

from interlock.aql.protocol.model import Category

SESSION: Final = "CONFIRM_SESSION"
LEVELS: Final = {
    Category.READ: "AUTO_APPROVE",
    Category.CREATE: SESSION,
    Category.UPDATE: "CONFIRM_SINGLE_USE",
    Category.DELETE: "CONFIRM_SINGLE_USE",
    Category.EXECUTE: "CONFIRM_SINGLE_USE",
}
HELD_MAX: Final = 50  # of one execution


class HeldOperation(msgspec.Struct, frozen=True, kw_only=True):
    """`digest`: of its parameters; what was agreed to is exactly what runs."""

    operation: str
    digest: str
    category: Category
    danger: str
    reasons: tuple[str, ...]
    params: Any
    at: float

    @property
    def level(self) -> str:
        return LEVELS[self.category]

    @property
    def key(self) -> tuple[str, str]:
        return self.operation, "" if self.category is Category.CREATE else self.digest


class HeldOperations:
    """Those of one execution: what waits, by the id of its approval, and what may run."""

    def __init__(self) -> None:
        self._waiting: dict[str, HeldOperation] = {}
        self._released: set[tuple[str, str]] = set()

    @property
    def waiting(self) -> dict[str, HeldOperation]:
        return self._waiting

    def maybe_waiting(self, held: HeldOperation) -> str | None:
        """The approval that it waits for already."""
        return next((id for id, one in self._waiting.items() if one.key == held.key), None)

    def wait(self, id: str, held: HeldOperation) -> None:
        while len(self._waiting) >= HELD_MAX:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[id] = held

    def settle(self, id: str, *, is_yes: bool) -> HeldOperation | None:
        """What was decided about. None: it is none of these."""
        held = self._waiting.pop(id, None)
        if held is not None and is_yes:
            self._released.add(held.key)
        return held

    def is_released(self, held: HeldOperation) -> bool:
        """Whether a person agreed to it."""
        return held.key in self._released

    def use(self, held: HeldOperation) -> None:
        """It runs: once, but for what counts for the whole execution."""
        if held.level != SESSION:
            self._released.discard(held.key)
