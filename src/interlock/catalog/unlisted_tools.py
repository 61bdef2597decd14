"""Why a tool is not listed: each reason as a `WithheldName`, with the text that `interlock status` shows.

`routes` decides which reason applies. Names that collide have their reasons in `protocol.ax.names`, because they depend
on the whole list and not on one tool.
"""

from typing import Final

from interlock.ax.protocol.capability import AuthScope
from interlock.ax.protocol.names import WithheldName
from interlock.wire.refusal import AUTHORITY_UNVERIFIED, SCOPE_DENIED

HIDDEN: Final = "hidden by [[tool]]"
CHANGED: Final = "definition_changed"  # the code of a tool whose changed definition is not accepted
_PINNED: Final = "its definition changed, and [[tool]] pin withholds it until an operator accepts: interlock approvals"
_DENIED: Final = "an operator denied its definition as it now is"
_UNPROVED: Final = (
    "it changes something, and the authority of this registrant is not proved: "
    "let it send a proof (authority_proof, authority_key), vouch for it with authority in its [[access]] entry,"
    ' or set ax.require_proof = "never"'
)


def hidden(name: str) -> WithheldName:
    return WithheldName(name=name, reason=HIDDEN)


def link_unchecked(name: str) -> WithheldName:
    reason = 'it cannot be undone, and its link has no checksum: write crc = "crc16", or allow_unchecked = true'
    return WithheldName(name=name, reason=reason, code="link_unchecked")


def too_many_hops(name: str, hops: int, hops_max: int) -> WithheldName:
    return WithheldName(name=name, reason=f"it is {hops} hops away; ax.max_hops is {hops_max}", code="hops_exceeded")


def definition_denied(name: str) -> WithheldName:
    return WithheldName(name=name, reason=_DENIED, code=CHANGED)


def definition_pinned(name: str) -> WithheldName:
    return WithheldName(name=name, reason=_PINNED, code=CHANGED)


def capability_invalid(name: str, reason: str) -> WithheldName:
    return WithheldName(name=name, reason=reason, code="capability_invalid")  # AX-9.1-1


def authority_unproved(name: str) -> WithheldName:
    return WithheldName(name=name, reason=_UNPROVED, code=AUTHORITY_UNVERIFIED)  # AX-4.2-7


def out_of_scope(name: str, needed: AuthScope, registered: AuthScope) -> WithheldName:
    reason = f"it needs scope {needed.value}; this server is registered for {registered.value}"
    return WithheldName(name=name, reason=reason, code=SCOPE_DENIED)


def surface_refused(name: str, reason: str, code: str) -> WithheldName:
    """Withhold a tool that the registry of names refuses (REG-8.1-2)."""
    return WithheldName(name=name, reason=reason, code=code)
