"""Agents of the safety loop at the operator endpoint."""

from interlock.operator.endpoint import Endpoint, OperatorExchange
from interlock.operator.error_cases import NOT_FOUND
from interlock.safety.api import Agent, Agents, NameAgent


async def list_agents(exchange: OperatorExchange[None]) -> Agents:
    return exchange.operations.agents.list_all()


async def order_challenge(exchange: OperatorExchange[NameAgent]) -> Agent:
    return await exchange.operations.agents.order_challenge(exchange.body.principal, exchange.body.name)


async def abort_agent(exchange: OperatorExchange[NameAgent]) -> Agent:
    body = exchange.body
    return await exchange.operations.agents.abort(body.principal, body.name, exchange.principal)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/admin/agents",
        handler=list_agents,
        summary="Agents inside the safety loop, the blocked ones first.",
    ),
    Endpoint(
        method="POST",
        path="/admin/agents/challenge",
        handler=order_challenge,
        summary="Order a fresh code for a blocked agent; the one before is void. This answer does not show it.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
    Endpoint(
        method="POST",
        path="/admin/agents/abort",
        handler=abort_agent,
        summary="End what an agent is doing. A block stays.",
        role="admin",
        errors=(NOT_FOUND,),
    ),
)
