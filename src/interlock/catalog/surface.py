"""The verdict of the registry of names about a tool, as its route carries it, and who gives it."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from interlock.mcp.items import Item
from interlock.names.protocol.judgement import Judgement, SurfaceVerdict
from interlock.wire.refusal import Refusal
from interlock.wire.schemas.inclusion import Effort

LIST_STEPS_MAX: Final = 30_000  # that comparing the tools of one list may take; what is left then is undecided


class Surface(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The verdict of the registry of names about a tool. Texts are built when they are needed."""

    judgement: Judgement
    refuse: Callable[[], Refusal] | None = None  # what every call is answered
    ends_session: bool = False  # its server is refused with it
    warn: Callable[[], str] | None = None

    @property
    def is_refused(self) -> bool:
        return self.refuse is not None

    @property
    def refusal(self) -> Refusal | None:
        return None if self.refuse is None else self.refuse()

    @property
    def warning(self) -> str:
        """Return the warning for operators, or ""."""
        return "" if self.warn is None else self.warn()

    @property
    def meta(self) -> dict[str, Any] | None:
        """Return what clients get under `dev.interlock/surface` for a registered name, or None (REG-2-1)."""
        judged = self.judgement
        if judged.status is None:
            return None
        return {
            "name": judged.name,
            "verdict": judged.verdict.value,
            "digest": judged.digest,
            "status": judged.status.value,
        }


class Surfaces(Protocol):
    def judge(
        self, segment: str, tool: str, names: tuple[str, ...], item: Item, meta: Item, effort: Effort
    ) -> Surface | None:
        """Judge a tool, or return None if there is nothing to say about it.

        `tool`: its qualified name. `names`: at its server and here, without any prefix. `meta`: as its server wrote it.
        """


class _NoSurfaces:
    def judge(
        self, segment: str, tool: str, names: tuple[str, ...], item: Item, meta: Item, effort: Effort
    ) -> Surface | None:
        return None


NO_SURFACES: Final[Surfaces] = _NoSurfaces()


def is_provided(surface: Surface | None, name: str) -> bool:
    """Return whether a tool keeps to the specification of the name, so that it can replace others that do."""
    if surface is None or surface.judgement.name != name:
        return False
    return surface.judgement.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE)
