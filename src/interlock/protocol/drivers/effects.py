"""What a tool's MCP annotations say of its effects, in the fields of a contract (AIP-author-5).

Annotations are a server's word: they are read in the cautious direction, and only where they are real booleans.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

GATE: Final = "policy:gate"  # the class and gate.mode decide
UNANNOTATED: Final = "policy:unannotated"  # nobody has said what it does: a person says it once

ANNOTATION_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    mutates: tuple[str, ...] = ()
    approval: str = "auto"
    risk_level: int = 0
    idempotent: bool = False


def effects_of(annotations: object, driver_id: str) -> Effects:
    """`annotations` as decoded from tools/list; whatever is no object says nothing."""
    given = annotations if isinstance(annotations, Mapping) else {}
    read_only, destructive, idempotent, open_world = (
        each if isinstance(each, bool) else None for each in map(given.get, ANNOTATION_HINTS)
    )
    mutates = (f"external:{driver_id}",)
    if read_only is None and destructive is None:
        return Effects(mutates=mutates, approval=UNANNOTATED, risk_level=2)
    if read_only and destructive is not True:
        return Effects(idempotent=idempotent is True)
    risk = (1 if open_world is False else 2) if destructive is False else 3
    return Effects(mutates=mutates, approval=GATE, risk_level=risk, idempotent=idempotent is True)
