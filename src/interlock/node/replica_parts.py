"""Which parts keep in memory what the store holds, and take over what other replicas of the node write there."""

from interlock.approvals import classifications, enrolments, inbox, standing_grants, tool_definitions
from interlock.approvals.trust import approval_proofs
from interlock.node.capability_parts import NodeParts
from interlock.store import tokens
from interlock.store.ports import Change


def follow_replicas(node: NodeParts) -> None:
    """Subscribe the parts of a node to the changes of its other replicas."""
    approvals = node.approvals

    def take_token(change: Change) -> None:
        if node.stores.tokens.take_change(change):
            node.fronts.public.dismiss_unwelcome()

    buckets = {
        inbox.BUCKET: approvals.inbox.take_change,
        classifications.BUCKET: approvals.definitions.take_ruling,
        tool_definitions.BUCKET: approvals.definitions.take_change,
        standing_grants.BUCKET: approvals.grants.take_change,
        enrolments.BUCKET: approvals.enrolments.take_change,
        approval_proofs.REVOKED: approvals.judge.take_change,
        tokens.BUCKET: take_token,
    }
    for capability in node.capabilities.values():
        buckets |= capability.replicated_buckets()
    for bucket, take_change in buckets.items():
        node.stores.replicas.on_change(bucket, take_change)
