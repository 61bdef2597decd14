"""The trees a node belongs to (MCP-AX 3.1): in each it has one parent at a time, and in all of them at once.

Parents of one tree are backups of each other. What stands below the node is offered to every tree.
"""

import asyncio
from collections.abc import Callable

import msgspec

from interlock.ax.api import Parent
from interlock.ax.parents.parents import Parents
from interlock.config.plan import ParentPlan, Plan


class ParentTrees:
    """The parents of all trees of a node, with the methods of one `Parents`."""

    def __init__(self, plan: Plan, make_parents: Callable[[Plan], Parents]) -> None:
        """`make_parents` makes those of a plan that knows of one tree only."""
        self._plans = plan.ax.parents
        trees: dict[str, list[ParentPlan]] = {}
        for parent in plan.ax.parents:
            trees.setdefault(parent.tree or plan.ax.tree, []).append(parent)
        made = {tree: make_parents(_in_one_tree(plan, tree, tuple(parents))) for tree, parents in trees.items()}
        self._trees = list(made.values())
        own = made.get(plan.ax.tree)
        self.claims = own.claims if own is not None else None  # split brain is a matter of one tree (13.4)

    def start(self) -> None:
        for parents in self._trees:
            parents.start()

    def close(self) -> None:
        for parents in self._trees:
            parents.close()

    async def leave(self) -> None:
        await asyncio.gather(*(parents.leave() for parents in self._trees))

    def subtree_changed(self, subtree_ids: tuple[str, ...]) -> None:
        for parents in self._trees:
            parents.subtree_changed(subtree_ids)

    @property
    def above(self) -> frozenset[str]:
        """The aggregators known to stand above us, in any tree."""
        return frozenset().union(*(parents.above for parents in self._trees))

    def status(self) -> list[Parent]:
        """In the order of the configuration."""
        found = {
            id(plan): status
            for parents in self._trees
            for plan, status in zip(parents.plans, parents.status(), strict=True)
        }
        return [found[id(plan)] for plan in self._plans]


def _in_one_tree(plan: Plan, tree: str, parents: tuple[ParentPlan, ...]) -> Plan:
    return msgspec.structs.replace(plan, ax=msgspec.structs.replace(plan.ax, tree=tree, parents=parents))
