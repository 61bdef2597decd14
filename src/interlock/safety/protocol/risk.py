"""The risk of an action (8.7.2, stages 4 and 5): a score from 0 to 100, its tier, and the tolerance of an agent.

The score is a pure function of the words of the action and of what is known of the danger of the operation it names.
A word that means more harm raises it, nothing lowers it; an action in which nothing is recognised scores UNRECOGNISED.
"""

import math
from collections.abc import Iterable
from enum import Enum
from typing import Final

import msgspec

from interlock.safety.protocol.hint import stems

SCORES: Final = (10, 25, 50, 75, 95)  # by danger level: safe, reversible, destructive, dangerous, forbidden
UNRECOGNISED: Final = 30
SCORE_MAX: Final = 100


class Tier(Enum):
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
    score: int
    why: str
    is_clamped: bool = False

    @property
    def tier(self) -> Tier:
        return tier_of(self.score)


def tier_of(score: int) -> Tier:
    return next(tier for limit, tier in _TIERS if score <= limit)


def whole_score(score: float) -> tuple[int, bool]:
    """A score as a whole number in range, rounded up, and whether it had to be brought into it."""
    if math.isnan(score):
        return SCORE_MAX, True
    if not 0 <= score <= SCORE_MAX:
        return (0, True) if score < 0 else (SCORE_MAX, True)
    return math.ceil(score), False


def risk_of(words: Iterable[str], *, danger: int | None = None, also: float = 0.0) -> Risk:
    """`danger`: the level known of the operation that is named. `also`: another's score, which can only raise it."""
    level, word = max(
        ((DANGER_BY_WORD[stem], each) for each in words for stem in stems(each) if stem in DANGER_BY_WORD),
        key=lambda found: found[0],
        default=(-1, ""),
    )
    score, why = (SCORES[level], f'"{word}"') if level >= 0 else (UNRECOGNISED, "nothing in it is recognised")
    if danger is not None and (level < 0 or SCORES[danger] > score):
        score, why = SCORES[danger], "the danger level of the operation"
    given, is_clamped = whole_score(also)
    if given > score:
        score, why = given, "another assessment"
    return Risk(score, why, is_clamped)
