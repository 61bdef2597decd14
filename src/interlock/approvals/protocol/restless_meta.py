"""Keys of a `_meta` that a server writes anew for every list, such as a time or a counter.

A definition with such a key is never the accepted one again, and a person would be asked about each value.
`RestlessMeta` compares what a server offers with what it offered before. When VALUES_MAX offers in a row differ in keys
of `_meta` and in nothing else, these keys are restless. Clients keep the accepted definition, so that no other value of
a restless key is shown to them.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object

VALUES_MAX: Final = 4  # a person who updates a server by hand does not change the same key so often, undecided

_META: Final = "_meta"


class _Offers(msgspec.Struct):
    members: Mapping[str, bytes]
    count: int = 1
    keys: frozenset[str] = frozenset()


class RestlessMeta:
    """Observer of the definitions that a server offers for one kind of item. It finds restless keys: members of `_meta`
    whose values keep changing.
    """

    def __init__(self) -> None:
        self._offers: dict[str, _Offers] = {}

    def take(self, name: str, members: Mapping[str, Raw]) -> bool:
        """Compare an offered definition with the one before. Return True if it has now changed so often in the same
        part that keys of its `_meta` count as restless.
        """
        now = {member: bytes(raw) for member, raw in members.items()}
        was = self._offers.get(name)
        if was is None:
            self._offers[name] = _Offers(now)
            return False
        if was.members == now:
            return False
        keys = differing_keys(was.members, now)
        was.members = now
        if keys is None:
            was.count, was.keys = 1, frozenset()
            return False
        was.count, was.keys = was.count + 1, was.keys | keys
        return was.count == VALUES_MAX

    def forget(self, name: str) -> None:
        """Forget the earlier definitions of an item, because the present one is accepted."""
        self._offers.pop(name, None)

    def keys(self, name: str) -> frozenset[str]:
        """Return the restless keys of the definition with this name. The result is empty if it has none."""
        offers = self._offers.get(name)
        return offers.keys if offers is not None and offers.count >= VALUES_MAX else frozenset()


def differing_keys(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> frozenset[str] | None:
    """Return the keys of `_meta` in which two definitions differ. Return None if they differ in anything else, or if a
    `_meta` is no object.
    """
    if any(before.get(member) != after.get(member) for member in before.keys() | after.keys() if member != _META):
        return None
    former, present = decode_object(before.get(_META, b"{}")), decode_object(after.get(_META, b"{}"))
    if former is None or present is None:
        return None
    return frozenset(key for key in former.keys() | present.keys() if former.get(key) != present.get(key))
