"""Where stored secrets may go, as the person said who stored them: `interlock secrets set NAME --for SEGMENT|HOST`.

Who sets a secret knows its value, and needs no signature to say where it may go. That holds for this value alone: when
the secret is set again, its former destinations are forgotten. So no one can prepare a destination for a value that
another person sets later. What approvers signed is kept apart from this (`guard_changes`), and lasts.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from interlock.config.plan import Plan
from interlock.config.secret_uses import BINDINGS, Destinations, binding_key, secret_uses
from interlock.core.clock import Clock
from interlock.core.feed import Feed
from interlock.store.ports import KeyValue

# A name with a dot or a port is a host, any other a segment: localhost is written with its port.
_HOST: Final = re.compile(r"(?=.*[.:])(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?", re.ASCII)


class SecretBindings:
    """Store of the destinations to which people have allowed the secrets of this node to be sent."""

    def __init__(self, kv: KeyValue, clock: Clock, written: Callable[[], Plan]) -> None:
        """Create the store. `written` returns the configuration as it is in the files."""
        self._kv, self._clock, self._written = kv, clock, written
        # Published when a secret may go somewhere else than before. The configuration is applied again then.
        self.changed = Feed[None]()

    async def bind(self, secret: str, destinations: Iterable[str]) -> None:
        """Store the destinations to which a secret may be sent, in addition to those that approvers signed. Raise
        StoreError if that fails.
        """
        stored = {name: self.find_keys(secret, name) for name in destinations}
        if stored:
            await self._kv.put(BINDINGS, secret, msgspec.json.encode(stored), self._clock.wall())
            self.changed.publish(None)

    async def forget(self, secret: str) -> None:
        """Remove the allowed destinations of a secret. Raise StoreError if that fails."""
        if await self._kv.delete(BINDINGS, secret):
            self.changed.publish(None)

    def find_keys(self, secret: str, destination: str) -> list[str]:
        """Return the keys under which a destination is stored as allowed for a secret: that of a host, or those of the
        secret's uses by a configured segment.
        """
        if _HOST.fullmatch(destination.lower()):
            return [binding_key(secret, destination.lower())]
        return [use.key for use in secret_uses(self._written()) if (use.secret, use.segment) == (secret, destination)]

    async def list_all(self) -> dict[str, tuple[str, ...]]:
        """Return the destinations that people named, by secret."""
        entries = await self._kv.entries(BINDINGS, self._clock.wall())
        return {entry.key: tuple(msgspec.json.decode(entry.value, type=Destinations)) for entry in entries}
