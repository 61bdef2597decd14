"""Verification and confirmation by agents' clients, which send a code or token that a person got from an operator.

Every failed attempt is on disk before the reply is sent, and the audit record does not contain the text that was tried.
An attempt with an unknown id or token is counted for the principal that made it.
"""

from dataclasses import dataclass
from typing import Any, Final

from interlock.approvals.protocol.approval import Approval, Kind, Source, Status, What
from interlock.aql.protocol import errors
from interlock.aql.protocol.errors import AqlFailure, Code, OperationFailed, failure
from interlock.core.calls.caller import Caller
from interlock.core.clock import Clock, rfc3339
from interlock.safety.agents import AgentKey, agent_key
from interlock.safety.challenges import WRONG_CODE
from interlock.safety.codes import FAILURES_MAX, TOKEN_PREFIX, Attempts, Codes
from interlock.safety.loop import SafetyLoop
from interlock.store.ports import StoreError
from interlock.wire.refusal import Refusal

NOBODY: Final = ""  # the name under which attempts count that belong to no agent
_NOT_WRITTEN: Final = "the node's store cannot be written; nothing was done"


@dataclass(eq=False)
class Verification:
    """The service that checks the codes and tokens that agents' clients send."""

    loop: SafetyLoop
    codes: Codes
    attempts: Attempts
    clock: Clock

    async def open(self) -> None:
        await self.codes.open()
        await self.attempts.open()

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""

    async def verify(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        """Unblock or resume an agent if the code is correct. If it is wrong, void the code (AQL 8.8.2)."""
        id, written = params["challenge_id"], params["code"]
        principal = caller.principal.name
        challenge = self.codes.find_challenge(id)
        is_own = challenge is not None and challenge.principal == principal  # AQL-8.8-1, AQL-2.3.5-2
        name = challenge.name if challenge is not None and is_own else NOBODY
        agent = agent_key(principal, name)
        invalid = failure(Code.TOKEN_INVALID, "Invalid code", {"challenge_id": id})
        await self._refuse_limited(agent, name, id)
        if challenge is None or not is_own:  # AQL-8.8-1: the challenge of another principal is treated as unknown
            raise await self._failed(agent, name, id, invalid)
        approval = self.loop.challenges.inbox.get(id)
        if approval is None or approval.status is not Status.PENDING:  # AQL-8.8.2-8
            raise await self._failed(agent, name, id, self._over(approval, {"challenge_id": id}))
        if not self.codes.is_code(challenge, written):  # AQL-8.8-1
            await self.loop.challenges.void(id, WRONG_CODE)
            raise await self._failed(agent, name, id, invalid)
        await self._approve(id, by=principal, reason="verified with the code")
        self.loop.record_about(agent, name, "verify", "verified", approval=id)
        live = self.loop.executions.live_of(agent)
        return {"verified": True, "element_name": name, "status": live[-1].status.value if live else "unblocked"}

    async def confirm(self, caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
        """Approve or deny a request about an agent with its confirmation token, which only the inbox shows to an
        operator (AQL 8.7.3).
        """
        token, requested_id = params["confirmation_token"], params.get("confirmation_id")
        principal = caller.principal.name
        agent = AgentKey(principal, NOBODY)
        await self._refuse_limited(agent, NOBODY, requested_id)
        if not token.startswith(TOKEN_PREFIX):  # AQL-8.7.3-9
            detail = "a person confirms, with the token that interlock approvals show ID --code gives them"
            refused = errors.permission_denied("self_approval", detail=detail)  # AQL-8.7.3-9
            raise await self._failed(agent, NOBODY, requested_id, refused, event="confirm")
        id = self.codes.find_approval_of(token)
        approval = self.loop.challenges.inbox.get(id) if id is not None else None
        if approval is None or approval.requested_by != principal or approval.source is not Source.AQL:  # AQL-8.7.3-9
            refused = failure(Code.TOKEN_INVALID, "Invalid confirmation token", {})
            raise await self._failed(agent, NOBODY, requested_id, refused, event="confirm")
        agent, name = agent_key(principal, approval.agent or ""), approval.agent or ""
        execution = self.loop.executions.find_by_approval(approval.id)
        operation = "execute_agent" if approval.kind is Kind.START else "record_execution_step"
        if execution is not None and approval.id in execution.held.waiting:
            operation = execution.held.waiting[approval.id].operation
        if requested_id not in (None, approval.id):
            details = {"token_operation": operation, "requested_operation": requested_id}
            refused = failure(Code.TOKEN_SCOPE_MISMATCH, "Confirmation token scope mismatch", details)
            raise await self._failed(agent, name, approval.id, refused, event="confirm")
        if approval.status is not Status.PENDING:
            refused = self._over(approval, {"confirmation_id": approval.id})
            raise await self._failed(agent, name, approval.id, refused, event="confirm")
        is_yes = params.get("decision", "approve") == "approve"
        await self._approve(approval.id, by=principal, reason="confirmed with the token", is_yes=is_yes)
        self.loop.record_about(agent, name, "confirm", "approved" if is_yes else "denied", approval=approval.id)
        return {"confirmed": is_yes, "confirmation_id": approval.id, "element_name": name, "operation": operation}

    async def _approve(self, id: str, *, by: str, reason: str, is_yes: bool = True) -> None:
        what = What.APPROVED if is_yes else What.DENIED
        decided = await self.loop.challenges.decide(id, what, by=by, reason=reason)
        settled = decided if isinstance(decided, Refusal) else await self.loop.settle(decided)
        if isinstance(settled, Refusal):
            raise OperationFailed(errors.internal_error("the decision cannot be written; nothing was done"))

    def _over(self, approval: Approval | None, details: dict[str, Any]) -> AqlFailure:
        # AQL-8.8.2-8
        if approval is not None and approval.status is Status.EXPIRED and approval.expires_at is not None:
            times = {"expired_at": rfc3339(approval.expires_at), "current_time": rfc3339(self.clock.wall())}
            return failure(Code.TOKEN_EXPIRED, "It has expired; a fresh one is shown to operators", details | times)
        if approval is not None and approval.status is Status.VOID:
            why = approval.outcome or "it no longer counts"
            message = f"It is void, and was not used: {why}. Ask for the fresh one"
            return failure(Code.TOKEN_ALREADY_USED, message, {**details, "reason": "void"})
        return failure(Code.TOKEN_ALREADY_USED, "It has already been used", details)

    async def _refuse_limited(self, agent: AgentKey, name: str, id: str | None) -> None:
        try:
            limited = await self.attempts.find_limit(agent.stored)
        except StoreError:
            raise OperationFailed(errors.internal_error(_NOT_WRITTEN)) from None
        if limited is None:
            return
        self.loop.record_about(agent, name, "verify", "limited", approval=id)
        times = {"resets_at": rfc3339(limited.until), "retry_after_seconds": limited.retry_after_s}
        details = {"limit": FAILURES_MAX, "remaining": 0, "window": "minute", **times}
        raise OperationFailed(failure(Code.RATE_LIMIT_EXCEEDED, "Too many failed attempts", details))

    async def _failed(
        self, agent: AgentKey, name: str, id: str | None, refused: AqlFailure, *, event: str = "verify"
    ) -> OperationFailed:
        self.loop.record_about(agent, name, event, "failed", approval=id, reason=refused.code)
        try:
            await self.attempts.fail(agent.stored)  # AQL-8.8.2-8, AQL-8.7.3-9
        except StoreError:
            return OperationFailed(errors.internal_error(_NOT_WRITTEN))
        return OperationFailed(refused)
