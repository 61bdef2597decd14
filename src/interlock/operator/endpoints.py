"""The table of every endpoint for operators, in the order in which paths are matched."""

from interlock.operator import access
from interlock.operator import agents
from interlock.operator import approvals
from interlock.operator import approvers
from interlock.operator import console
from interlock.operator import drivers
from interlock.operator import grants
from interlock.operator import links
from interlock.operator import login
from interlock.operator import names
from interlock.operator import node
from interlock.operator import passkeys
from interlock.operator import rooms
from interlock.operator import secrets
from interlock.operator import tools
from interlock.operator.endpoint import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *node.ENDPOINTS,
    *links.ENDPOINTS,
    *secrets.ENDPOINTS,
    *tools.ENDPOINTS,
    *access.ENDPOINTS,
    *login.ENDPOINTS,
    *drivers.ENDPOINTS,
    *agents.ENDPOINTS,
    *rooms.ENDPOINTS,
    *names.ENDPOINTS,
    *approvals.ENDPOINTS,
    *approvers.ENDPOINTS,
    *grants.ENDPOINTS,
    *passkeys.ENDPOINTS,
    *console.ENDPOINTS,
)
