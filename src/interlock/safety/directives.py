"""Directives and the notifications in them (8.7.3), which are the replies to an agent's reports.

The notifications permission_pending, autonomy_pause and danger_zone are derived from the state each time, so they
repeat until their cause is resolved. The notifications status and error are kept in the execution and sent once. An
agent receives notifications only in replies.
"""

from dataclasses import dataclass
from typing import Final

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Kind
from interlock.core.clock import rfc3339
from interlock.safety.agents import Block, Blocks
from interlock.safety.executions import Execution, Pause
from interlock.safety.protocol.evaluation import (
    AgentNotification,
    Directive,
    Evaluation,
    Metadata,
    NotificationType,
    StepVerdict,
    tier_word,
)

LEVEL: Final = "CONFIRM_SINGLE_USE"
START_WAITS: Final = "The start of the agent waits for the approval of a person."
_T = NotificationType


@dataclass(eq=False)
class Directives:
    """Factory of the directives that reply to agents' reports, from the current state."""

    inbox: Inbox
    blocks: Blocks

    def of_evaluation(self, execution: Execution, evaluation: Evaluation, *, more: tuple[str, ...] = ()) -> Directive:
        return Directive(
            continue_=evaluation.verdict is StepVerdict.CONTINUE,  # AQL-8.6.4-3, AQL-8.7.1-2
            stopped=evaluation.verdict is StepVerdict.STOP,  # AQL-8.8.1-2
            factors=(*evaluation.factors, *more),  # AQL-8.7.1-2
            reason=evaluation.reason,
            steps_remaining=evaluation.steps_remaining,
            next_step_risk=tier_word(evaluation),
            notifications=self.notifications(execution),
        )

    def of_pause(self, execution: Execution, pause: Pause, reason: str) -> Directive:
        return Directive(
            continue_=False,
            factors=(*pause.evaluation.factors, "The agent is paused since an earlier report."),
            reason=reason,
            notifications=self.notifications(execution),
        )

    def of_pending(self, execution: Execution) -> Directive:
        return Directive(
            continue_=False, factors=(START_WAITS,), reason=START_WAITS, notifications=self.notifications(execution)
        )

    def of_block(self, block: Block) -> Directive:
        return Directive(
            continue_=False,
            stopped=True,
            factors=("The agent is blocked.",),
            reason=block.reason,
            notifications=(_danger(block, is_own=True),),
        )

    def notifications(self, execution: Execution) -> tuple[AgentNotification, ...]:
        notices, execution.notices = execution.notices, []
        since = execution.started_at or execution.created_at
        return (
            *self._pending(execution),
            *([_paused(execution.pause)] if execution.pause is not None else ()),
            *(
                _danger(block, is_own=block.principal == execution.agent.principal)
                for block in self.blocks.all()
                if block.at >= since or block.agent == execution.agent  # AQL-8.7.3-7
            ),
            *notices,
        )

    def _pending(self, execution: Execution) -> list[AgentNotification]:
        """Return notifications for everything that waits for a person: the start of the agent, and
        its held operations.
        """
        if execution.start_id is not None and execution.started_at is None:
            return [pending_start(execution.created_at)]
        since = execution.started_at or execution.created_at
        own = [
            AgentNotification(
                _T.PERMISSION_PENDING,
                f"A call of {held.operation} waits for a decision about approval {id}.",
                rfc3339(held.at),
                Metadata(operation=held.operation, level=held.level, reason="; ".join(held.reasons) or None),
            )
            for id, held in execution.held.waiting.items()
        ]
        return own + [
            AgentNotification(
                _T.PERMISSION_PENDING,
                f"A call of {approval.tool} waits for a person.",
                rfc3339(approval.created_at),
                Metadata(operation=approval.tool, level=LEVEL, reason=approval.reason),
            )
            for approval in self.inbox.waiting(Kind.CALL)
            if approval.requested_by == execution.agent.principal and approval.created_at >= since
        ]


def pending_start(at: float) -> AgentNotification:
    metadata = Metadata(operation="execute_agent", level=LEVEL)
    return AgentNotification(_T.PERMISSION_PENDING, START_WAITS, rfc3339(at), metadata)


def _paused(pause: Pause) -> AgentNotification:
    how = "the code of" if pause.is_verified_by_code else "a decision about"
    waits = f" It waits for {how} approval {pause.approval_id}." if pause.approval_id else ""
    message = f"Paused: {pause.evaluation.reason} {pause.evaluation.factors[-1]}.{waits}"
    challenge_id = pause.approval_id if pause.is_verified_by_code else None  # AQL-8.7.3-6, AQL-8.8.2-4
    metadata = Metadata(reason=pause.evaluation.reason, verification_id=challenge_id)
    return AgentNotification(_T.AUTONOMY_PAUSE, message, rfc3339(pause.at), metadata)


def _danger(block: Block, *, is_own: bool) -> AgentNotification:
    """Return the notification about a block. With `is_own` unset, for agents of other principals, it does not contain
    the reason.
    """
    message = f'The agent "{block.name}" is blocked: {block.reason}' if is_own else "An agent is blocked."
    metadata = Metadata(reason=block.reason if is_own else None, verification_id=block.challenge_id)  # AQL-8.7.3-7
    return AgentNotification(_T.DANGER_ZONE, message, rfc3339(block.at), metadata)
