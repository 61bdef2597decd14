"""The confirmation tokens of a node: its clock, its settings, and every step of a token in the audit log."""

import secrets
from functools import partial

from interlock.aql.protocol.tokens import ConfirmationTokens, TokenLives, TokenNote
from interlock.config.plan import AqlDangerPlan
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder, SessionVia


def confirmation_tokens(clock: Clock, recorder: Recorder, plan: AqlDangerPlan) -> ConfirmationTokens:
    def note(one: TokenNote) -> None:
        is_refused = one.event in ("TOKEN_REJECTED", "TOKEN_REVOKED")
        verdict, outcome = ("refused", "refused") if is_refused else ("admitted", "ok")
        text = f"{one.event} {one.token} of {one.owner}"
        text = text if one.reason is None else f"{text}: {one.reason}"
        via = SessionVia("aql", one.owner) if one.owner.startswith("aqls_") else "aql"
        recorder.add((clock.wall(), one.principal, via, "aql/token", one.operation, None, verdict, outcome, 0.0, text))

    return ConfirmationTokens(clock.wall, partial(secrets.token_urlsafe, 32), token_lives(plan), note)


def token_lives(plan: AqlDangerPlan) -> TokenLives:
    lives = plan.token_s
    return TokenLives(
        destructive=lives.destructive, dangerous=lives.dangerous, forbidden=lives.forbidden, skew_s=plan.skew_s
    )
