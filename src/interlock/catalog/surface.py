"""What the registry of names says of a tool, as its route carries it, and who says it when a list arrives."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from interlock.mcp.items import Item
from interlock.names.protocol.judgement import Judgement, SurfaceVerdict
from interlock.wire.refusal import Refusal
from interlock.wire.schemas.inclusion import Effort

LIST_STEPS_MAX: Final = 30_000  # that comparing the tools of one list may take; what is left then is undecided


class Surface(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is said of a difference is put into words when somebody asks."""

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
        """For operators; empty: there is nothing to say."""
        return "" if self.warn is None else self.warn()

    @property
    def meta(self) -> dict[str, Any] | None:
        """Of a registered name: what clients are told under `dev.interlock/surface` (REG-2-1)."""
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
        """`tool`: its qualified name. `names`: those it goes by at its server and here, before any prefix. `meta`: as
        its server wrote it. None: there is nothing to say of them."""


class _NoSurfaces:
    def judge(
        self, segment: str, tool: str, names: tuple[str, ...], item: Item, meta: Item, effort: Effort
    ) -> Surface | None:
        return None


NO_SURFACES: Final[Surfaces] = _NoSurfaces()


def is_provided(surface: Surface | None, name: str) -> bool:
    """Whether a tool keeps to the specification of the name, so that it can stand in for others that do."""
    if surface is None or surface.judgement.name != name:
        return False
    return surface.judgement.verdict in (SurfaceVerdict.IDENTICAL, SurfaceVerdict.COMPATIBLE)
