"""Types of the operator API about agents in the safety loop."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from interlock.operator.operation import NOT_FOUND, Operation, RequestBody, operations_in


class Agent(Struct, frozen=True, kw_only=True):
    """An agent, with the state of its newest execution and whether it is blocked.

    Members:
        principal: The client whose agent it is.
        name: Its name, as the client says it.
        execution_id: Its newest execution.
        status: pending, running, completed, failed or cancelled.
        steps: How many steps it has reported.
        is_paused: Whether it waits for a person.
        is_blocked: Whether it may do nothing until it is verified.
        blocked_at: Since when.
        reason: Why it is paused or blocked.
        approval_id: What waits for a person in the inbox.
    """

    principal: str
    name: str
    execution_id: str | None
    status: str | None
    steps: int
    is_paused: bool
    is_blocked: bool
    blocked_at: str | None
    reason: str | None
    approval_id: str | None


class Agents(Struct, frozen=True, kw_only=True):
    """Every agent that is running, paused or blocked, or that ended recently.

    Members:
        mode: disabled, logging, monitoring or enforcing: safety.mode.
        agents: Blocked ones first.
    """

    mode: str
    agents: tuple[Agent, ...]


class NameAgent(RequestBody, frozen=True, kw_only=True):
    """The name of an agent and the client that it belongs to.

    Members:
        principal: The client whose agent it is.
        name: Its name.
    """

    principal: Annotated[str, Meta(min_length=1, max_length=1000)]
    name: Annotated[str, Meta(min_length=1, max_length=100)]


# Operations

LIST_AGENTS: Final = Operation(
    "GET /admin/agents", "Agents inside the safety loop, the blocked ones first.", output=Agents
)
ORDER_CHALLENGE: Final = Operation(
    "POST /admin/agents/challenge",
    "Order a fresh code for a blocked agent; the one before is void. This answer does not show it.",
    input=NameAgent,
    output=Agent,
    errors=(NOT_FOUND,),
)
ABORT_AGENT: Final = Operation(
    "POST /admin/agents/abort",
    "End what an agent is doing. A block stays.",
    input=NameAgent,
    output=Agent,
    errors=(NOT_FOUND,),
)

OPERATIONS: Final = operations_in(globals(), "agents")
