"""Decides which calls an aggregator holds until a person agrees, and which claims of a server about its tools are
trusted (MCP-AX 11.3).

`hold_of` combines the facts about a tool with the operator's decisions, and returns the decision that a call of the
tool waits for. If the effects of a tool are not declared, its calls wait until a person declares the effects once;
later calls need no separate confirmation for that. An aggregator below holds its calls independently: nothing in this
module can open another node's gate.

`ToolClaims` are the effect, scope and cost that a server declares for a tool; they determine how its calls are held,
listed and charged. The first claim is trusted. A later, looser claim takes effect only after a person has accepted it;
until then the stricter claim applies. A stricter claim takes effect at once.
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
    """The kind of decision by a person that a call waits for: about this call, or about what the tool does."""

    CALL = "call"  # a person confirms this very call
    DEFINITION = "definition"  # a person says once what the tool does


class GateRule(msgspec.Struct, frozen=True, kw_only=True):
    """Rule for holding the calls of one tool, at this node or at an aggregator below. A tool whose calls are never held
    has no GateRule.
    """

    hold: Hold | None
    relays: bool  # a hop below may demand a confirmation, which is relayed to the caller
    shows_holder: bool = False  # clients are shown which hop holds the call
    by_contract: bool = False  # the contract of the tool demands a confirmation


def says_its_effect(declared: object, annotations: object) -> bool:
    """Return whether the server declares the effect of its tool, in the capability annotation or in MCP's hints."""
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
    """Return the kind of decision that calls of a tool must wait for, or None if they need no decision by a person.

    `also` is set if the operator lists the tool as gated, `is_open` if the effects of the tool are not declared, and
    `gated_below` if a trusted aggregator below holds the call. `by_contract` is set if the contract of the tool demands
    a confirmation even in mode "open". In mode "defer", the aggregator below asks instead of this node.
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
    """Return the rule for holding the calls of a tool, or None if they are never held. `relays` says that an aggregator
    below may hold them.
    """
    if hold is None and not relays:
        return None
    return GateRule(hold=hold, relays=relays, shows_holder=shows_holder, by_contract=by_contract)


_COSTS: Final = tuple(CostClass)


class ToolClaims(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Claims of a server about one tool. The defaults apply to a tool without declarations."""

    is_open: bool = True  # the server does not declare whether the tool changes anything
    is_flagged: bool = False  # by x-mcpax-safety
    mutable: bool = True
    reversible: bool = False
    auth_scope: AuthScope = AuthScope.WRITE
    cost_class: CostClass = CostClass.FREE

    @property
    def severity(self) -> int:
        """Return the claimed effect as a number: 0 if the tool changes nothing, 1 if the change can be undone, 2 if it
        cannot.
        """
        if self.is_flagged:
            return 2
        return 0 if not self.mutable else 1 if self.reversible else 2


def read_claims(declared: Any, annotations: object, *, is_flagged: bool) -> ToolClaims:
    """Read what a server claims about its tool. `declared` is the decoded capability annotation, or None; an unreadable
    annotation counts as no claim.
    """
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
    """Read the claims about effect, scope and cost from a tool definition that a person was shown."""
    members = definition if isinstance(definition, Mapping) else {}
    return read_claims(members.get("capability"), members.get("annotations"), is_flagged=False)


def is_looser(now: ToolClaims, accepted: ToolClaims) -> bool:
    return (
        now.severity < accepted.severity
        or now.auth_scope < accepted.auth_scope
        or _COSTS.index(now.cost_class) < _COSTS.index(accepted.cost_class)
    )


def no_looser(declared: Capability, accepted: ToolClaims) -> Capability:
    """Return the stricter combination of a tool's new capability and its accepted claims. The combination applies until
    a person accepts the change.
    """
    mutable = declared.mutable or accepted.mutable
    undone = (declared.reversible or not declared.mutable) and (accepted.reversible or not accepted.mutable)
    return msgspec.structs.replace(
        declared,
        mutable=mutable,
        reversible=undone if mutable else declared.reversible,
        auth_scope=max(declared.auth_scope, accepted.auth_scope),
        cost_class=max(declared.cost_class, accepted.cost_class, key=_COSTS.index),
    )
