"""Budgets as people see them: what is used of what there is. Pure apart from rich's types."""

import textwrap
from collections.abc import Mapping

from rich.text import Text

from interlock.cli.terminal.text import one_line
from interlock.guard.api import Budget, Spent

_WORDS = {
    "max_calls_per_minute": "calls a minute",
    "max_mutable_calls_per_session": "changing calls",
    "max_cost_units_per_session": "units",
}


def budget_text(limits: Mapping[str, Spent]) -> str:
    return ", ".join(f"{one.used} of {one.limit} {_WORDS.get(name, one_line(name))}" for name, one in limits.items())


def budget_style(limits: Mapping[str, Spent]) -> str:
    return "yellow" if any(one.used >= one.limit for one in limits.values()) else "dim"


def budget_lines(budgets: tuple[Budget, ...], *, width: int) -> list[Text]:
    """One line or more for each caller and tool that has used something."""
    lines = []
    for budget in budgets:
        text = f"budget of {one_line(budget.name)}: {budget_text(budget.limits)}"
        wrapped = textwrap.wrap(text, max(20, width), break_on_hyphens=False, subsequent_indent="  ")
        lines += [Text(line, style=budget_style(budget.limits)) for line in wrapped]
    return lines
