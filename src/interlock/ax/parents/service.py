"""This node towards its parents (MCP-AX 3.1, 13.3): one connection for each tree that it belongs to.

A node may belong to several trees. In each tree it has one parent at a time, because the parents of one tree are
backups of each other, and it offers what is below it to every tree. Split brain (13.4) is a matter of its own tree
only, so only the parent there takes part in claims.

`replan` replaces all parents when the configuration changes. Without parents the modules that connect to them are not
imported, because an idle node must stay small.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.ax.protocol.messages import Claimed
from interlock.ax.registrar import Registrar
from interlock.config.plan import ParentPlan, Plan
from interlock.core.node_identity import NODE_KEY
from interlock.core.part import CannotStart
from interlock.core.tls import check_parents
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.modern import ModernFront
from interlock.links.api import Parent

if TYPE_CHECKING:
    from interlock.ax.parents.parents import Parents
    from interlock.crypto.signing import SigningKey

PARENT: Final = "parent:"  # before the URL, in the name of a parent's principal
DEVICE_MARK: Final = "#"  # after it, for a parent on the connection of one device


class ParentService:
    """Service that keeps this node registered with one parent (an aggregator above it) in each of its trees."""

    def __init__(self, plan: Plan, registrar: Registrar, legacy: LegacyFront, modern: ModernFront) -> None:
        """Prepare the registrations with the configured parents. Raise CannotStart if one of the parents cannot be
        used.
        """
        self._registrar = registrar
        self._fronts = legacy, modern, registrar.audience
        self._plan = plan
        self._trees = self._make_trees(plan, own_key(plan))
        registrar.subtree.subscribe(self._report_subtree)
        registrar.claims.above = self

    async def open(self) -> None:
        for parents in self._trees.values():
            parents.start()

    async def close(self) -> None:
        self.stop_calls()
        await asyncio.gather(*(parents.leave() for parents in self._trees.values()))

    def stop_calls(self) -> None:
        """Accept no new calls of parents. Calls under way are still answered."""
        for parents in self._trees.values():
            parents.close()

    def check(self, plan: Plan) -> None:
        """Raise CannotStart if the parents in `plan` cannot be used."""
        check_parents(plan)
        own_key(plan)

    async def replan(self, plan: Plan) -> None:
        """Replace the parents by those in `plan`.

        Raise CannotStart, and keep the present parents, if one cannot be used.
        """
        check_parents(plan)
        signer = own_key(plan)
        leaving, self._trees = self._trees, {}
        for parents in leaving.values():
            parents.close()
        await asyncio.gather(*(parents.leave() for parents in leaving.values()))
        self._plan, self._trees = plan, self._make_trees(plan, signer)
        self._registrar.set_above(frozenset())
        await self.open()

    def status(self) -> list[Parent]:
        """Return the status of each parent in the order of the configuration."""
        statuses = {tree: iter(parents.status()) for tree, parents in self._trees.items()}
        trees = (parent.tree or self._plan.ax.tree for parent in self._plan.ax.parents)
        return [next(statuses[tree]) for tree in trees if tree in statuses]

    # Claims of subservers in our own tree (TreeClaims)

    async def claim(self, claims: Sequence[Claimed], released_session: str | None) -> Mapping[str, str]:
        """Claim subservers at the parent, so that no other aggregator of the tree takes them.

        Return the denied claims as a map from subserver_id to the aggregator_id that has it.
        """
        own = self._trees.get(self._plan.ax.tree)
        return await own.claims.claim(claims, released_session) if own is not None else {}

    def release(self, subserver_ids: Sequence[str]) -> None:
        if (own := self._trees.get(self._plan.ax.tree)) is not None:
            own.claims.release(subserver_ids)

    # Aggregators below and above (5.3)

    def _report_subtree(self, ids: tuple[str, ...]) -> None:
        for parents in self._trees.values():
            parents.subtree_changed(ids)

    def _on_above(self) -> None:
        above = (parents.above for parents in self._trees.values())
        self._registrar.set_above(frozenset[str]().union(*above))

    def _make_trees(self, plan: Plan, signer: "SigningKey | None") -> "dict[str, Parents]":
        """Create the registration for each tree, keyed by the name of the tree.

        Each gets a plan with that tree's parents only.
        """
        if not plan.ax.parents:
            return {}
        from interlock.ax.parents.parents import Parents

        plans: dict[str, list[ParentPlan]] = {}
        for parent in plan.ax.parents:
            plans.setdefault(parent.tree or plan.ax.tree, []).append(parent)
        return {
            tree: Parents(
                msgspec.structs.replace(plan, ax=msgspec.structs.replace(plan.ax, tree=tree, parents=tuple(parents))),
                self._registrar,
                self._fronts,
                self._on_above,
                signer,
            )
            for tree, parents in plans.items()
        }


def own_key(plan: Plan) -> "SigningKey | None":
    """Return the key that proves this node's authority to parents.

    Return None if the node has no key, or if no parent in `plan` is told an authority.

    `interlock access anchor` creates the key. Raise CannotStart if the key cannot be read.
    """
    path = plan.data / NODE_KEY
    if not path.exists() or all(parent.authority is None for parent in plan.ax.parents):
        return None
    from interlock.crypto.signing import KeyFileError, read_signing_key

    try:
        return read_signing_key(path)
    except KeyFileError as error:
        raise CannotStart(str(error)) from None
