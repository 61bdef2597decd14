"""The commands `interlock agents list` and `interlock agents unblock`."""

from typing import Annotated

import typer

from interlock.approvals.cli.keys import FromDescriptor
from interlock.cli.command import Invocation, option, verb, verb_app
from interlock.cli.terminal.drawing import in_columns
from interlock.cli.terminal.errors import BadUsage
from interlock.cli.terminal.text import one_line
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
    """List agents: what they are at, and which are blocked.

    Examples:
        interlock agents list
        interlock agents list --json | jq '.agents[] | select(.is_blocked)'
    """

    answer = invocation.node.call(api.LIST_AGENTS)
    out = invocation.out
    if out.as_json:
        out.raw_json(answer.raw)
        return
    from rich.text import Text

    listing = answer.as_(api.Agents)
    if not listing.agents:
        out.remark(f"no agent has started; the safety loop is {listing.mode}")
        return
    rows = [[Text(head, style="dim") for head in ("AGENT", "OF", "STATE", "STEPS", "WAITS FOR")]]
    rows += [
        [
            Text(one_line(agent.name), style="bold"),
            Text(one_line(agent.principal)),
            Text(_state(agent), style="red" if agent.is_blocked else ""),
            Text(str(agent.steps)),
            Text((agent.approval_id or "")[:8]),
        ]
        for agent in listing.agents
    ]
    out.draw(*in_columns(rows, width=out.console.width, shrink={0: 12, 1: 12}))


def _state(agent: api.Agent) -> str:
    return "blocked" if agent.is_blocked else "paused" if agent.is_paused else agent.status or ""


@verb(app, "unblock")
def unblock(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")],
    *,
    of: Annotated[str | None, option("--of", "Whose agent it is.", "CLIENT")] = None,
    code: Annotated[bool, option("--code", "Do not unblock: order a fresh code, and show it.")] = False,
    reason: Annotated[str | None, option("--reason", "Why; it is recorded.", "TEXT")] = None,
    key: Annotated[str | None, option("--key", "Which of your keys signs.", "NAME")] = None,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Unblock an agent, with your signature.

    A fresh challenge takes the place of the one before. With --code you see its code and give it to the agent's client,
    which verifies itself; without, your signature unblocks the agent at once.

    Examples:
        interlock agents unblock coder
        interlock agents unblock coder --of client:laptop
        interlock agents unblock coder --code
    """
    from interlock.approvals.api import DECIDE_APPROVAL, GET_APPROVAL, DecideApproval
    from interlock.approvals.cli.inbox import reveal
    from interlock.approvals.cli.signing import prove

    node, out = invocation.node, invocation.out
    blocked = _choose(node.call(api.LIST_AGENTS).as_(api.Agents), name, of)
    body = api.NameAgent(principal=blocked.principal, name=blocked.name)
    fresh = node.call(api.ORDER_CHALLENGE, body=body).as_(api.Agent)
    if code:
        reveal(invocation, fresh.approval_id or "", key, passphrase_fd)
        return
    shown = node.call(GET_APPROVAL, id=fresh.approval_id or "")
    proof = prove(shown, choice=None, key=key, passphrase_fd=passphrase_fd)
    decision = DecideApproval(decision="approve", proof=proof, reason=reason)
    done = node.call(DECIDE_APPROVAL, id=fresh.approval_id or "", body=decision)
    if out.as_json:
        out.raw_json(done.raw)
    else:
        out.line(f"unblocked: {blocked.name}, of {blocked.principal}")


def _choose(agents: api.Agents, name: str, of: str | None) -> api.Agent:
    blocked_agents = [agent for agent in agents.agents if agent.is_blocked]
    matches = [agent for agent in blocked_agents if agent.name == name and of in (None, agent.principal)]
    if not matches:
        blocked = ", ".join(agent.name for agent in blocked_agents)
        raise Refused("not_blocked", f"no agent {name} is blocked", hint=f"blocked: {blocked}" if blocked else None)
    if len(matches) > 1:
        whose = ", ".join(agent.principal for agent in matches)
        raise BadUsage("which_agent", f"several clients have an agent {name}: {whose}", hint="--of CLIENT says which")
    return matches[0]
