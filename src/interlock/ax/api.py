"""The operator API about the parents of a node."""

from typing import Annotated

from msgspec import Meta, Struct

from interlock.guard.api import Spent


class Parent(Struct, frozen=True, kw_only=True):
    """An aggregator that this node registers with."""

    url: Annotated[str, Meta(description="Where it is.")]
    segment: Annotated[str, Meta(description="The segment that is asked for.")]
    tree: Annotated[str, Meta(description="In which tree.")]
    state: Annotated[str, Meta(description="registered, connecting, waiting, standby or stopped.")]
    since: Annotated[str, Meta(description="Since when.")]
    assigned_segment: Annotated[str | None, Meta(description="The segment it has assigned.")]
    aggregator_id: Annotated[str | None, Meta(description="Who it is.")]
    scope: Annotated[str | None, Meta(description="What this node may offer there.")]
    secure_by: Annotated[str | None, Meta(description="Why a link without TLS counts as secure.")]
    not_listed: Annotated[int, Meta(description="Tools of this node that it does not list.")]
    not_listed_because: Annotated[dict[str, int], Meta(description="Its reasons, and how many tools each is for.")] = {}
    reason: Annotated[str | None, Meta(description="Why it stands like this.")]
    next_step: Annotated[str | None, Meta(description="What an operator can do about it.")]
    budget: Annotated[dict[str, Spent] | None, Meta(description="What it lets this node use.")]
