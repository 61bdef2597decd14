"""The operations of a node for an operator, each with the parts it needs."""

from interlock.access.logins import LoginService
from interlock.ax.parts import AxParts
from interlock.catalog.api import CheckVerdict
from interlock.catalog.routes import Route
from interlock.drivers.parts import DriverParts
from interlock.node.capability_parts import NodeParts
from interlock.node.reload import Reload
from interlock.operator.operations.agents import AgentOperations
from interlock.operator.operations.approvers import ApproverOperations
from interlock.operator.operations.audit import AuditOperations
from interlock.operator.operations.calls import CallOperations
from interlock.operator.operations.classification import ClassificationOperations
from interlock.operator.operations.consents import ConsentOperations
from interlock.operator.operations.drivers import DriverOperations
from interlock.operator.operations.grants import GrantOperations
from interlock.operator.operations.keys import KeyOperations
from interlock.operator.operations.links import LinkOperations
from interlock.operator.operations.live import LiveOperations
from interlock.operator.operations.names import NameOperations
from interlock.operator.operations.node import NodeOperations
from interlock.operator.operations.operations import Operations
from interlock.operator.operations.rooms import RoomOperations
from interlock.operator.operations.secrets import SecretOperations
from interlock.operator.operations.tokens import TokenOperations
from interlock.operator.operations.tools import ToolOperations
from interlock.rooms.parts import RoomParts


def make_operations(
    node: NodeParts,
    reload: Reload | None,
) -> Operations:
    stores, approvals, calls, links, fronts = node.stores, node.approvals, node.calls, node.links, node.fronts
    ax, rooms, drivers = node.get(AxParts), node.get(RoomParts), node.get(DriverParts)

    def explain(route: Route, caller: str) -> tuple[CheckVerdict, ...]:
        met = calls.dispatch.guard.explain(route, stores.tokens.as_it_would_be(caller))
        return tuple(
            CheckVerdict(number=one.check, name=one.name, verdict=one.verdict, reason=one.reason) for one in met
        )

    link_operations = LinkOperations(calls.keepers, calls.catalog, ax.registrar, ax.children, calls.budgets)
    node_operations = NodeOperations(
        current=stores.current,
        addresses=stores.addresses,
        clock=stores.clock,
        aggregator_id=stores.identity.aggregator_id,
        recorder=stores.recorder,
        replicas=stores.replicas,
        links=link_operations,
        budgets=calls.budgets,
        catalog=calls.catalog,
        sessions=fronts.sessions,
        audience=calls.audience,
        modern=fronts.modern,
        dispatch=calls.dispatch,
        anchors=approvals.anchors,
        inbox=approvals.inbox,
        approvers=approvals.enrolments.shown,
        loosened=lambda: approvals.guard_changes.loosened,
        notifier=approvals.notifier,
        safety=calls.safety.loop,
        parents=ax.parents.status,
        reload=lambda: reload.status() if reload is not None else None,
        idle_drivers=drivers.drivers.idle,
        names=approvals.names.reminders.due,
        open_rooms=rooms.rooms.open_topics,
    )
    audit = AuditOperations(stores.audit, stores.recorder)
    return Operations(
        agents=AgentOperations(calls.safety.loop),
        approvals=calls.approvals,
        approvers=ApproverOperations(
            approvals.enrolments, approvals.anchors, approvals.operator_keys, approvals.passkeys
        ),
        audit=audit,
        calls=CallOperations(fronts.modern, calls.dispatch, stores.tokens.as_it_would_be),
        classification=ClassificationOperations(
            calls.catalog,
            approvals.definitions,
            approvals.inbox,
            approvals.judge,
            approvals.passkeys,
            approvals.operator_keys,
            stores.recorder,
            stores.clock,
            aggregator_id=stores.identity.aggregator_id,
        ),
        consents=ConsentOperations(calls.keepers, links.credentials, calls.audience, stores.recorder, stores.clock),
        drivers=DriverOperations(drivers.drivers),
        grants=GrantOperations(
            approvals.grants,
            approvals.inbox,
            calls.catalog,
            approvals.passkeys,
            approvals.operator_keys,
            stores.clock,
            aggregator_id=stores.identity.aggregator_id,
            approver_names=approvals.anchors.approver_names,
        ),
        keys=KeyOperations(approvals.revocation, approvals.anchors),
        links=link_operations,
        live=LiveOperations(node_operations, calls.approvals, audit, stores.clock),
        logins=LoginService(stores.tokens, stores.recorder, stores.clock, approvals.passkeys.browser_url),
        names=NameOperations(
            approvals.names,
            calls.catalog,
            approvals.surfaces.pins,
            approvals.ruled,
            stores.audit,
            stores.recorder,
        ),
        metrics=stores.metrics,
        node=node_operations,
        passkeys=approvals.passkeys,
        rooms=RoomOperations(rooms.rooms, stores.audit, stores.recorder, stores.clock),
        secrets=SecretOperations(
            links.credentials, calls.keepers, links.servers.own, drivers.drivers, stores.recorder, stores.clock
        ),
        tokens=TokenOperations(stores.tokens, fronts.public.dismiss_unwelcome, stores.recorder, stores.clock),
        tools=ToolOperations(
            calls.catalog,
            approvals.definitions,
            calls.approvals,
            drivers.contracts,
            explain,
            calls.aql.classified,
            approvals.names.state,
        ),
        more=tuple(service for capability in node.capabilities.values() for service in capability.services()),
    )
