"""The table of all operations of the operator API, in the order in which paths are matched and documented."""

from typing import Any, Final

from interlock.core.capability import load_reference
from interlock.node.capabilities import capabilities
from interlock.operator.operation import Operation

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

_DECLARED: Final[tuple[Operation[Any], ...]] = tuple(
    operation
    for capability in capabilities()
    for reference in capability.operations
    for operation in load_reference(reference)
)


def _order(operation: Operation[Any]) -> int:
    return NOUNS.index(operation.noun) if operation.noun in NOUNS else len(NOUNS)


OPERATIONS: Final[tuple[Operation[Any], ...]] = tuple(sorted(_DECLARED, key=_order))
