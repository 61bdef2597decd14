"""Advice on names that are not registered beside names that are: all surfaces of a vendor under one prefix (REG-4.2-5).

Whose a server is, no list says; it is taken for that of the one controller under whose prefixes it offers names.
Nothing is refused for it.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from interlock.names.protocol.grammar import covers, is_name
from interlock.names.protocol.model import NONE, Lookup

UNREGISTERED_SIBLING: Final = "unregistered_sibling"
PREFIX_ADVICE: Final = "prefix_advice"


class SiblingAdvice(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    reason: str


def sibling_advice(names: Collection[str], lookup: Lookup) -> Mapping[str, SiblingAdvice]:
    """By those of one server's names that it is about."""
    known = {name: entry for name in names if (entry := lookup.entry(name)) is not None}
    vendors = {entry.vendor_prefix: entry for entry in known.values() if entry.vendor_prefix != NONE}
    controllers = {entry.change_controller for entry in vendors.values()}
    if len(controllers) != 1:
        return {}
    (controller,) = controllers
    prefixes = " and ".join(sorted(vendors))
    found: dict[str, SiblingAdvice] = {}
    for name in names:
        if name in known or not is_name(name):
            continue
        if any(covers(prefix, name) for prefix in vendors):
            reason = f"{controller} registers names under {prefixes}, and this one is not registered"
            found[name] = SiblingAdvice(code=UNREGISTERED_SIBLING, reason=reason)
        else:
            reason = f"names that {controller} registered stand beside it, under {prefixes}; this one does not"
            found[name] = SiblingAdvice(code=PREFIX_ADVICE, reason=reason)
    return found
