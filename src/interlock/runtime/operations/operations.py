"""Every operation of a node in one value, by noun."""

import msgspec

from interlock.runtime.access.logins import LoginService
from interlock.runtime.approvals.views import ApprovalViews
from interlock.runtime.operations.agents import AgentOperations
from interlock.runtime.operations.approvers import ApproverOperations
from interlock.runtime.operations.audit import AuditOperations
from interlock.runtime.operations.calls import CallOperations
from interlock.runtime.operations.classification import ClassificationOperations
from interlock.runtime.operations.consents import ConsentOperations
from interlock.runtime.operations.drivers import DriverOperations
from interlock.runtime.operations.grants import GrantOperations
from interlock.runtime.operations.keys import KeyOperations
from interlock.runtime.operations.links import LinkOperations
from interlock.runtime.operations.live import LiveOperations
from interlock.runtime.operations.names import NameOperations
from interlock.runtime.operations.node import NodeOperations
from interlock.runtime.operations.rooms import RoomOperations
from interlock.runtime.operations.secrets import SecretOperations
from interlock.runtime.operations.tokens import TokenOperations
from interlock.runtime.operations.tools import ToolOperations
from interlock.runtime.trust.passkeys import PasskeyService


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
    names: NameOperations
    node: NodeOperations
    passkeys: PasskeyService
    rooms: RoomOperations
    secrets: SecretOperations
    tokens: TokenOperations
    tools: ToolOperations
