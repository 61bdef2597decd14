"""What a check of the guard is: its number and name, what it says of a call, what it tells an operator beforehand.

The order and the numbers are those of SURFACE 8. A refusal is a value, and names the check that made it. The type of
routes is a parameter, because routes are made further up.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeVar

import msgspec

from interlock.wire.refusal import UNAVAILABLE, Refusal

if TYPE_CHECKING:
    from interlock.core.calls.call import Call, CallLink
    from interlock.core.calls.caller import Principal


class CheckNumber(IntEnum):
    """The steps of the guard in their order. 1 and 2, the endpoint and the envelope, are checked by the fronts."""

    OPERATION = 3  # operation, family and parameters of MCP-AQL, checked by its surfaces
    ROUTE = 4
    AGENT = 5  # blocked, paused or unreported agents (MCP-AQL 8.6)
    NAMES = 6  # verdict and pin of the registry of names
    ARGUMENTS = 7
    AVAILABILITY = 8
    BUDGET = 9
    GATE = 10
    COMMIT = 11
    SEND = 12


class Refused(msgspec.Struct, frozen=True):
    """A verdict of the guard: a check refuses the call.

    `result`: what the caller is answered instead of the refusal, where a tool's result says it.
    """

    check: CheckNumber
    refusal: Refusal
    result: bytes | None = None


class Held(msgspec.Struct, frozen=True):
    """A verdict of the guard: the call waits until a person agrees, and passes by `Guard.release` alone."""


HELD: Final = Held()
CONFIRMATION_REQUIRED: Final = Refused(
    CheckNumber.GATE, Refusal(UNAVAILABLE, "unavailable", {"reason": "confirmation_required"})
)


Said = Literal["pass", "refuse", "hold", "later"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of a check on a call that is not made; `later` means that only the call itself can show it."""

    check: CheckNumber
    name: str
    verdict: Said
    reason: str


class Release(msgspec.Struct, frozen=True):
    """A person's yes to one call. `is_used`: by an earlier round of the same call. `grant_id`: of the standing grant
    that says it, where no approval of this very call does."""

    approval_id: str
    is_used: bool = False
    grant_id: str | None = None


C = TypeVar("C")
_ADMISSION_KEY: Final = object()  # only `guard.guard` imports it


class Admitted(Generic[C]):
    """A command that passed every check. Only the guard can make one."""

    __slots__ = ("command",)

    def __init__(self, command: C, key: object) -> None:
        if key is not _ADMISSION_KEY:
            raise TypeError("only the guard admits commands")
        self.command = command


R_contra = TypeVar("R_contra", contravariant=True)


class Explained(Protocol[R_contra]):
    @property
    def number(self) -> CheckNumber: ...

    @property
    def name(self) -> str: ...

    def explain(self, route: R_contra, caller: "Principal") -> Verdict:
        """Return the verdict on a call over this route by this caller now, by the predicate that decides the call."""


class Check(Explained[R_contra], Protocol[R_contra]):
    @property
    def is_common(self) -> bool:
        """Return whether the check applies to every request, including those for prompts and resources."""

    def applies_to(self, route: R_contra) -> bool:
        """Return whether the check can refuse or hold a call over this route; called once, when the route is listed."""

    def check(self, call: "Call", link: "CallLink") -> Refused | Held | None: ...


class Commit(Explained[R_contra], Protocol[R_contra]):
    async def check(self, call: "Call", link: "CallLink", release: Release) -> Refused | None:
        """Exactly one call wins; what it won is on disk, and charged."""


class Send(Explained[R_contra], Protocol[R_contra]):
    def check(self, call: "Call", link: "CallLink") -> Refused | None: ...
