"""The execution safety loop of a node: its stores, the loop itself, and the watch over calls."""

import msgspec

from interlock.aql.operation_names import LiveOperationNames
from interlock.catalog.catalog import LiveNamespace
from interlock.config.plan import Plan
from interlock.node.approval_parts import ApprovalParts
from interlock.node.store_parts import StoreParts
from interlock.safety.agents import Blocks
from interlock.safety.audit import SafetyAudit
from interlock.safety.challenges import TOOL_PREFIX, Challenges
from interlock.safety.codes import Attempts
from interlock.safety.executions import Executions
from interlock.safety.grants import CallableNames
from interlock.safety.loop import SafetyLoop
from interlock.safety.verification import Verification
from interlock.safety.watch import Watch

IDLE_S = 1800.0
KEEP_S = 86_400.0


class SafetyParts(msgspec.Struct, frozen=True, kw_only=True):
    challenges: Challenges
    loop: SafetyLoop
    attempts: Attempts
    verification: Verification
    watch: Watch


def make_safety_parts(
    plan: Plan,
    stores: StoreParts,
    approvals: ApprovalParts,
    live: LiveNamespace,
    names: LiveOperationNames,
) -> SafetyParts:
    kv, clock, codes = stores.store.kv, stores.clock, approvals.codes
    challenges = Challenges(approvals.inbox, codes, clock)
    loop = SafetyLoop(
        plan.safety,
        clock,
        blocks=Blocks(kv, clock),
        executions=Executions(stores.local.kv, clock, KEEP_S),
        challenges=challenges,
        names=CallableNames(live, names.find_name, names.lifted_names),
        audit=SafetyAudit(stores.recorder, clock),
        has_channel=lambda name: (
            (approvals.notifier.shows_codes and approvals.guard_changes.may_send_codes)
            or bool(approvals.anchors.approver_names(TOOL_PREFIX + name))
        ),
        idle_s=IDLE_S,
    )
    attempts = Attempts(kv, clock, is_progressive=plan.safety.progressive_lockout)
    return SafetyParts(
        challenges=challenges,
        loop=loop,
        attempts=attempts,
        verification=Verification(loop, codes, attempts, clock),
        watch=Watch(loop, clock),
    )
