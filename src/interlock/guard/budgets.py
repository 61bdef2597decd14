"""Budgets: which accounts a call is charged to, and when (MCP-AX 11.4; SURFACE 8, checks 9 and 11).

A call may be charged to several accounts: that of the registration session it goes to, of the principal that makes it,
of its tool, and of this node's own registration with a parent. Either every account has enough left and all are
charged, or none is charged. Nothing here awaits, so concurrent calls never exceed a limit. If there are no limits,
nothing is counted.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from interlock.ax.protocol.budget import BudgetLimits, ExceededLimit, Price, Scope, budget_exceeded
from interlock.catalog.api import CheckVerdict
from interlock.config.plan import Plan
from interlock.core.calls.call import Call, CallLink, CallRoute
from interlock.core.calls.caller import Caller, Principal
from interlock.core.calls.check import Account, Charge, CheckNumber, CheckRefusal
from interlock.core.clock import Clock
from interlock.guard.api import Budget, Spent
from interlock.wire.refusal import Refusal

IDLE_S: Final = 1800.0  # MCP-AX 11.4, ours: without a call for so long, a caller or a tool begins anew
ACCOUNTS_MAX: Final = 100_000  # of callers, of tools; the one that called least recently gives way
SHOWN_MAX: Final = 100
READING: Final = Price()  # what is not a tool costs nothing and changes nothing, but is a call


def is_limited(plan: Plan) -> bool:
    """Return whether the configuration sets a budget, or a parent may set one."""
    if plan.ax.parents or not plan.budget.limits.is_unlimited:
        return True
    return any(rule.budget is not None for rule in plan.access) or any(rule.budget is not None for rule in plan.tools)


@dataclass(eq=False)
class Budgets:
    """The budget accounts of a node, for callers, tools, subservers and parents. Calls are charged only if
    `is_enforced` is set.
    """

    # The limits of every subserver that registers, unless its own are configured.
    declared: BudgetLimits
    clock: Clock
    _: KW_ONLY
    is_enforced: bool = True
    _received: dict[str, Account] = field(default_factory=dict, init=False)  # by tree
    # By principal and by qualified name; the account used least recently comes first.
    callers: dict[str, Account] = field(default_factory=dict, init=False)
    tools: dict[str, Account] = field(default_factory=dict, init=False)

    def limit(self, declared: BudgetLimits, *, enforced: bool) -> None:
        """Replace the configured limits.

        Limits that were declared to subservers earlier stay valid, even if the configuration no longer has any limit.
        """
        self.declared = declared
        self.is_enforced = self.is_enforced or enforced

    # Registrations

    def receive(self, tree: str, limits: BudgetLimits | None) -> None:
        """Set the budget that a parent gave to this node for `tree`. With None, remove it, because the registration
        with that parent has ended.
        """
        if limits is None or limits.is_unlimited:
            self._received.pop(tree, None)
        else:
            self._received[tree] = Account("subserver", limits, self.clock.now())  # AX-11.4-5

    def for_registration(self, own: BudgetLimits | None) -> BudgetLimits:
        """Return the budget limits that this node gives to a subserver when it registers. `own` has the limits in the
        subserver's [[access]] entry, or is None. No limit is higher than those that parents gave to this node.
        """
        limits = self.declared if own is None else own.completed_by(self.declared)
        for account in self._received.values():
            limits = limits.within(account.limits)
        return limits

    # Calls (guard)

    def room(self, call: Call, link: CallLink) -> Refusal | None:
        """Return the refusal of a call that would exceed a budget now, or None. Do not charge the call."""
        price, caller = call.price, call.caller
        if price is None or call.charge is not None:
            return None
        worst = self._find_exceeded(link, call.target, price, caller.principal, from_parent=caller.hop is not None)
        return None if worst is None else budget_exceeded(*worst)

    def charge(self, call: Call, link: CallLink) -> Refusal | None:
        """Charge a call to all its accounts, or return the refusal. A call is charged once, however often it is checked
        and sent.
        """
        price, caller = call.price, call.caller
        if price is None or call.charge is not None or not self.is_enforced:
            return None
        now, principal = self.clock.now(), caller.principal
        accounts = self._of_tree(link, caller.hop is not None)
        if principal.budget is not None:
            accounts.append(_account(self.callers, "caller", principal.name, principal.budget, now))
        if price.limits is not None:
            accounts.append(_account(self.tools, "tool", call.target, price.limits, now))
        worst = _find_worst(accounts, price, now)
        if worst is None and accounts:
            call.charge = _take(accounts, price, now)
        return None if worst is None else budget_exceeded(*worst)

    def charge_questions(self, link: CallLink, caller: Caller, questions: int = 1) -> Refusal | None:
        """Charge the requests that a subserver sends to a client, against the budget of the subserver's session (MCP-AX
        11.4). If one request is refused, those before it stay charged.
        """
        accounts = self._of_tree(link, caller.hop is not None)
        now = self.clock.now()
        for _ in range(questions):
            worst = _find_worst(accounts, READING, now)
            if worst is not None:
                return budget_exceeded(*worst)
            _take(accounts, READING, now)
        return None

    def _find_exceeded(
        self, link: CallLink, tool: str, price: Price, principal: Principal, *, from_parent: bool
    ) -> tuple[ExceededLimit, Scope] | None:
        """Return the limit that a call would exceed now and the scope of its account, or None. Do not
        charge the call.
        """
        if not self.is_enforced:
            return None
        now = self.clock.now()
        accounts = self._of_tree(link, from_parent)
        if principal.budget is not None:
            accounts.append(_as_it_stands(self.callers, "caller", principal.name, principal.budget, now))
        if price.limits is not None:
            accounts.append(_as_it_stands(self.tools, "tool", tool, price.limits, now))
        return _find_worst(accounts, price, now)

    def _of_tree(self, link: CallLink, from_parent: bool) -> list[Account]:
        """Return the accounts of a call that belong to the MCP-AX tree: the account of the subserver that it goes to,
        and the budgets that parents gave to this node.

        Budgets received from parents limit calls that come from parents and calls that go to subservers.
        """
        accounts = [] if link.account is None else [link.account]
        if self._received and (from_parent or link.offer.kind != "adopted"):
            accounts += self._received.values()
        return accounts

    # For the operator

    def shown(self) -> tuple[Budget, ...]:
        """Return the budgets of callers and tools for the operator: the SHOWN_MAX most recently used, latest first."""
        now = self.clock.now()
        live = [
            (account.used_at, Budget(scope=account.scope, name=name, limits=account.shown(now)))
            for accounts in (self.callers, self.tools)
            for name, account in accounts.items()
            if now - account.used_at < IDLE_S
        ]
        return tuple(shown for _, shown in sorted(live, key=lambda account: account[0], reverse=True)[:SHOWN_MAX])

    def shown_of(self, link: CallLink) -> dict[str, Spent] | None:
        return None if link.account is None else link.account.shown(self.clock.now())

    def shown_received(self, tree: str) -> dict[str, Spent] | None:
        account = self._received.get(tree)
        return None if account is None else account.shown(self.clock.now())

    def outlook(self, link: CallLink, tool: str, price: Price, caller: Principal) -> ExceededLimit | None:
        """Return the limit that a call of this tool by this caller would exceed now, or None. Do not
        charge the call.
        """
        worst = self._find_exceeded(link, tool, price, caller, from_parent=False)
        return None if worst is None else worst[0]


@dataclass(eq=False)
class BudgetCheck:
    """Check 9 of the guard: refuses a call that exceeds one of its budgets, and charges a call that is not held."""

    number = CheckNumber.BUDGET
    name = "budget"
    is_common = True

    budgets: Budgets

    def applies_to(self, route: CallRoute) -> bool:
        return True

    def check(self, call: Call, link: CallLink) -> CheckRefusal | None:
        is_held = call.hold is not None and call.hold.is_waiting
        refusal = self.budgets.room(call, link) if is_held else self.budgets.charge(call, link)
        return None if refusal is None else CheckRefusal(self.number, refusal)

    def explain(self, route: CallRoute, caller: Principal) -> CheckVerdict:
        over = self.budgets.outlook(route.link, route.qualified, route.price, caller)
        reason = f"costs {route.price.units} units" + (", changes something" if route.price.mutable else "")
        if over is not None:
            reason = f"{over.budget}: {over.used} of {over.limit} used"
        return CheckVerdict(number=self.number, name=self.name, verdict="refuse" if over else "pass", reason=reason)


def _account(accounts: dict[str, Account], scope: Scope, name: str, limits: BudgetLimits, now: float) -> Account:
    account = accounts.pop(name, None)
    if account is None or now - account.used_at >= IDLE_S:
        account = Account(scope, limits, now)
        if len(accounts) >= ACCOUNTS_MAX:
            del accounts[next(iter(accounts))]
    accounts[name] = account
    account.limits = limits
    account.used_at = now
    return account


def _as_it_stands(accounts: dict[str, Account], scope: Scope, name: str, limits: BudgetLimits, now: float) -> Account:
    """Return a copy of an account with the limits that are configured now. If the account does not exist or was not
    used for long, the copy is empty.
    """
    copy = Account(scope, limits, now)
    stored = accounts.get(name)
    if stored is not None and now - stored.used_at < IDLE_S:
        copy.usage = stored.usage
    return copy


def _find_worst(accounts: list[Account], price: Price, now: float) -> tuple[ExceededLimit, Scope] | None:
    """Return the limit that a call would exceed with the longest wait, and the scope of its account. Return None if no
    account would be exceeded.
    """
    limits = ((account.limits.exceeded(account.usage, price, now), account.scope) for account in accounts)
    exceeded = [(over, scope) for over, scope in limits if over is not None]
    return max(exceeded, key=lambda worst: _wait_ms(worst[0]), default=None)


def _take(accounts: list[Account], price: Price, now: float) -> Charge:
    return Charge(price, [(account.usage, account.usage.charge(price, now)) for account in accounts])


def _wait_ms(over: ExceededLimit) -> float:
    return float("inf") if over.retry_after_ms is None else over.retry_after_ms
