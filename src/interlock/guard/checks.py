"""The list of the guard's checks: one for each step, by name and in order (SURFACE 8).

Each capability provides the check of its step; the guard does not depend on any capability. The fronts check steps 1
and 2, the endpoint and the envelope, before a call exists. The MCP-AQL surfaces check step 3, the operation.
"""

from typing import Generic, TypeVar

import msgspec

from interlock.core.calls.check import Check, Commit, Explained

R = TypeVar("R")


class GuardChecks(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The checks of one guard, one field for each step."""

    route: Check[R]  # 4: is the tool listed for this caller?
    agent: Check[R]  # 5: may the caller's agent go on? Only while the safety loop is not disabled.
    names: Check[R]  # 6: is a tool with a registered name what the registry says of it?
    arguments: Check[R]  # 7: are the arguments what the tool's contract wants?
    availability: Check[R]  # 8: is the link there, and has it a place?
    budget: Check[R]  # 9: is there room in every budget?
    gate: Check[R]  # 10: must a person agree first?
    commit: Commit  # 11: use up the approval of a released call, and charge the call
    explained_later: tuple[Explained[R], ...]  # 11, and 12: is the link still there? For operators only.
    is_agent_checked: bool

    def admission(self) -> tuple[Check[R], ...]:
        """Return the checks that a call must pass before it is admitted, in order."""
        agent = (self.agent,) if self.is_agent_checked else ()
        return (self.route, *agent, self.names, self.arguments, self.availability, self.budget, self.gate)
