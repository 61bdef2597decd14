"""The safety loop as parts of the node: life cycle, configuration changes, and changes by other replicas."""

from collections.abc import Callable, Mapping

from interlock.config.plan import Plan
from interlock.core.part import Part
from interlock.node.capability_parts import CapabilityParts, NodeParts, Stage
from interlock.node.common_parts import EndedSession
from interlock.node.reload import ReloadStep, ReloadSteps
from interlock.safety import agents, codes
from interlock.safety.operations import AgentOperations
from interlock.store.ports import Change


class AgentParts(CapabilityParts):
    def __init__(self, node: NodeParts) -> None:
        self._node = node
        self._safety = node.calls.safety
        self._codes = node.approvals.codes
        self.operations = AgentOperations(node.calls.safety.loop)
        node.fronts.session_ended.subscribe(self._end_session)

    def stages(self) -> Mapping[Stage, tuple[Part, ...]]:
        safety = self._safety
        return {Stage.RECORDS: (safety.verification, safety.challenges, safety.loop, safety.watch)}

    def services(self) -> tuple[object, ...]:
        return (self.operations,)

    def reload_steps(self, steps: ReloadSteps) -> Mapping[str, ReloadStep]:
        async def take_safety(old: Plan, new: Plan) -> None:
            """Apply the changed rules, starting with the next step of each agent. Existing blocks stay."""
            self._node.stores.current.replace(new)
            self._safety.attempts.replan(is_progressive=new.safety.progressive_lockout)
            is_on = new.safety.mode != "disabled"
            self._node.calls.dispatch.guard.include(self._safety.watch, is_included=is_on)
            self._safety.loop.replan(new.safety)
            if is_on != (old.safety.mode != "disabled"):
                await steps.take_tools(old, new)

        return {"safety": take_safety}

    def replicated_buckets(self) -> Mapping[str, Callable[[Change], None]]:
        def take_block(change: Change) -> None:
            self._safety.loop.blocks.take_change(change)
            self._safety.loop.changed.publish(None)

        return {
            agents.BUCKET: take_block,
            agents.STEPS: self._safety.loop.step_counts.take_change,
            codes.CHALLENGES: self._codes.take_change,
            codes.ATTEMPTS: self._safety.attempts.take_change,
        }

    def _end_session(self, ended: EndedSession) -> None:
        self._safety.loop.end_session(ended.caller, is_graceful=ended.is_graceful)  # AQL-2.3.3-5
