"""Operations for operators on agents of the safety loop: list, abort, and create a new challenge."""

from dataclasses import dataclass

from interlock.aql.protocol.model import ExecutionStatus
from interlock.core.clock import rfc3339
from interlock.operator.operation import handles
from interlock.safety.agents import AgentKey, Block, agent_key
from interlock.safety.api import ABORT_AGENT, LIST_AGENTS, ORDER_CHALLENGE, Agent, Agents, NameAgent
from interlock.safety.executions import Execution
from interlock.safety.loop import SafetyLoop
from interlock.wire.refusal import NotFound


@dataclass(eq=False)
class AgentOperations:
    """Handlers of the operations on agents in the safety loop."""

    loop: SafetyLoop

    @handles(LIST_AGENTS)
    def list_all(self) -> Agents:
        newest: dict[AgentKey, Execution] = {execution.agent: execution for execution in self.loop.executions.all()}
        blocks = {block.agent: block for block in self.loop.blocks.all()}
        keys = [*blocks, *(key for key in reversed(newest) if key not in blocks)]
        agents = tuple(_view(key, newest.get(key), blocks.get(key)) for key in keys)
        return Agents(mode=self.loop.plan.mode, agents=agents)

    @handles(ORDER_CHALLENGE)
    async def order_challenge(self, body: NameAgent) -> Agent:
        """Create a new challenge for a blocked agent, and void the previous one. Raise NotFound if the agent is not
        blocked, and StoreError if the challenge cannot be stored.
        """
        block = await self.loop.order_challenge(agent_key(body.principal, body.name))
        if block is None:
            blocked = [agent.name for agent in self.loop.blocks.of_principal(body.principal)]
            raise NotFound("blocked agent", body.name, blocked)
        return _view(block.agent, None, block)

    @handles(ABORT_AGENT)
    async def abort(self, body: NameAgent, by: str) -> Agent:
        """Cancel the executions of an agent, even while it is blocked. Raise NotFound if it has none."""
        key = agent_key(body.principal, body.name)
        ended = self.loop.abort_as_operator(key, by)
        if ended is None:
            raise NotFound("running agent", body.name, [agent.name for agent in self.loop.executions.live()])
        return _view(key, ended, self.loop.blocks.find(key))


def _view(key: AgentKey, execution: Execution | None, block: Block | None) -> Agent:
    pause, status, approval_id, reason = None, None, None, None
    if execution is not None:
        pause, status, reason = execution.pause, execution.status, execution.ended_because
        approval_id = execution.start_id if status is ExecutionStatus.PENDING else None
    if pause is not None:
        approval_id, reason = pause.approval_id, pause.evaluation.reason or reason
    if block is not None:
        approval_id, reason = block.challenge_id, block.reason
    named = block or execution or key
    return Agent(
        principal=key.principal,
        name=named.name,
        execution_id=execution.id if execution is not None else None,
        status=status.value if status is not None else None,
        steps=execution.steps if execution is not None else 0,
        is_paused=pause is not None,
        is_blocked=block is not None,
        blocked_at=rfc3339(block.at) if block is not None else None,
        reason=reason,
        approval_id=approval_id,
    )
