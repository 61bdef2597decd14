"""What a call of a tool would meet, rung by rung, for a given caller: the guard's order, told to an operator.

Nothing is decided here. Each verdict is read off what the guard would look at: `pass`, `refuse`, `hold` (a person is
asked first) or `later` (only the call itself can tell).
"""

from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from interlock.config.plan import GatePlan, Plan
from interlock.protocol.approvals.state import Status
from interlock.protocol.ax.confirmation.policy import Hold
from interlock.runtime.approvals.inbox import Inbox
from interlock.runtime.base.link_state import USABLE
from interlock.runtime.calls.budgets import Budgets
from interlock.runtime.calls.caller import Principal, view_key
from interlock.runtime.calls.guard import Rung
from interlock.runtime.catalog.catalog import SCOPES, Namespace
from interlock.runtime.catalog.routes import Route


class Approvers(Protocol):
    def approving(self, tool: str) -> tuple[str, ...]: ...


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    rung: int
    name: str
    verdict: str
    reason: str


def rungs(
    route: Route,
    caller: Principal,
    *,
    plan: Plan,
    namespace: Namespace,
    inbox: Inbox,
    approvers: Approvers,
    budgets: Budgets,
) -> list[dict[str, Any]]:
    standing = route.link.standing
    beyond = route.link.maybe_outlook(route.original)
    usable = standing.state in USABLE if beyond is None else beyond.available
    timeout_s = route.timeout_s if beyond is None else beyond.timeout_s
    met = [
        _route(route, caller, namespace),
        _arguments(route, is_contract=beyond is not None),
        Verdict(
            rung=Rung.AVAILABILITY,
            name="availability",
            verdict="pass" if usable else "refuse",
            reason=(standing.reason or standing.state.value) if beyond is None else beyond.reason,
        ),
        _budget(route, caller, budgets),
        _gate(route, caller, plan.gate, inbox, approvers),
        Verdict(
            rung=Rung.COMMIT,
            name="commit",
            verdict="later" if _hold(route) is not None else "pass",
            reason="the approval is used up, on disk, before the first byte" if _hold(route) else "nothing to use up",
        ),
        Verdict(
            rung=Rung.SEND,
            name="send",
            verdict="later",
            reason=f"timeout {timeout_s:g} s" if timeout_s is not None else "no timeout (batch)",
        ),
    ]
    return [msgspec.structs.asdict(one) for one in met]


def _hold(route: Route) -> Hold | None:
    return route.gate.hold if route.gate is not None else None


def _route(route: Route, caller: Principal, namespace: Namespace) -> Verdict:
    view = namespace.view(view_key(caller, only=None, names="auto", declares_extension=False))
    if view.find_tool(route.qualified) is not None:
        verdict, reason = "pass", f"needs scope {route.scope}; {caller.name} has {caller.scope}"
    elif route.qualified in namespace.clashing:
        verdict, reason = "refuse", namespace.clashing[route.qualified].reason
    elif SCOPES.index(route.scope) > SCOPES.index(caller.scope):
        verdict, reason = "refuse", f"tool_not_found: needs scope {route.scope}; {caller.name} has {caller.scope}"
    else:
        verdict, reason = "refuse", f"tool_not_found: [[access]] of {caller.name} does not name it"
    return Verdict(rung=Rung.ROUTE, name="route and scope", verdict=verdict, reason=reason)


def _arguments(route: Route, *, is_contract: bool) -> Verdict:
    strict = _hold(route) is Hold.CALL
    reason = "must mean the same to every reader: they are part of what is confirmed" if strict else "the server's"
    if is_contract:
        reason = "checked against the contract" + (f"; {reason}" if strict else "")
    later = strict or is_contract
    return Verdict(rung=Rung.ARGUMENTS, name="arguments", verdict="later" if later else "pass", reason=reason)


def _budget(route: Route, caller: Principal, budgets: Budgets) -> Verdict:
    over = budgets.outlook(route.link, route.qualified, route.price, caller)
    costs = f"costs {route.price.units} units" + (", changes something" if route.price.mutable else "")
    return Verdict(
        rung=Rung.BUDGET,
        name="budget",
        verdict="pass" if over is None else "refuse",
        reason=costs if over is None else f"{over.budget}: {over.used} of {over.limit} used",
    )


def _gate(route: Route, caller: Principal, gate: GatePlan, inbox: Inbox, approvers: Approvers) -> Verdict:
    hold = _hold(route)
    if hold is None:
        return Verdict(rung=Rung.GATE, name="gate", verdict="pass", reason=_why_not(route, gate))
    if hold is Hold.DEFINITION:
        found = inbox.find_definition(route.qualified, route.digest)
        how = f"interlock approve {found.id}" if found is not None else "the first call asks"
        reason = f"nobody has said yet what it does: {how}"
    else:
        names = approvers.approving(route.qualified)
        by = f"proof by {', '.join(names)}" if names else "nobody can: interlock init makes an operator key"
        reason = f"{_why_held(route, gate)}; {by}"
        waiting = [one for one in inbox.listed((Status.PENDING, Status.APPROVED)) if one.requested_by == caller.name]
        mine = [f"{one.id} {one.status.value}" for one in waiting if one.tool == route.qualified]
        reason += f"; {', '.join(mine)}" if mine else ""
    return Verdict(rung=Rung.GATE, name="gate", verdict="hold", reason=reason)


def _why_held(route: Route, gate: GatePlan) -> str:
    if any(fnmatchcase(route.qualified, pattern) for pattern in gate.also):
        return "gate.also names it"
    by_contract = route.gate is not None and route.gate.by_contract
    return "its contract asks for every call" if by_contract else "it cannot be undone"


def _why_not(route: Route, gate: GatePlan) -> str:
    if route.gate is not None:
        return "a hop below asks" if route.gated else "nothing is held here; a hop below may ask"
    if route.irreversible:
        allowed = route.is_open and gate.mode != "open"
        return 'gate.unannotated is "allow"' if allowed else f'gate.mode is "{gate.mode}"'
    return "it can be undone" if route.capability is not None and route.capability.mutable else "it changes nothing"
