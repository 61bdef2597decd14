"""Every operation of a node in one value, by noun."""

import msgspec

from interlock.access.logins import LoginService
from interlock.approvals.trust.passkeys import PasskeyService
from interlock.approvals.views import ApprovalViews
from interlock.core.metrics import Metrics
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
from interlock.operator.operations.rooms import RoomOperations
from interlock.operator.operations.secrets import SecretOperations
from interlock.operator.operations.tokens import TokenOperations
from interlock.operator.operations.tools import ToolOperations


class Operations(msgspec.Struct, frozen=True, kw_only=True):
    agents: AgentOperations
    approvals: ApprovalViews
    approvers: ApproverOperations
    audit: AuditOperations
    calls: CallOperations
    classification: ClassificationOperations
    consents: ConsentOperations
    drivers: DriverOperations
    grants: GrantOperations
    keys: KeyOperations
    links: LinkOperations
    live: LiveOperations
    logins: LoginService
    metrics: Metrics
    names: NameOperations
    node: NodeOperations
    passkeys: PasskeyService
    rooms: RoomOperations
    secrets: SecretOperations
    tokens: TokenOperations
    tools: ToolOperations
    more: tuple[object, ...] = ()  # handlers of operations that capabilities declare
