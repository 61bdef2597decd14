"""Agents: their identity, what each may do without approval, how many steps it took, and which agents are blocked.

A block applies to the agent, not to one execution. It is on disk before the agent is informed, and only a person can
lift it. The client chooses the name of an agent, so a name is unique only within a principal, and names that look alike
refer to the same agent.
"""

import asyncio
import hashlib
import logging
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import msgspec

from interlock.config.plan import AgentPlan, SafetyPlan
from interlock.core.clock import Clock
from interlock.safety.protocol.evaluation import AutonomyPolicy, CompiledPolicy, normalise
from interlock.store.ports import Change, KeyValue, StoreError

log = logging.getLogger("interlock.safety")

BUCKET: Final = "agent-blocks"
STEPS: Final = "agent-steps"
NAME_CHARS_MAX: Final = 100
LOCAL: Final = "local"  # who everybody without a credential on this machine is
CERTIFICATE: Final = "certificate:"  # how the principal of a client begins that came by one
EVERY_CLIENT: Final = "client:*"  # in `require`: also clients without a token
_STAGES: Final = {"outcome": 2, "patterns": 3, "risk": 4, "tolerance": 5}


class AgentKey(NamedTuple):
    """Identity of an agent: its principal, and its name in normal form."""

    principal: str
    name: str  # normal

    @property
    def stored(self) -> str:
        return hashlib.sha256(f"{self.principal}\0{self.name}".encode()).hexdigest()


def agent_key(principal: str, name: str) -> AgentKey:
    return AgentKey(principal, normalise(name))  # AQL-8.8.3-5


def is_agent_name(name: str) -> bool:
    """Return whether a name is short enough, printable and not blank, so that a person can read it."""
    return len(name) <= NAME_CHARS_MAX and name.isprintable() and bool(normalise(name))


class Policies:
    """Lookup of the policy for each agent. An agent that the configuration names is "declared" and has settings of its
    own; all others share the general policy.
    """

    def __init__(self, plan: SafetyPlan) -> None:
        self.plan = plan
        self._general = _compile(plan, AgentPlan())
        self._own = {normalise(name): _compile(plan, agent) for name, agent in plan.agents.items()}

    def of(self, agent: AgentKey) -> CompiledPolicy:
        return self._own.get(agent.name, self._general)

    def is_declared(self, agent: AgentKey) -> bool:
        return agent.name in self._own

    def counted_as(self, agent: AgentKey) -> AgentKey:
        """Return the key under which the steps of an agent are counted. It is the agent's own key or one for all agents
        of its client.

        Agents that start without a person, and that the configuration does not name, share one for their client, so
        that another name is no way around the step limit.
        """
        is_shared = self._general.policy.preapproved and not self.is_declared(agent)
        return AgentKey(agent.principal, "") if is_shared else agent

    def is_required(self, principal: str) -> bool:
        """Return whether a principal may call nothing outside an execution."""
        patterns = self.plan.require
        if EVERY_CLIENT in patterns and (principal == LOCAL or principal.startswith(CERTIFICATE)):
            return True
        return any(fnmatchcase(principal, pattern) for pattern in patterns)


def _compile(plan: SafetyPlan, agent: AgentPlan) -> CompiledPolicy:
    """Return the policy of one agent, combined from the general settings and the settings of this agent.

    The agent's lists are added to deny and requiresApproval, but replace autoApprove (AQL 8.7.4).
    """
    relaxes, preapproved = agent.tolerance_relaxes_confirm, agent.preapproved
    stages = plan.stages if agent.stages is None else agent.stages
    return CompiledPolicy(
        AutonomyPolicy(
            max_autonomous_steps=agent.max_autonomous_steps or plan.max_autonomous_steps,  # AQL-8.7.2-2
            risk_tolerance=agent.risk_tolerance or plan.risk_tolerance,
            deny=(*plan.deny, *agent.deny),
            requires_approval=(*plan.requires_approval, *agent.requires_approval),
            auto_approve=plan.auto_approve if agent.auto_approve is None else agent.auto_approve,
            stages=(1, *sorted(_STAGES[stage] for stage in set(stages))),
            tolerance_relaxes_confirm=plan.tolerance_relaxes_confirm if relaxes is None else relaxes,
            preapproved=plan.preapproved if preapproved is None else preapproved,
        )
    )


