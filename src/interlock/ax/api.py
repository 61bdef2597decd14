"""The operator API about the parents of a node."""

from typing import Annotated

from msgspec import Meta, Struct

from interlock.guard.api import Spent


class Parent(Struct, frozen=True, kw_only=True):
    """An aggregator that this node registers with."""

    url: Annotated[str, Meta(description="Its address.")]
    segment: Annotated[str, Meta(description="The segment that this node asks for.")]
    tree: Annotated[str, Meta(description="The tree in which it is a parent.")]
    state: Annotated[str, Meta(description="registered, connecting, waiting, standby or stopped.")]
    since: Annotated[str, Meta(description="When this state began.")]
    assigned_segment: Annotated[str | None, Meta(description="The segment that it assigned to this node.")]
    aggregator_id: Annotated[str | None, Meta(description="Its aggregator_id.")]
    scope: Annotated[str | None, Meta(description="The scope that it grants to this node.")]
    secure_by: Annotated[
        str | None, Meta(description="Why a link without TLS counts as secure, if the configuration says so.")
    ]
    not_listed: Annotated[int, Meta(description="Tools of this node that it does not list.")]
    not_listed_because: Annotated[dict[str, int], Meta(description="Its reasons, each with the number of tools.")] = {}
    reason: Annotated[str | None, Meta(description="Why this node is not registered there.")]
    next_step: Annotated[str | None, Meta(description="What an operator can do about the reason.")]
    budget: Annotated[
        dict[str, Spent] | None, Meta(description="The budget that it grants to this node, by the name of the limit.")
    ]
