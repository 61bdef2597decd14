"""The evaluation of a reported step, or of the call that follows it, in five stages (8.7.2).

The input is the agent's policy, the hint, and the number of steps so far. The output is whether the agent continues,
pauses, must be verified or is stopped, with the reason and one factor for each stage. The first stage that pauses or
stops the agent ends the evaluation. Factors and reasons do not reveal any pattern, so that an agent cannot learn how to
phrase hints to avoid them.

The result is sent to the agent as an AutonomyDirective (8.7.1) with notifications (8.7.3).
"""

import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from interlock.safety.protocol.hint import Hint, normalise, stems
from interlock.safety.protocol.policy import CompiledPolicy

# The risk of an action (8.7.2, stages 4 and 5): a score from 0 to 100, its tier, and the tolerance of an agent.
#
# The score is a pure function of the words of the action and of what is known of the danger of the operation it
# names. A word that means more harm raises it, nothing lowers it; an action in which nothing is recognised scores
# UNRECOGNISED.

SCORES: Final = (10, 25, 50, 75, 95)  # by danger level: safe, reversible, destructive, dangerous, forbidden
UNRECOGNISED: Final = 30
SCORE_MAX: Final = 100


class Tier(Enum):
    """Class of a risk score, from a mere advice to a block (8.7.2)."""

    ADVISORY = "advisory"
    CONFIRM = "confirm"
    VERIFY = "verify"
    DANGER_ZONE = "danger_zone"


_TIERS: Final = ((30, Tier.ADVISORY), (60, Tier.CONFIRM), (85, Tier.VERIFY), (SCORE_MAX, Tier.DANGER_ZONE))
TOLERANCES: Final = {"conservative": 25, "moderate": 50, "aggressive": 75}

_VERBS: Final = (
    "read get list search find show view fetch look check count describe inspect summarise summarize introspect open",
    "write create add update set edit insert send post put upload move rename copy append save change call make",
    "delete remove revoke overwrite uninstall kill terminate disable unlink detach discard erase merge publish pay buy",
    "force purge drop override bypass permanently sudo truncate chmod chown transfer",
    "destroy wipe shred mkfs nuke obliterate",
)
DANGER_BY_WORD: Final = {word: level for level, words in enumerate(_VERBS) for word in words.split()}


class Risk(msgspec.Struct, frozen=True):
    """Risk of an action: a score from 0 to 100, and the word or assessment that caused the score."""

    score: int
    why: str
    is_clamped: bool = False

    @property
    def tier(self) -> Tier:
        return tier_of(self.score)


def tier_of(score: int) -> Tier:
    return next(tier for limit, tier in _TIERS if score <= limit)


def whole_score(score: float) -> tuple[int, bool]:
    """Round a score up to an integer and clamp it to the range 0 to 100. Return it, and whether it
    had to be clamped.
    """
    if math.isnan(score):
        return SCORE_MAX, True
    if not 0 <= score <= SCORE_MAX:
        return (0, True) if score < 0 else (SCORE_MAX, True)
    return math.ceil(score), False


def risk_of(words: Iterable[str], *, danger: int | None = None, also: float = 0.0) -> Risk:
    """Return the risk of an action that is described by `words`.

    `danger` is the declared danger level of the operation, or None. `also` is a score from another assessment, which
    can only raise the result.
    """
    level, word = max(
        ((DANGER_BY_WORD[stem], each) for each in words for stem in stems(each) if stem in DANGER_BY_WORD),
        key=lambda pair: pair[0],
        default=(-1, ""),
    )
    score, why = (SCORES[level], f'"{word}"') if level >= 0 else (UNRECOGNISED, "nothing in it is recognised")
    if danger is not None and (level < 0 or SCORES[danger] > score):
        score, why = SCORES[danger], "the danger level of the operation"
    other_score, is_clamped = whole_score(also)
    if other_score > score:
        score, why = other_score, "another assessment"
    return Risk(score, why, is_clamped)


LIMIT_REASON: Final = "Step limit exceeded"
StepOutcome = Literal["success", "failure", "skipped"]
READ_ONLY: Final = 0  # the danger level of what changes nothing

_SEVERAL: Final = re.compile(r"[;&|<>$`]|\b(?:and|then)\b")  # an action with more behind it


