"""This node towards its parents: one connection for each tree it belongs to, replaced when the configuration changes.

Without parents their modules are not imported.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from interlock.ax.api import Parent
from interlock.ax.protocol.messages import Claimed
from interlock.ax.registrar import Registrar
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.core.node_identity import NODE_KEY
from interlock.core.part import CannotStart
from interlock.core.recorder import Recorder
from interlock.core.tls import check_parents
from interlock.fronts.audience import Audience
from interlock.fronts.legacy import LegacyFront
from interlock.fronts.modern import ModernFront
from interlock.guard.budgets import Budgets

if TYPE_CHECKING:
    from interlock.ax.parents.parents import Parents, ParentTrees
    from interlock.crypto.signing import SigningKey


class ParentService:
    def __init__(
        self,
        plan: Plan,
        *,
        registrar: Registrar,
        subtree: Feed[tuple[str, ...]],
        clock: Clock,
        recorder: Recorder,
        legacy: LegacyFront,
        modern: ModernFront,
        audience: Audience,
        budgets: Budgets,
    ) -> None:
        """Prepare the parents of all trees. `subtree` publishes the ids of the aggregators below this node when they
        change. Raise CannotStart.
        """
        self._registrar = registrar
        self._clock = clock
        self._recorder = recorder
        self._legacy = legacy
        self._modern = modern
        self._audience = audience
        self._budgets = budgets
        self._trees = self._make(plan, own_key(plan))
        subtree.subscribe(self._on_subtree)
        registrar.claims.report_to(self)

    async def open(self) -> None:
        if self._trees is not None:
            self._trees.start()

    async def close(self) -> None:
        self.stop_calls()
        if self._trees is not None:
            await self._trees.leave()

    def stop_calls(self) -> None:
        """Accept no new calls of parents. Calls under way are answered."""
        if self._trees is not None:
            self._trees.close()

    def check(self, plan: Plan) -> None:
        """Raise CannotStart if these parents cannot be used."""
        check_parents(plan)
        own_key(plan)

    async def replan(self, plan: Plan) -> None:
        """Replace the parents. It raises as `check` does before the present parents are left."""
        check_parents(plan)
        signer = own_key(plan)
        leaving, self._trees = self._trees, None
        if leaving is not None:
            leaving.close()
            await leaving.leave()
        self._trees = self._make(plan, signer)
        self._registrar.set_above(frozenset())
        await self.open()

    def status(self) -> list[Parent]:
        return self._trees.status() if self._trees is not None else []

    # What registers below is claimed at the parent of our own tree (ClaimsAbove)

    async def claim(self, claims: Sequence[Claimed], released_session: str | None) -> Mapping[str, str]:
        above = self._trees.claims if self._trees is not None else None
        return await above.claim(claims, released_session) if above is not None else {}

    def release(self, subserver_ids: Sequence[str]) -> None:
        if self._trees is not None and self._trees.claims is not None:
            self._trees.claims.release(subserver_ids)

    def _on_subtree(self, ids: tuple[str, ...]) -> None:
        if self._trees is not None:
            self._trees.subtree_changed(ids)

    def _on_above(self) -> None:
        if self._trees is not None:
            self._registrar.set_above(self._trees.above)

    def _make(self, plan: Plan, signer: "SigningKey | None") -> "ParentTrees | None":
        if not plan.ax.parents:
            return None
        from interlock.ax.parents.front import UpwardFront
        from interlock.ax.parents.parents import Parents, ParentTrees

        def parents_of(one_tree: Plan) -> "Parents":
            return Parents(
                one_tree,
                self._registrar.engine.subtree_ids(),
                clock=self._clock,
                recorder=self._recorder,
                make_front=partial(UpwardFront, self._legacy, self._modern, self._audience),
                budgets=self._budgets,
                on_above=self._on_above,
                claimed=self._registrar.claims.holders.all if one_tree.ax.tree == plan.ax.tree else None,
                on_held=self._registrar.claims.disown,
                signer=signer,
            )

        return ParentTrees(plan, parents_of)


def own_key(plan: Plan) -> "SigningKey | None":
    """Return the key that proves our authority to parents, or None. `interlock access anchor` creates it. Raise
    CannotStart.
    """
    path = plan.data / NODE_KEY
    if not path.exists() or all(parent.authority is None for parent in plan.ax.parents):
        return None
    from interlock.crypto.signing import KeyFileError, read_signing_key

    try:
        return read_signing_key(path)
    except KeyFileError as error:
        raise CannotStart(str(error)) from None
