"""The table of all operations of the operator API, in the order in which paths are matched and documented."""

from typing import Any, Final

from interlock.access import api as access
from interlock.approvals import api as approvals
from interlock.approvals import classification_api as classification
from interlock.approvals import grants_api as grants
from interlock.catalog import api as tools
from interlock.credentials import api as credentials
from interlock.drivers import api as drivers
from interlock.links import api as links
from interlock.names import api as names
from interlock.operator import api as node
from interlock.operator.console import CONSOLE_PAGES
from interlock.operator.operation import Operation
from interlock.rooms import api as rooms
from interlock.safety import api as agents
from interlock.store import api as audit

# The groups of the document, in its order. An operation of a new noun comes after them.
NOUNS: Final = (
    "node",
    "links",
    "secrets",
    "tools",
    "access",
    "login",
    "drivers",
    "agents",
    "rooms",
    "names",
    "approvals",
    "approvers",
    "grants",
    "passkeys",
    "console",
)

_DECLARED: Final[tuple[Operation[Any], ...]] = (
    *node.OPERATIONS,
    *audit.OPERATIONS,
    *links.OPERATIONS,
    *credentials.OPERATIONS,
    *tools.OPERATIONS,
    *classification.OPERATIONS,
    *access.OPERATIONS,
    *drivers.OPERATIONS,
    *agents.OPERATIONS,
    *rooms.OPERATIONS,
    *names.OPERATIONS,
    *approvals.OPERATIONS,
    *grants.OPERATIONS,
    *CONSOLE_PAGES,
    *node.CONSOLE_OPERATIONS,
)


def _order(operation: Operation[Any]) -> int:
    return NOUNS.index(operation.noun) if operation.noun in NOUNS else len(NOUNS)


OPERATIONS: Final[tuple[Operation[Any], ...]] = tuple(sorted(_DECLARED, key=_order))
