"""The link of a leaf to whichever parent it has. While registered, a Desk serves the parent's requests."""

import logging
from collections.abc import Callable, Sequence

from interlock.protocol.ax.messages import Register
from interlock.protocol.ax.registrant import Joined
from interlock.subserver.desk import Desk, Offer
from interlock.transport import uplink
from interlock.transport.uplink import Opener

log = logging.getLogger("interlock.subserver")


class Uplink(uplink.Uplink):
    def __init__(
        self,
        register: Register,
        parents: Sequence[tuple[str, Opener]],
        offer: Offer,
        *,
        once: bool = False,
        on_joined: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(register, parents, log, once=once)
        self._offer = offer
        self._on_joined = on_joined

    @property
    def desk(self) -> Desk | None:
        """While registered."""
        return self._tenant if isinstance(self._tenant, Desk) else None

    def _begin(self, step: Joined, send: Callable[[bytes], bool]) -> Desk:
        if self._on_joined is not None:
            self._on_joined()
        return Desk(self._offer, send, step.registered.assigned_segment)
