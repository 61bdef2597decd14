"""The operator API about the parents of a node."""

from msgspec import Struct

from interlock.guard.api import Spent


class Parent(Struct, frozen=True, kw_only=True):
    """An aggregator that this node registers with.

    Members:
        url: Its address.
        segment: The segment that this node asks for.
        tree: The tree in which it is a parent.
        state: registered, connecting, waiting, standby or stopped.
        since: When this state began.
        assigned_segment: The segment that it assigned to this node.
        aggregator_id: Its aggregator_id.
        scope: The scope that it grants to this node.
        secure_by: Why a link without TLS counts as secure, if the configuration says so.
        not_listed: Tools of this node that it does not list.
        not_listed_because: Its reasons, each with the number of tools.
        reason: Why this node is not registered there.
        next_step: What an operator can do about the reason.
        budget: The budget that it grants to this node, by the name of the limit.
    """

    url: str
    segment: str
    tree: str
    state: str
    since: str
    assigned_segment: str | None
    aggregator_id: str | None
    scope: str | None
    secure_by: str | None
    not_listed: int
    not_listed_because: dict[str, int] = {}
    reason: str | None
    next_step: str | None
    budget: dict[str, Spent] | None
