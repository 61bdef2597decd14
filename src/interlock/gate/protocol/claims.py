"""What a server claims of a tool that its calls are held, listed and counted by, and what a changed claim is good for.

The first claim is taken on trust. One that is looser than what was accepted before counts only once a person accepted
it; until then the stricter of the two holds. A claim that is stricter counts at once.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.ax.protocol.capability import AuthScope, Capability, CostClass, read_capability
from interlock.gate.protocol.policy import says_its_effect

_COSTS: Final = tuple(CostClass)


class Claims(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The defaults are those of a tool about which nothing is known."""

    is_open: bool = True  # it does not say whether it changes anything
    is_flagged: bool = False  # by x-mcpax-safety
    mutable: bool = True
    reversible: bool = False
    auth_scope: AuthScope = AuthScope.WRITE
    cost_class: CostClass = CostClass.FREE

    @property
    def severity(self) -> int:
        """0: it changes nothing; 1: what it changes can be undone; 2: it cannot."""
        if self.is_flagged:
            return 2
        return 0 if not self.mutable else 1 if self.reversible else 2


def read_claims(declared: Any, annotations: object, *, is_flagged: bool) -> Claims:
    """`declared`: the capability annotation, decoded; None where there is none. What cannot be read claims nothing."""
    said = read_capability(msgspec.UNSET if declared is None else declared, annotations=annotations)
    if not isinstance(said, Capability):
        return Claims(is_flagged=is_flagged)
    return Claims(
        is_open=not is_flagged and not says_its_effect(declared, annotations),
        is_flagged=is_flagged,
        mutable=said.mutable,
        reversible=said.reversible,
        auth_scope=said.auth_scope,
        cost_class=said.cost_class,
    )


def claims_shown(definition: object) -> Claims:
    """The claims of a definition as a person was shown it."""
    members = definition if isinstance(definition, Mapping) else {}
    return read_claims(members.get("capability"), members.get("annotations"), is_flagged=False)


def is_looser(now: Claims, accepted: Claims) -> bool:
    return (
        now.severity < accepted.severity
        or now.auth_scope < accepted.auth_scope
        or _COSTS.index(now.cost_class) < _COSTS.index(accepted.cost_class)
    )


def no_looser(said: Capability, accepted: Claims) -> Capability:
    """What holds of a changed tool that no person has accepted yet."""
    mutable = said.mutable or accepted.mutable
    undone = (said.reversible or not said.mutable) and (accepted.reversible or not accepted.mutable)
    return msgspec.structs.replace(
        said,
        mutable=mutable,
        reversible=undone if mutable else said.reversible,
        auth_scope=max(said.auth_scope, accepted.auth_scope),
        cost_class=max(said.cost_class, accepted.cost_class, key=_COSTS.index),
    )
