"""Challenges and approvals of the safety loop: the questions about agents that people answer in the inbox.

A challenge (`verify`) is answered with its code or with an operator's proof. The start of an agent and a paused step
are approved with an operator's proof, or with the token that the inbox shows. Each question concerns one agent.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Decision, Kind, Requires, Source, Status, What
from interlock.aql.protocol.errors import Code, OperationFailed, failure, internal_error
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock
from interlock.safety.agents import AgentKey
from interlock.safety.codes import Codes
from interlock.safety.executions import SESSION, Execution, HeldOperation
from interlock.wire.refusal import BUDGET_EXCEEDED, Refusal

log = logging.getLogger("interlock.safety")

EVERY_S: Final = 60.0  # at most one fresh challenge of an agent within this time
EXPIRY_MAX_S: Final = 3600.0  # of a challenge, whatever approvals.expiry_s says
SUPERSEDED: Final = "superseded: a fresh code was ordered"
WRONG_CODE: Final = "a wrong code was given"
TOOL_PREFIX: Final = "agent."  # what the inbox calls an agent, and what `approves` of an anchor is matched against


@dataclass(eq=False)
class Challenges:
    """The questions about agents that people answer in the inbox. A question asks to approve the start or a step of an
    agent, or is a challenge: the agent is stopped until a person enters a code. An agent has at most one valid
    challenge.

    `may_issue` returns whether a minute has passed since the agent's last challenge; a challenge that an operator
    orders or a new report demands does not wait for that.
    """

    inbox: Inbox
    codes: Codes
    clock: Clock
    _work: BackgroundTasks = field(default_factory=BackgroundTasks, init=False)
    _issued: dict[AgentKey, tuple[float, str]] = field(default_factory=dict, init=False)  # when, and the id
    _asking: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)  # what the inbox is about to have

    async def open(self) -> None:
        """Do nothing: the safety loop decides which challenges stay valid and calls `void_left_over`."""

    async def void_left_over(self, block_challenges: frozenset[str]) -> None:
        """End the questions about agents that were asked before the node started. Keep the challenges of blocked agents
        (`block_challenges`), and the questions of another replica that is running.
        """
        await self.inbox.void_where(
            "the node was started since",
            lambda approval: (
                approval.source is Source.AQL
                and approval.kind in (Kind.START, Kind.STEP, Kind.VERIFY)
                and approval.id not in block_challenges
                and not self.inbox.is_elsewhere(approval.id)
            ),
        )

    async def close(self) -> None:
        await self._work.finish()

    def is_waiting(self, id: str) -> bool:
        approval = self.inbox.get(id)
        return id in self._asking or (approval is not None and approval.status is Status.PENDING)

    def may_issue(self, agent: AgentKey) -> bool:
        issued = self._issued.get(agent)
        return issued is None or self.clock.wall() >= issued[0] + EVERY_S

    def draft(
        self, agent: AgentKey, name: str, *, reason: str, factors: tuple[str, ...], shown: dict[str, Any]
    ) -> Approval:
        """Return a new verification challenge for an agent, which has an id but no code yet. Only `raise_challenge`
        shows it to operators, together with the values in `shown`.
        """
        expires_at = self.clock.wall() + min(self.inbox.rules.expiry_s, EXPIRY_MAX_S)
        more = {"requires": Requires.CODE, "expires_at": expires_at}
        return self._draft(Kind.VERIFY, agent.principal, name, shown, reason=reason, factors=factors, **more)

    async def raise_challenge(self, agent: AgentKey, name: str, draft: Approval) -> None:
        """Put a challenge with a new code into the inbox, and void the agent's previous challenge. Raise StoreError if
        the code cannot be stored. If the inbox refuses the challenge, only log that.
        """
        before = self._issued.get(agent)
        if before is not None and self.is_waiting(before[1]):
            await self.inbox.void(before[1], SUPERSEDED)
        if before is not None:
            self.codes.forget(before[1])
        self._issued[agent] = self.clock.wall(), draft.id
        await self.codes.make_code(draft.id, agent.principal, name, draft.expires_at or self.clock.wall())
        raised = await self.inbox.raise_(draft)
        if isinstance(raised, Refusal):
            log.error("a challenge of the agent %r cannot be put into the inbox: %s", name, raised.message)

    def ask_soon(self, execution: Execution, held: HeldOperation, on_refused: Callable[[str, str], None]) -> str:
        """Ask a person to approve a held operation, in the background. Return the id of the approval, which is not
        stored yet.

        `on_refused` is called with the id and the reason if the inbox refuses the request.
        """
        shown = {"operation": held.operation, "params": held.params}
        often = "as often as the agent makes it until its execution ends" if held.level == SESSION else "once"
        reason = f"An agent calls {held.operation}, which is {held.danger}. Approval lets this very call run, {often}."
        draft = self._draft_with_token(Kind.STEP, execution, shown, reason, held.reasons)

        async def ask() -> None:
            try:
                raised = await self.inbox.raise_(draft)
            finally:
                self._asking.pop(draft.id, None)
            if isinstance(raised, Refusal):
                self.codes.forget(draft.id)
                on_refused(draft.id, raised.message)

        self._asking[draft.id] = self._work.begin(ask(), "safety")
        return draft.id

    async def ask(
        self, kind: Kind, execution: Execution, shown: dict[str, Any], *, reason: str, factors: tuple[str, ...] = ()
    ) -> Approval:
        """Ask a person to approve the start or a step of an agent, and return the pending approval.

        `shown` is what the person sees besides the name of the agent. Raise OperationFailed if the inbox refuses the
        request.
        """
        draft = self._draft_with_token(kind, execution, shown, reason, factors)
        raised = await self.inbox.raise_(draft)
        if isinstance(raised, Approval):
            return raised
        self.codes.forget(draft.id)
        if raised.code == BUDGET_EXCEEDED:
            details = {"metric": "pending_approvals", "limit": self.inbox.rules.max_pending}
            raise OperationFailed(failure(Code.RATE_LIMIT_QUOTA_EXHAUSTED, "Too much waits for a person", details))
        raise OperationFailed(internal_error("the inbox cannot be written; nothing was done"))

    def _draft_with_token(
        self, kind: Kind, execution: Execution, shown: dict[str, Any], reason: str, factors: tuple[str, ...]
    ) -> Approval:
        draft = self._draft(kind, execution.principal, execution.name, shown, reason=reason, factors=factors)
        self.codes.make_token(draft.id)
        return draft

    def _draft(self, kind: Kind, principal: str, name: str, shown: dict[str, Any], **members: Any) -> Approval:
        params = Raw(msgspec.json.encode({"element_name": name, **shown}))
        members |= {"requested_by": principal, "tool": TOOL_PREFIX + name, "agent": name, "params": params}
        draft = self.inbox.draft(kind, Source.AQL, digest="", **members)
        # The digest contains the id, so that a decision about one question never counts for another.
        digest = hashlib.sha256(f"{draft.id}\0".encode() + bytes(params)).hexdigest()
        return msgspec.structs.replace(draft, digest=digest)

    async def decide(self, id: str, what: What, *, by: str, reason: str) -> Approval | Refusal:
        """Approve or deny a question for a caller that sent its correct code or token."""
        return await self.inbox.decide(id, Decision(what=what, by=by, at=self.clock.wall(), reason=reason))

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Use up an approved question about an agent, so that the decision takes effect only once."""
        self.codes.forget(approval.id)
        if approval.status is not Status.APPROVED:
            return approval
        return await self.inbox.carry_out(approval.id)

    def void_soon(self, id: str, why: str) -> None:
        self.codes.forget(id)

        async def void_asked() -> None:
            if id in self._asking:
                await asyncio.wait([self._asking[id]])
            await self.inbox.void(id, why)

        self._work.begin(void_asked())

    async def void(self, id: str, why: str) -> None:
        self.codes.forget(id)
        if self.is_waiting(id):
            await self.inbox.void(id, why)
