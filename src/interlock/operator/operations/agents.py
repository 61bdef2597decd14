"""Agents of the safety loop, for operators: listed, aborted, and given a fresh challenge."""

from interlock.aql.protocol.execution import ExecutionStatus
from interlock.core.clock import rfc3339
from interlock.core.operator_errors import NotFound
from interlock.safety.agents import AgentKey, Block, agent_key
from interlock.safety.api import Agent, Agents
from interlock.safety.executions import Execution
from interlock.safety.loop import SafetyLoop


class AgentOperations:
    def __init__(self, loop: SafetyLoop) -> None:
        self._loop = loop

    def list_all(self) -> Agents:
        newest: dict[AgentKey, Execution] = {one.agent: one for one in self._loop.executions.all()}
        blocks = {block.agent: block for block in self._loop.blocks.all()}
        keys = [*blocks, *(key for key in reversed(newest) if key not in blocks)]
        return Agents(
            mode=self._loop.plan.mode, agents=tuple(_shown(key, newest.get(key), blocks.get(key)) for key in keys)
        )

    async def order_challenge(self, principal: str, name: str) -> Agent:
        """Raises NotFound, StoreError."""
        block = await self._loop.order_challenge(agent_key(principal, name))
        if block is None:
            raise NotFound("blocked agent", name, [one.name for one in self._loop.blocks.of_principal(principal)])
        return _shown(block.agent, None, block)

    async def abort(self, principal: str, name: str, by: str) -> Agent:
        """Ends what an agent is doing, also while it is blocked. Raises NotFound."""
        key = agent_key(principal, name)
        ended = self._loop.abort_as_operator(key, by)
        if ended is None:
            raise NotFound("running agent", name, [one.name for one in self._loop.executions.live()])
        return _shown(key, ended, self._loop.blocks.maybe(key))


def _shown(key: AgentKey, execution: Execution | None, block: Block | None) -> Agent:
    pause = execution.pause if execution is not None else None
    is_pending = execution is not None and execution.status is ExecutionStatus.PENDING
    start_id = execution.start_id if execution is not None and is_pending else None
    asked = block.challenge_id if block is not None else pause.approval_id if pause is not None else start_id
    why = block.reason if block is not None else pause.evaluation.reason if pause is not None else None
    return Agent(
        principal=key.principal,
        name=block.name if block is not None else execution.name if execution is not None else key.name,
        execution_id=execution.id if execution is not None else None,
        status=execution.status.value if execution is not None else None,
        steps=execution.steps if execution is not None else 0,
        is_paused=pause is not None,
        is_blocked=block is not None,
        blocked_at=rfc3339(block.at) if block is not None else None,
        reason=why if why is not None else execution.ended_because if execution is not None else None,
        approval_id=asked,
    )
