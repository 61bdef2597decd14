"""Which parts keep in memory what the store holds, and hear what other replicas of the node write there."""

from interlock.approvals import classifications, enrolments, standing_grants, storage, tool_definitions
from interlock.approvals.trust import approval_proofs
from interlock.names import surface_check
from interlock.node.approval_parts import ApprovalParts
from interlock.node.call_parts import CallParts
from interlock.node.front_parts import FrontParts
from interlock.node.room_parts import RoomParts
from interlock.node.store_parts import StoreParts
from interlock.safety import agents, codes
from interlock.store import tokens
from interlock.store.ports import Change


def follow_replicas(
    stores: StoreParts, approvals: ApprovalParts, calls: CallParts, fronts: FrontParts, rooms: RoomParts
) -> None:
    loop = calls.safety.loop

    def take_token(change: Change) -> None:
        if stores.tokens.take_change(change):
            fronts.public.dismiss_unwelcome()
            rooms.rooms.dismiss(stores.tokens.stands)

    def take_block(change: Change) -> None:
        loop.blocks.take_change(change)
        loop.changed.publish(None)

    follow = stores.replicas.on_change
    follow(storage.BUCKET, approvals.inbox.take_change)
    follow(classifications.BUCKET, approvals.definitions.take_ruling)
    follow(tool_definitions.BUCKET, approvals.definitions.take_change)
    follow(standing_grants.BUCKET, approvals.grants.take_change)
    follow(enrolments.BUCKET, approvals.enrolments.take_change)
    follow(approval_proofs.REVOKED, approvals.judge.take_change)
    follow(surface_check.PINS_BUCKET, approvals.surfaces.pins.take_change)
    follow(agents.BUCKET, take_block)
    follow(codes.CHALLENGES, approvals.codes.take_change)
    follow(codes.ATTEMPTS, calls.safety.attempts.take_change)
    follow(tokens.BUCKET, take_token)
