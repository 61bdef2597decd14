"""Which calls an aggregator holds until a person agrees, and what a server's claims about its tools count (MCP-AX
11.3).

`hold_of` takes what is known of a tool and what the operator decided, and returns what a call of the tool waits for. A
tool whose effects are not declared waits until a person declares them once; after that not every call is confirmed. A
hop below holds its calls whatever is decided here: nothing in this module can open a gate.

`ToolClaims` are what a server declares about a tool and calls are held, listed and counted by. The first claim is
trusted. A later claim that is looser counts only once a person accepted it; until then the stricter of the two counts.
A claim that is stricter counts at once.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, read_capability

Mode = Literal["gated", "defer", "open"]
Unannotated = Literal["classify", "allow"]

_EFFECT_HINTS: Final = ("readOnlyHint", "destructiveHint")
_EFFECT_KEYS: Final = ("mutable", "reversible")


class Hold(enum.Enum):
    """The decision that a call waits for."""

    CALL = "call"  # a person confirms this very call
    DEFINITION = "definition"  # a person says once what the tool does


class GateRule(msgspec.Struct, frozen=True, kw_only=True):
    """The holds that calls of a tool may meet on the way to its server. A tool without any has no GateRule."""

    hold: Hold | None
    relays: bool  # a hop below may demand a confirmation, which is relayed to the caller
    shows_holder: bool = False  # clients are shown which hop holds the call
    by_contract: bool = False  # the contract of the tool demands a confirmation


def says_its_effect(declared: object, annotations: object) -> bool:
    """Return whether a server declares if its tool changes anything, in its capability annotation or in MCP's hints."""
    if isinstance(declared, Mapping) and not declared.keys().isdisjoint(_EFFECT_KEYS):
        return True
    hints = annotations if isinstance(annotations, Mapping) else {}
    return any(isinstance(hints.get(hint), bool) for hint in _EFFECT_HINTS)


def hold_of(
    *,
    mode: Mode,
    unannotated: Unannotated,
    also: bool,
    irreversible: bool,
    is_open: bool,
    gated_below: bool,
    by_contract: bool = False,
) -> Hold | None:
    """Return what a call waits for, or None.

    `also`: the operator lists the tool. `is_open`: the effects of the tool are not declared. `gated_below`: a trusted
    hop below holds the call. `by_contract`: the contract of the tool demands a confirmation, in every mode.
    """
    if mode == "defer" and gated_below:
        return None
    if also:  # AX-11.3-1, AX-11.3-18
        return Hold.CALL
    if by_contract:  # AIP-14.rules-1
        return Hold.CALL
    if mode == "open":  # AX-11.3-1
        return None
    if is_open:
        return Hold.DEFINITION if unannotated == "classify" else None
    return Hold.CALL if irreversible else None  # AX-11.3-1


def gate_of(
    hold: Hold | None, *, relays: bool, shows_holder: bool = False, by_contract: bool = False
) -> GateRule | None:
    """Return the rule of a tool, or None if nothing holds its calls."""
    if hold is None and not relays:
        return None
    return GateRule(hold=hold, relays=relays, shows_holder=shows_holder, by_contract=by_contract)


_COSTS: Final = tuple(CostClass)


class ToolClaims(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Claims of a server about one tool. The defaults are those of a tool about which nothing is declared."""

    is_open: bool = True  # the server does not declare whether the tool changes anything
    is_flagged: bool = False  # by x-mcpax-safety
    mutable: bool = True
    reversible: bool = False
    auth_scope: AuthScope = AuthScope.WRITE
    cost_class: CostClass = CostClass.FREE

    @property
    def severity(self) -> int:
        """The effect as a number: 0 changes nothing, 1 can be undone, 2 cannot be undone."""
        if self.is_flagged:
            return 2
        return 0 if not self.mutable else 1 if self.reversible else 2


def read_claims(declared: Any, annotations: object, *, is_flagged: bool) -> ToolClaims:
    """Read the claims. `declared` is the decoded capability annotation, or None. An unreadable one claims nothing."""
    capability = read_capability(msgspec.UNSET if declared is None else declared, annotations=annotations)
    if not isinstance(capability, Capability):
        return ToolClaims(is_flagged=is_flagged)
    return ToolClaims(
        is_open=not is_flagged and not says_its_effect(declared, annotations),
        is_flagged=is_flagged,
        mutable=capability.mutable,
        reversible=capability.reversible,
        auth_scope=capability.auth_scope,
        cost_class=capability.cost_class,
    )


def claims_shown(definition: object) -> ToolClaims:
    """Return the claims of a definition as it was shown to a person."""
    members = definition if isinstance(definition, Mapping) else {}
    return read_claims(members.get("capability"), members.get("annotations"), is_flagged=False)


def is_looser(now: ToolClaims, accepted: ToolClaims) -> bool:
    return (
        now.severity < accepted.severity
        or now.auth_scope < accepted.auth_scope
        or _COSTS.index(now.cost_class) < _COSTS.index(accepted.cost_class)
    )


def no_looser(declared: Capability, accepted: ToolClaims) -> Capability:
    """Return the capability of a changed tool that no person has accepted yet: the stricter of old and new."""
    mutable = declared.mutable or accepted.mutable
    undone = (declared.reversible or not declared.mutable) and (accepted.reversible or not accepted.mutable)
    return msgspec.structs.replace(
        declared,
        mutable=mutable,
        reversible=undone if mutable else declared.reversible,
        auth_scope=max(declared.auth_scope, accepted.auth_scope),
        cost_class=max(declared.cost_class, accepted.cost_class, key=_COSTS.index),
    )