class StepVerdict(Enum):
    """Result of an evaluation: whether the agent may continue."""

    CONTINUE = "continue"
    PAUSE = "pause"
    VERIFY = "verify"
    STOP = "stop"


_NEEDS_APPROVAL: Final = "This action needs the approval of a person."
_TOO_DANGEROUS: Final = "This action is too dangerous. The agent is blocked until a person verifies it."
_BY_TIER: Final[Mapping[Tier, tuple[StepVerdict, str | None]]] = {
    Tier.ADVISORY: (StepVerdict.CONTINUE, None),
    Tier.CONFIRM: (StepVerdict.PAUSE, _NEEDS_APPROVAL),
    Tier.VERIFY: (StepVerdict.VERIFY, "This action waits until a person verifies it with a code."),
    Tier.DANGER_ZONE: (StepVerdict.STOP, _TOO_DANGEROUS),
}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of all stages with its reason, and one factor for each stage that was evaluated."""

    verdict: StepVerdict
    factors: tuple[str, ...]
    reason: str | None = None
    risk: Risk | None = None  # where stage 4 ran
    stage: int = 0  # that ended it; 0: all were passed
    steps_remaining: int | None = None
    is_counted: bool = True  # against the step limit

    def or_stopped(self, reason: str) -> "Evaluation":
        """Return this evaluation if it already stops the agent; otherwise a copy that stops the agent for `reason`,
        which another assessment gave.
        """
        if self.verdict is StepVerdict.STOP:
            return self
        factors = (*self.factors, "Stage 4: another assessment stops it")
        return msgspec.structs.replace(self, verdict=StepVerdict.STOP, reason=reason, stage=4, factors=factors)


def evaluate(
    compiled: CompiledPolicy,
    hint: Hint,
    *,
    steps: int,
    outcome: StepOutcome | None = None,
    danger: int | None = None,
    also: float = 0.0,
) -> Evaluation:
    """Evaluate a reported action in the stages of the policy.

    `steps` is the number of steps before this one, and `outcome` is the result of the previous step. `danger` is the
    declared danger level of the operation that the hint names, and `also` is a risk score from another assessment.
    """
    policy = compiled.policy
    is_read = 3 in policy.stages and is_auto_approved(compiled, hint)
    limit, number = policy.max_autonomous_steps, steps + (0 if is_read else 1)
    left = max(0, limit - number)  # AQL-8.7.2-2
    factors: list[str] = []

    def ended(verdict: StepVerdict, stage: int, reason: str, factor: str, risk: Risk | None = None) -> Evaluation:
        all_factors = (*factors, f"Stage {stage}: {factor}")
        return Evaluation(
            verdict=verdict, factors=all_factors, reason=reason, risk=risk, stage=stage, steps_remaining=left,
            is_counted=not is_read,
        )  # fmt: skip

    if number > limit:  # AQL-8.7.2-2
        return ended(StepVerdict.PAUSE, 1, LIMIT_REASON, f"step {number} is beyond the limit of {limit}")
    factors.append(f"Stage 1: step {number} of {limit}")
    if 2 in policy.stages and outcome is not None:
        if outcome == "failure":
            reason = "The previous step failed; tell your user, or the system you work for, before it is tried again."
            return ended(StepVerdict.PAUSE, 2, reason, "the previous step failed")
        factors.append(f"Stage 2: the previous step was reported as {outcome}")
    matched = _match(compiled, hint.actions) if 3 in policy.stages else None
    if matched is not None:
        return ended(matched.verdict, 3, matched.reason or "", matched.factors[0])
    if is_read:
        factors.append("Stage 3: approved automatically")
        return Evaluation(verdict=StepVerdict.CONTINUE, factors=tuple(factors), steps_remaining=left, is_counted=False)
    if 3 in policy.stages:
        factors.append("Stage 3: no pattern matches")
    risk = risk_of(hint.words, danger=danger, also=also)
    if 4 in policy.stages:
        judged = _judge(compiled, risk)
        if judged.verdict is not StepVerdict.CONTINUE:
            return ended(judged.verdict, 4, judged.reason or "", judged.factors[0], risk)
        factors.append(f"Stage 4: {judged.factors[0]}")
    if 5 in policy.stages:
        threshold = TOLERANCES[policy.risk_tolerance]
        if risk.score > threshold:
            reason = f"The risk of this action is above what a {policy.risk_tolerance} agent may take by itself."
            factor = f"risk {risk.score} is above {threshold} ({policy.risk_tolerance})"
            return ended(StepVerdict.PAUSE, 5, reason, factor, risk if 4 in policy.stages else None)
        factors.append(f"Stage 5: risk {risk.score} is within {threshold} ({policy.risk_tolerance})")
    return Evaluation(
        verdict=StepVerdict.CONTINUE,
        factors=tuple(factors),
        risk=risk if 4 in policy.stages else None,
        steps_remaining=left,
    )


def evaluate_call(compiled: CompiledPolicy, names: Iterable[str], danger: int | None) -> Evaluation:
    """Evaluate an actual call with stages 3 to 5, using all names of the call."""
    policy = compiled.policy
    forms = tuple(dict.fromkeys(form for name in names for form in (normalise(name), normalise(name, split=True))))
    matched = _match(compiled, forms) if 3 in policy.stages else None
    if matched is not None:
        return matched
    words = [word for form in forms for word in re.findall(r"[^\W_]+", form)]
    risk = Risk(10, "it changes nothing") if danger == READ_ONLY else risk_of(words, danger=danger)
    if 4 in policy.stages:
        judged = _judge(compiled, risk)
        if judged.verdict is not StepVerdict.CONTINUE:
            return judged
    if 5 in policy.stages and risk.score > TOLERANCES[policy.risk_tolerance]:
        reason = "Its risk is above the tolerance."
        return Evaluation(verdict=StepVerdict.PAUSE, factors=(f"risk {risk.score}",), reason=reason, stage=5)
    return Evaluation(verdict=StepVerdict.CONTINUE, factors=("The call is within the policy.",))


def is_auto_approved(compiled: CompiledPolicy, hint: Hint) -> bool:
    """Return whether an autoApprove pattern matches the entire hint, and the hint describes no
    additional or risky action.
    """
    if not any(pattern.is_whole(hint.text) for pattern in compiled.auto_approve) or _SEVERAL.search(hint.actions[0]):
        return False
    return risk_of(hint.words).score <= UNRECOGNISED


def _match(compiled: CompiledPolicy, texts: Iterable[str]) -> Evaluation | None:
    """Match the texts against deny, then requiresApproval. Return the result, or None if no pattern matches;
    autoApprove is checked elsewhere.
    """
    texts = tuple(texts)
    if any(pattern.is_found_in(text) for pattern in compiled.deny for text in texts):
        reason = "This action is denied. The agent is blocked until a person verifies it."
        return Evaluation(verdict=StepVerdict.STOP, factors=("a deny pattern matches",), reason=reason, stage=3)
    if any(pattern.is_found_in(text) for pattern in compiled.requires_approval for text in texts):
        factors = ("a pattern asks for approval",)
        return Evaluation(verdict=StepVerdict.PAUSE, factors=factors, reason=_NEEDS_APPROVAL, stage=3)
    return None


def _judge(compiled: CompiledPolicy, risk: Risk) -> Evaluation:
    policy = compiled.policy
    factor = f"risk {risk.score} ({risk.why}), tier {risk.tier.value}"
    verdict, reason = _BY_TIER[risk.tier]
    is_relaxed = policy.tolerance_relaxes_confirm and risk.score <= TOLERANCES[policy.risk_tolerance]
    if risk.tier is Tier.CONFIRM and is_relaxed:
        verdict, reason = _BY_TIER[Tier.ADVISORY]
    return Evaluation(verdict=verdict, factors=(factor,), reason=reason, risk=risk, stage=4)


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


class AgentNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    type: NotificationType
    message: str
    timestamp: str
    metadata: Metadata | None = None


class Directive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Reply to a reported step, which tells whether the agent may continue. `stopped` is sent only if it is true."""

    continue_: bool = msgspec.field(name="continue")
    factors: tuple[str, ...]
    stopped: bool = False
    reason: str | None = None
    steps_remaining: int | None = None
    next_step_risk: str | None = None
    notifications: tuple[AgentNotification, ...] = ()

    def shown(self) -> dict[str, Any]:
        members: dict[str, Any] = msgspec.to_builtins(self)
        return members


def tier_word(evaluation: Evaluation) -> str | None:
    return None if evaluation.risk is None else evaluation.risk.tier.value
