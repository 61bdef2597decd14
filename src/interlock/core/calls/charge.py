"""Accounts of budgets, and what a call was charged on them (MCP-AX 11.4)."""

import msgspec

from interlock.ax.protocol.budget import BudgetUsage, Limits, Price, Scope, Slice
from interlock.guard.api import Spent


class Account:
    """One budget and what of it is used."""

    __slots__ = ("limits", "scope", "usage", "used_at")

    def __init__(self, scope: Scope, limits: Limits, now: float) -> None:
        self.scope: Scope = scope
        self.limits = limits
        self.usage = BudgetUsage()
        self.used_at = now

    def shown(self, now: float) -> dict[str, Spent]:
        limits = self.limits.shown(self.usage, now)
        return {name: Spent(limit=spent["limit"], used=spent["used"]) for name, spent in limits.items()}


class Charge(msgspec.Struct, frozen=True):
    """Price that a call was charged, and the budgets that it was charged to."""

    price: Price
    parts: list[tuple[BudgetUsage, Slice]]

    def refund(self) -> None:
        for usage, charged in self.parts:
            usage.refund(self.price, charged)
