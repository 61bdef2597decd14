"""Live: what happens at a node, as it happens."""

from typing import Annotated, Generic, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.operator_api.approvals import ApprovalSummary
from interlock.operator_api.status import Status

Record = TypeVar("Record")


class NodeEvent(Struct, Generic[Record], frozen=True, kw_only=True):
    """What has changed: one of the members, or none. One without says that the node still lives."""

    at: Annotated[str, Meta(description="The time of the node.")]
    status: Annotated[Status | UnsetType, Meta(description="The node as a whole, once it differs.")] = UNSET
    approval: Annotated[ApprovalSummary | UnsetType, Meta(description="An approval as it now stands.")] = UNSET
    records: Annotated[
        tuple[Record, ...] | UnsetType,
        Meta(description="New records of the audit log, oldest first; of many the newest."),
    ] = UNSET
