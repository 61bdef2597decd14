"""Which calls an aggregator holds until a person agrees (MCP-AX 11.3).

In comes what is known of a tool and what the operator decided; out comes what a call of it has to wait for. A tool
whose effects are not declared waits until a person declares them once; after that not every call is confirmed. What a
hop below holds is held there whatever is decided here: nothing in this module can open a gate.
"""

import enum
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Mode = Literal["gated", "defer", "open"]
Unannotated = Literal["classify", "allow"]

_EFFECT_HINTS: Final = ("readOnlyHint", "destructiveHint")
_EFFECT_KEYS: Final = ("mutable", "reversible")


class Hold(enum.Enum):
    CALL = "call"  # a person confirms this very call
    DEFINITION = "definition"  # a person says once what the tool does


class GateRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of a tool may meet besides its server. A tool that has none of it has no GateRule."""

    hold: Hold | None
    relays: bool  # a hop below may answer confirmation_required, which is carried up
    shows_holder: bool = False  # clients are shown what only who decides at that hop needs
    by_contract: bool = False  # the contract of the tool asks for it


def says_its_effect(declared: object, annotations: object) -> bool:
    """Whether the server itself said if the tool changes anything, in its capability annotation or in MCP's hints."""
    if isinstance(declared, Mapping) and not declared.keys().isdisjoint(_EFFECT_KEYS):
        return True
    given = annotations if isinstance(annotations, Mapping) else {}
    return any(isinstance(given.get(hint), bool) for hint in _EFFECT_HINTS)


def hold_of(
    *,
    mode: Mode,
    unannotated: Unannotated,
    also: bool,
    irreversible: bool,
    is_open: bool,
    gated_below: bool,
    asked: bool = False,
) -> Hold | None:
    """What a call waits for, or None. `is_open`: the tool's effects are not declared. `gated_below`: a hop below that
    is believed holds it. `asked`: its contract asks for a confirmation, which no mode lifts (AIP-14.rules-1)."""
    if mode == "defer" and gated_below:
        return None
    if also:  # AX-11.3-1, AX-11.3-18
        return Hold.CALL
    if asked:  # AIP-14.rules-1
        return Hold.CALL
    if mode == "open":  # AX-11.3-1
        return None
    if is_open:
        return Hold.DEFINITION if unannotated == "classify" else None
    return Hold.CALL if irreversible else None  # AX-11.3-1


def gate_of(
    hold: Hold | None, *, relays: bool, shows_holder: bool = False, by_contract: bool = False
) -> GateRule | None:
    if hold is None and not relays:
        return None
    return GateRule(hold=hold, relays=relays, shows_holder=shows_holder, by_contract=by_contract)
