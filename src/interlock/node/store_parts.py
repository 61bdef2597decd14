"""The stores of a node and its identity: the plan in effect, addresses, audit log and tokens."""

import msgspec

from interlock.access.tokens import TokenRegistry
from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.current_plan import Addresses, CurrentPlan
from interlock.core.metrics import Metrics
from interlock.core.node_identity import Identity, adopt_identity, own_identity
from interlock.core.recorder import Recorder
from interlock.core.refusal_log import Refusals
from interlock.core.replicas import Changes, Replicas
from interlock.core.retention import Retention
from interlock.core.store_backends import build_audit, build_store
from interlock.credentials.shared_store import build_names_log, build_shared_store, maybe_tree_store
from interlock.store.ports import AuditLog, NamesLog, Store
from interlock.store.tokens import TokenTable


class StoreParts(msgspec.Struct, frozen=True, kw_only=True):
    current: CurrentPlan
    addresses: Addresses
    clock: Clock
    metrics: Metrics
    identity: Identity
    store: Store  # what replicas of this node share, where there are several
    local: Store  # what is about this machine: the same store, unless others use that too
    replicas: Replicas
    changes: Changes
    shared: Store | None  # where several aggregators settle who has which subserver
    names_log: NamesLog
    audit: AuditLog
    recorder: Recorder
    refusals: Refusals
    retention: Retention
    tokens: TokenRegistry


async def adopt_shared_identity(plan: Plan, clock: Clock) -> None:
    """Take over the identity of the aggregator, before a node is constructed, if replicas share a store. Raise
    StoreError.
    """
    store = build_shared_store(plan, plan.data, clock)
    if store.replication is None:
        return
    try:
        await store.open()
        await adopt_identity(plan.data, store.kv, clock.wall())
    finally:
        await store.close()


def make_store_parts(plan: Plan, clock: Clock) -> StoreParts:
    store = build_shared_store(plan, plan.data, clock)
    local = store if store.replication is None else build_store("sqlite", plan.data)
    replicas = Replicas(store, clock)
    audit = build_audit(plan.store.backend, plan.data)
    recorder = Recorder(audit)
    return StoreParts(
        current=CurrentPlan(plan),
        addresses=Addresses(plan.node),
        clock=clock,
        metrics=Metrics(),
        identity=own_identity(plan.data),
        store=store,
        local=local,
        replicas=replicas,
        changes=Changes(replicas),
        shared=maybe_tree_store(plan, clock),
        names_log=build_names_log(plan, plan.data, clock),
        audit=audit,
        recorder=recorder,
        refusals=Refusals(recorder.add, clock),
        retention=Retention(audit, recorder, clock, plan.store.audit_days),
        tokens=TokenRegistry(TokenTable(store.kv), clock, plan.access, plan.auth.token_days),
    )
