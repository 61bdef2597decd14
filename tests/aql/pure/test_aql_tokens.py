"""How long confirmation tokens are good, how many there are, and what is told of them."""

import itertools

import pytest

from interlock.aql.protocol.errors import Code
from interlock.aql.protocol.model import Danger
from interlock.aql.protocol.tokens import TOKENS_MAX, ConfirmationTokens, TokenLives, TokenNote


class Tokens:
    """Those of one session, with a clock that is moved."""

    def __init__(self, lives: TokenLives | None = None) -> None:
        self.at = 1_800_000_000.0
        self.notes: list[TokenNote] = []
        numbers = itertools.count()
        self.kept = ConfirmationTokens(
            lambda: self.at, lambda: f"{next(numbers):043}", lives or TokenLives(), self.notes.append
        )

    def issue(self, danger: Danger = Danger.DESTRUCTIVE) -> str:
        return self.kept.issue("session", "who", "drop", "digest", danger)[0]

    def redeem(self, token: str) -> str:
        refused = self.kept.redeem(token, "session", "who", "drop", "digest")
        return "ok" if refused is None else refused.code


@pytest.mark.req("AQL-C.token-7")
@pytest.mark.parametrize(
    ("danger", "life"), [(Danger.DESTRUCTIVE, 300), (Danger.DANGEROUS, 300), (Danger.FORBIDDEN, 120)]
)
def test_a_token_is_good_to_the_end_of_its_life_and_no_longer(danger: Danger, life: int) -> None:
    tokens = Tokens()
    first, second = tokens.issue(danger), tokens.issue(danger)
    tokens.at += life
    assert tokens.redeem(first) == "ok"
    tokens.at += 0.001
    assert tokens.redeem(second) == Code.TOKEN_EXPIRED.value
    skewed = Tokens(TokenLives(skew_s=10))
    late = [skewed.issue(danger) for _ in range(2)]
    skewed.at += life + 10
    assert skewed.redeem(late[0]) == "ok"
    skewed.at += 0.001
    assert skewed.redeem(late[1]) == Code.TOKEN_EXPIRED.value


@pytest.mark.req("AQL-C.token-7")
def test_an_expired_token_is_gone_within_an_hour_in_any_order() -> None:
    tokens = Tokens(TokenLives(destructive=900, forbidden=1))
    tokens.issue()
    short = tokens.issue(Danger.FORBIDDEN)
    tokens.at += 1 + 60
    assert tokens.redeem(short) == Code.TOKEN_EXPIRED.value
    tokens.at += 3600 - 60
    assert tokens.redeem(short) == Code.TOKEN_INVALID.value


@pytest.mark.req("AQL-C.token-7", "AQL-C.token-8")
def test_ten_thousand_are_outstanding_and_beyond_the_cap_the_oldest_goes() -> None:
    tokens = Tokens()
    made = [tokens.issue() for _ in range(10_000)]
    assert {tokens.redeem(made[0]), tokens.redeem(made[-1])} == {"ok"}
    more = [tokens.issue() for _ in range(TOKENS_MAX - len(made) + 2)]
    assert tokens.redeem(made[1]) == Code.TOKEN_INVALID.value
    assert {tokens.redeem(made[2]), tokens.redeem(more[-1])} == {"ok"}
    revoked = [note.reason for note in tokens.notes if note.event == "TOKEN_REVOKED"]
    assert revoked == ["too_many"]  # the one before it was used
