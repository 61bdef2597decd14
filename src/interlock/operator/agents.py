"""Agents of the safety loop at the operator endpoint."""

from interlock.operator.endpoint import OperatorExchange, RequestHandlers
from interlock.safety.api import ABORT_AGENT, LIST_AGENTS, ORDER_CHALLENGE, Agent, Agents, NameAgent


async def list_agents(exchange: OperatorExchange[None]) -> Agents:
    return exchange.operations.agents.list_all()


async def order_challenge(exchange: OperatorExchange[NameAgent]) -> Agent:
    return await exchange.operations.agents.order_challenge(exchange.body.principal, exchange.body.name)


async def abort_agent(exchange: OperatorExchange[NameAgent]) -> Agent:
    body = exchange.body
    return await exchange.operations.agents.abort(body.principal, body.name, exchange.principal)


REQUEST_HANDLERS: RequestHandlers = {
    LIST_AGENTS: list_agents,
    ORDER_CHALLENGE: order_challenge,
    ABORT_AGENT: abort_agent,
}
