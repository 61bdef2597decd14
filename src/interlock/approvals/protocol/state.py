"""What an approval can become.

    pending    not decided yet
    approved   may be used once, until redeem_by
    used       on its way: its first byte may have left
    the rest   are ends; done, failed and unknown say how a used one went

The table below has every move there is. A missing row is a refusal with a name (`errors.refusal_of`), never a move.
"""

import enum
from collections.abc import Mapping
from typing import Final


class Status(enum.Enum):
    PENDING = "pending"
    APPROVED = "approved"
    USED = "used"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    VOID = "void"


class Move(enum.Enum):
    APPROVE = "approve"
    DENY = "deny"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    VOID = "void"
    USE = "use"
    SUCCEED = "succeed"
    FAIL = "fail"
    LOSE = "lose"  # the answer was lost, or the node died: the outcome is unknown


TABLE: Final[Mapping[tuple[Status, Move], Status]] = {
    (Status.PENDING, Move.APPROVE): Status.APPROVED,
    (Status.PENDING, Move.DENY): Status.DENIED,
    (Status.PENDING, Move.WITHDRAW): Status.WITHDRAWN,
    (Status.PENDING, Move.EXPIRE): Status.EXPIRED,
    (Status.PENDING, Move.VOID): Status.VOID,
    (Status.APPROVED, Move.USE): Status.USED,
    (Status.APPROVED, Move.DENY): Status.DENIED,
    (Status.APPROVED, Move.EXPIRE): Status.EXPIRED,
    (Status.APPROVED, Move.VOID): Status.VOID,
    (Status.USED, Move.SUCCEED): Status.DONE,
    (Status.USED, Move.FAIL): Status.FAILED,
    (Status.USED, Move.LOSE): Status.UNKNOWN,
}

LIVE: Final = frozenset((Status.PENDING, Status.APPROVED))  # a decision or a use is still possible
ENDS: Final = frozenset(status for status in Status if not any(status is before for before, _ in TABLE))


def maybe_after(status: Status, move: Move) -> Status | None:
    """None: there is no such move."""
    return TABLE.get((status, move))
