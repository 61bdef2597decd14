"""The table of every endpoint for operators, in the order in which paths are matched."""

from interlock.operator import (
    access,
    agents,
    approvals,
    approvers,
    console,
    drivers,
    grants,
    links,
    login,
    names,
    node,
    passkeys,
    rooms,
    secrets,
    tools,
)
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