class StepCount(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    until: float


@dataclass(eq=False)
class StepCounts:
    """Counter of each agent's steps, over all of its executions, since a person last agreed that the agent may
    continue.

    Counts are kept in memory, and written to the store within a second. A count is over when the agent took no step for
    `keep_s` seconds.
    """

    kv: KeyValue
    clock: Clock
    keep_s: float
    _by_agent: dict[str, StepCount] = field(default_factory=dict, init=False)
    _changed: set[str] = field(default_factory=set, init=False)

    async def open(self) -> None:
        """Load the counts from the store. Raise Damaged if one cannot be read, because it would begin again."""
        for entry in await self.kv.entries(STEPS, self.clock.wall()):
            self._by_agent[entry.key] = entry.decode(StepCount, f"the step count of an agent ({entry.key[:12]})")

    def take_change(self, change: Change) -> None:
        """Apply a count that another replica wrote."""
        if change.entry is not None:
            self._by_agent[change.key] = msgspec.json.decode(change.entry.value, type=StepCount)
        else:
            self._by_agent.pop(change.key, None)

    def find(self, agent: AgentKey) -> int:
        counted = self._by_agent.get(agent.stored)
        return counted.count if counted is not None and self.clock.wall() < counted.until else 0

    def add(self, agent: AgentKey) -> None:
        counted = StepCount(count=self.find(agent) + 1, until=self.clock.wall() + self.keep_s)
        self._by_agent[agent.stored] = counted
        self._changed.add(agent.stored)

    def begin_again(self, agent: AgentKey) -> None:
        if self._by_agent.pop(agent.stored, None) is not None:
            self._changed.add(agent.stored)

    async def flush(self) -> None:
        """Write the changed counts to the store. What cannot be written is tried again at the next flush."""
        for key in list(self._changed):
            self._changed.discard(key)
            counted = self._by_agent.get(key)
            try:
                if counted is None:
                    await self.kv.delete(STEPS, key)
                else:
                    now = self.clock.wall()
                    await self.kv.put(STEPS, key, msgspec.json.encode(counted), now, ttl_s=self.keep_s)
            except StoreError as refused:
                log.warning("the step count of an agent cannot be written: %s; tried again", refused)
                self._changed.add(key)
                return


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The block of an agent, which lasts until a person verifies the challenge."""

    principal: str
    name: str  # as the agent wrote it
    reason: str
    at: float
    challenge_id: str

    @property
    def agent(self) -> AgentKey:
        return agent_key(self.principal, self.name)


@dataclass(eq=False)
class Blocks:
    """Table of blocked agents, in memory and in the store. Its methods raise StoreError.

    A block that could not be written counts here at once, and `flush` writes it later, so that it reaches the other
    replicas and survives a restart.
    """

    kv: KeyValue
    clock: Clock
    _by_agent: dict[AgentKey, Block] = field(default_factory=dict, init=False)
    _unwritten: set[AgentKey] = field(default_factory=set, init=False)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def open(self) -> None:
        """Load the blocks from the store.

        Raise Damaged if a record cannot be read, because a disk error must not unblock an agent.
        """
        for entry in await self.kv.entries(BUCKET, self.clock.wall()):
            block = entry.decode(Block, f"the block of an agent ({entry.key[:12]})")
            self._by_agent[block.agent] = block  # AQL-8.8.3-3

    def take_change(self, change: Change) -> None:
        """Apply a block that another replica added or lifted."""
        if change.entry is not None:
            block = msgspec.json.decode(change.entry.value, type=Block)
            self._by_agent[block.agent] = block
        else:
            self._by_agent = {agent: block for agent, block in self._by_agent.items() if agent.stored != change.key}
            self._unwritten &= self._by_agent.keys()

    def find(self, agent: AgentKey) -> Block | None:
        return self._by_agent.get(agent)

    def of_principal(self, principal: str) -> list[Block]:
        return [block for agent, block in self._by_agent.items() if agent.principal == principal]

    def all(self) -> list[Block]:
        return sorted(self._by_agent.values(), key=lambda block: (block.at, block.agent))

    async def put(self, block: Block) -> None:
        # The block counts at once, and the agent is informed only when the block is on disk.
        self._by_agent[block.agent] = block
        self._unwritten.add(block.agent)
        await self._write(block.agent)

    async def flush(self) -> list[Block]:
        """Write the blocks that could not be written before, and return them."""
        return [block for agent in list(self._unwritten) if (block := await self._write(agent)) is not None]

    async def _write(self, agent: AgentKey) -> Block | None:
        """Write the block of an agent to the store and return the block. Return None if there is nothing to write,
        because the block is stored already or was lifted.
        """
        async with self._writing:
            block = self._by_agent.get(agent)
            if block is None or agent not in self._unwritten:
                return None
            await self.kv.put(BUCKET, agent.stored, msgspec.json.encode(block), self.clock.wall())  # AQL-8.8.3-3
            if self._by_agent.get(agent) is block:
                self._unwritten.discard(agent)
            return block

    async def lift(self, agent: AgentKey) -> Block | None:
        async with self._writing:
            if agent not in self._by_agent:
                return None
            await self.kv.delete(BUCKET, agent.stored)
            self._unwritten.discard(agent)
            return self._by_agent.pop(agent, None)
