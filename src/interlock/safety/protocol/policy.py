"""What an agent may do by itself: the step limit, the tolerance, the patterns and the stages that are on (8.7.4)."""

from typing import Final, Literal

import msgspec

from interlock.safety.protocol.patterns import Pattern

Mode = Literal["disabled", "logging", "monitoring", "enforcing"]
Tolerance = Literal["conservative", "moderate", "aggressive"]

STEPS_DEFAULT: Final = 25
STAGES: Final = (1, 2, 3, 4, 5)  # the first is always on (8.7.5)
# The examples of 8.7.2. `force` is a whole word here: an agent that writes of "enforcement" forces nothing.
DENY: Final = ("drop_*", "delete_all*", "rm -rf*")
REQUIRES_APPROVAL: Final = ("delete_*", "force", "deploy_*", "git push*")
AUTO_APPROVE: Final = ("read_*", "list_*", "get_*", "search_*")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    max_autonomous_steps: int = STEPS_DEFAULT
    risk_tolerance: Tolerance = "moderate"
    deny: tuple[str, ...] = DENY
    requires_approval: tuple[str, ...] = REQUIRES_APPROVAL
    auto_approve: tuple[str, ...] = AUTO_APPROVE
    stages: tuple[int, ...] = STAGES
    tolerance_relaxes_confirm: bool = False
    preapproved: bool = False


class CompiledPolicy:
    """A policy with its patterns ready. Raises ValueError for a pattern that is none."""

    __slots__ = ("auto_approve", "deny", "policy", "requires_approval")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.deny = tuple(Pattern(text) for text in policy.deny)
        self.requires_approval = tuple(Pattern(text) for text in policy.requires_approval)
        self.auto_approve = tuple(Pattern(text) for text in policy.auto_approve)
