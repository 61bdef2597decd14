"""What people decide: the inbox, their keys and passkeys, and the definitions of tools that they have seen."""

import os

import msgspec

from interlock.approvals.audit import ApprovalAudit
from interlock.approvals.enrolments import Enrolments, KeyRevocation
from interlock.approvals.guard_changes import GuardChanges
from interlock.approvals.inbox import ApprovalStore, Expiry, Inbox, rules_of
from interlock.approvals.notifier import Notifier, make_channels
from interlock.approvals.standing_grants import StandingGrants
from interlock.approvals.tool_definitions import Definitions
from interlock.approvals.trust.anchors import Anchors
from interlock.approvals.trust.approval_proofs import ProofVerifier
from interlock.approvals.trust.operator_keys import OperatorKeyService
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.config.folders import config_folder
from interlock.config.plan import Plan
from interlock.core.feed import AsyncFeed
from interlock.names.registry_parts import NameParts, make_name_parts
from interlock.names.surface_check import SurfaceParts, make_surface_parts
from interlock.node.store_parts import StoreParts
from interlock.safety.codes import Codes


class ApprovalParts(msgspec.Struct, frozen=True, kw_only=True):
    anchors: Anchors
    passkeys: PasskeyService
    operator_keys: OperatorKeyService
    judge: ProofVerifier
    inbox: Inbox
    enrolments: Enrolments
    guard_changes: GuardChanges
    grants: StandingGrants
    revocation: KeyRevocation
    ruled: AsyncFeed[str]  # the segment of a tool of which an operator said something new
    definitions: Definitions
    expiry: Expiry
    notifier: Notifier
    codes: Codes
    names: NameParts
    surfaces: SurfaceParts


def make_approval_parts(plan: Plan, stores: StoreParts) -> ApprovalParts:
    kv, clock, recorder, addresses = stores.store.kv, stores.clock, stores.recorder, stores.addresses
    anchors = Anchors(plan.anchors, clock)
    passkeys = PasskeyService(anchors, recorder, clock, lambda: addresses.operator)
    judge = ProofVerifier(kv, clock, anchors, passkeys.find_relying_party)
    replicas = stores.replicas
    own_id = None if replicas.is_alone else replicas.own_id
    inbox = Inbox(ApprovalStore(kv, clock, own_id), ApprovalAudit(recorder), clock, rules_of(plan.approvals), replicas)
    grants = StandingGrants(kv, clock, judge, recorder, aggregator_id=stores.identity.aggregator_id)
    ruled = AsyncFeed[str]()
    codes = Codes(kv, clock)
    guard_changes = GuardChanges(plan, stores.local.kv, inbox, anchors, recorder, clock)

    def find_sent_code(id: str) -> str | None:
        return codes.maybe_shown(id) if guard_changes.may_send_codes else None

    definitions = Definitions(kv, inbox, clock, ruled)
    names = make_name_parts(stores.names_log, kv, inbox, anchors, recorder, clock)
    surfaces = make_surface_parts(names.state, inbox, definitions.rulings, kv, clock, lambda: stores.current.plan)
    channels = make_channels(plan.approvals, clock)
    return ApprovalParts(
        anchors=anchors,
        passkeys=passkeys,
        operator_keys=OperatorKeyService(config_folder(os.environ) / "keys", anchors, clock),
        judge=judge,
        inbox=inbox,
        enrolments=Enrolments(kv, inbox, anchors, recorder, clock),
        guard_changes=guard_changes,
        grants=grants,
        revocation=KeyRevocation(inbox, grants, judge, recorder, clock),
        ruled=ruled,
        definitions=definitions,
        expiry=Expiry(inbox, replicas),
        notifier=Notifier(inbox, channels, url=passkeys.url, node=plan.node.name, code=find_sent_code),
        codes=codes,
        names=names,
        surfaces=surfaces,
    )
