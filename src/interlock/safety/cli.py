"""The commands `interlock agents list` and `interlock agents unblock`."""

from typing import Annotated

import typer

from interlock.approvals.cli.keys import KeyChoice
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.errors import BadUsage
from interlock.safety import api
from interlock.wire.refusal import Refused

app = verb_app(
    "See agents inside the safety loop, and unblock them.",
    examples="""
    interlock agents list
    interlock agents unblock coder
    """,
)


@verb(app, "list")
def list_agents(invocation: Invocation) -> None:
    """List agents with what they do now, and which are blocked.

    Examples:
        interlock agents list
        interlock agents list --json | jq '.agents[] | select(.is_blocked)'
    """
    if (listing := invocation.call_or_print(api.LIST_AGENTS)) is None:
        return
    if not listing.agents:
        invocation.out.remark(f"no agent has started; the safety loop is {listing.mode}")
        return
    rows = []
    for agent in listing.agents:
        state = "blocked" if agent.is_blocked else "paused" if agent.is_paused else agent.status or ""
        style, waits_for = "red" if agent.is_blocked else "", (agent.approval_id or "")[:8]
        rows.append(((agent.name, "bold"), agent.principal, (state, style), str(agent.steps), waits_for))
    invocation.out.draw_table("AGENT|OF|STATE|STEPS|WAITS FOR", rows, shrink={0: 12, 1: 12})


@verb(app, "unblock")
def unblock(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")],
    *,
    of: Annotated[str | None, option("--of", "Whose agent it is.", "CLIENT")] = None,
    code: Annotated[bool, option("--code", "Do not unblock: order a fresh code, and show it.")] = False,
    reason: Annotated[str | None, option("--reason", "Why; it is recorded.", "TEXT")] = None,
    key: KeyChoice,
) -> None:
    """Unblock an agent, with your signature.

    A fresh challenge takes the place of the one before. With --code you see its code and give it to the agent's client,
    which verifies itself; without, your signature unblocks the agent at once.

    Examples:
        interlock agents unblock coder
        interlock agents unblock coder --of client:laptop
        interlock agents unblock coder --code
    """
    from interlock.approvals.api import DECIDE_APPROVAL, GET_APPROVAL, Approval, DecideApproval
    from interlock.approvals.cli.inbox import reveal
    from interlock.approvals.cli.signing import prove

    node = invocation.node
    blocked_agents = [agent for agent in node.call(api.LIST_AGENTS).as_(api.Agents).agents if agent.is_blocked]
    matches = [agent for agent in blocked_agents if agent.name == name and of in (None, agent.principal)]
    if not matches:
        names = ", ".join(agent.name for agent in blocked_agents)
        raise Refused("not_blocked", f"no agent {name} is blocked", hint=f"blocked: {names}" if names else None)
    if len(matches) > 1:
        whose = ", ".join(agent.principal for agent in matches)
        raise BadUsage("which_agent", f"several clients have an agent {name}: {whose}", hint="--of CLIENT says which")
    blocked = matches[0]
    body = api.NameAgent(principal=blocked.principal, name=blocked.name)
    fresh = node.call(api.ORDER_CHALLENGE, body=body).as_(api.Agent)
    if code:
        reveal(invocation, fresh.approval_id or "", key)
        return
    shown = node.call(GET_APPROVAL, id=fresh.approval_id or "").as_(Approval)
    proof = prove(shown, key, choice=None)
    decision = DecideApproval(decision="approve", proof=proof, reason=reason)
    if invocation.call_or_print(DECIDE_APPROVAL, id=fresh.approval_id or "", body=decision) is not None:
        invocation.out.line(f"unblocked: {blocked.name}, of {blocked.principal}")
