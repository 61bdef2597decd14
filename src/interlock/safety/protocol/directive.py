"""What an agent is told: the AutonomyDirective (8.7.1) and its notifications (8.7.3), as they stand on the wire."""

from enum import Enum
from typing import Any

import msgspec

from interlock.safety.protocol.evaluation import Evaluation


class NotificationType(Enum):
    PERMISSION_PENDING = "permission_pending"
    AUTONOMY_PAUSE = "autonomy_pause"
    DANGER_ZONE = "danger_zone"
    STATUS = "status"
    ERROR = "error"


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    operation: str | None = None
    reason: str | None = None
    level: str | None = None
    verification_id: str | None = None


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: NotificationType
    message: str
    timestamp: str
    metadata: Metadata | None = None


class Directive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """`stopped` stands only where it is true."""

    continue_: bool = msgspec.field(name="continue")
    factors: tuple[str, ...]
    stopped: bool = False
    reason: str | None = None
    steps_remaining: int | None = None
    next_step_risk: str | None = None
    notifications: tuple[Notification, ...] = ()

    def shown(self) -> dict[str, Any]:
        members: dict[str, Any] = msgspec.to_builtins(self)
        return members


def tier_word(evaluation: Evaluation) -> str | None:
    return None if evaluation.risk is None else evaluation.risk.tier.value
