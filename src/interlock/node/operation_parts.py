"""The operations of the common parts of a node: one object per noun, each with the parts it needs."""

import msgspec

from interlock.access.logins import LoginService
from interlock.access.operations import LoginOperations, TokenOperations
from interlock.approvals.operations.approvers import ApproverOperations
from interlock.approvals.operations.classification import ClassificationOperations
from interlock.approvals.operations.grants import GrantOperations
from interlock.approvals.operations.inbox import InboxOperations
from interlock.ax.parts import AxParts
from interlock.catalog.api import CheckVerdict
from interlock.catalog.operations import CallOperations, ToolOperations
from interlock.catalog.routes import Route
from interlock.credentials.operations import ConsentOperations, SecretOperations
from interlock.drivers.operations import DriverOperations
from interlock.drivers.parts import DriverParts
from interlock.links.operations import LinkOperations
from interlock.node.capability_parts import NodeParts
from interlock.node.reload import Reload
from interlock.node.status import StatusOperations
from interlock.operator.operation import Handlers, handlers_of
from interlock.store.operations import AuditOperations


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that handles operations, by noun."""

    approvers: ApproverOperations
    audit: AuditOperations
    calls: CallOperations
    classification: ClassificationOperations
    consents: ConsentOperations
    drivers: DriverOperations
    grants: GrantOperations
    inbox: InboxOperations
    links: LinkOperations
    logins: LoginOperations
    node: StatusOperations
    secrets: SecretOperations
    tokens: TokenOperations
    tools: ToolOperations
    more: tuple[object, ...]  # of capabilities that bring their own

    @property
    def handlers(self) -> Handlers:
        named = (getattr(self, name) for name in self.__struct_fields__ if name != "more")
        return handlers_of((*named, *self.more))


def make_operations(parts: NodeParts, reload: Reload | None) -> Operations:
    """Construct the operations of a node."""
    stores, approvals, calls, links = parts.stores, parts.approvals, parts.calls, parts.links
    fronts, ax, drivers = parts.fronts, parts.get(AxParts), parts.get(DriverParts)

    def explain(route: Route, caller: str) -> tuple[CheckVerdict, ...]:
        return calls.dispatch.guard.explain(route, stores.tokens.as_it_would_be(caller))

    link_operations = LinkOperations(calls.keepers, calls.catalog, ax.registrar, ax.children, calls.budgets)
    audit = AuditOperations(stores.audit, stores.recorder)
    secrets = SecretOperations(
        links.credentials, calls.keepers, links.servers.own, drivers.drivers.on_secret, stores.recorder, stores.clock
    )
    return Operations(
        approvers=ApproverOperations(
            approvals.enrolments,
            approvals.anchors,
            approvals.operator_keys,
            approvals.passkeys,
            approvals.revocation,
            calls.approvals,
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
        drivers=DriverOperations(drivers.drivers, approvals.anchors, calls.approvals, secrets),
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
        inbox=InboxOperations(calls.approvals),
        links=link_operations,
        logins=LoginOperations(
            LoginService(stores.tokens, stores.recorder, stores.clock, approvals.passkeys.browser_url)
        ),
        node=StatusOperations(parts, link_operations, audit, reload),
        secrets=secrets,
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
        more=tuple(service for capability in parts.capabilities.values() for service in capability.services()),
    )
