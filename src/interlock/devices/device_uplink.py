"""The registration of one device at a parent of this node, and what serves the parent there."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

import msgspec

from interlock.ax.parents.parents import Fronts, UpwardFront, parent_openers, worded_for
from interlock.ax.parents.service import DEVICE_MARK, PARENT
from interlock.ax.protocol.messages import VERSION, Register
from interlock.ax.protocol.registration.registrant import JoinedParent
from interlock.ax.uplink import Uplink
from interlock.config.plan import Plan
from interlock.core.calls.caller import principal_for
from interlock.core.clock import Clock
from interlock.links.link import Link

if TYPE_CHECKING:
    from interlock.crypto.signing import SigningKey

log = logging.getLogger("interlock.devices")


class DeviceUplink(Uplink):
    """The registration of one device with the parents of this node, so that a parent sees the device as a separate
    subserver.
    """

    def __init__(
        self, plan: Plan, link: Link, own_id: str, fronts: Fronts, clock: Clock, signer: "SigningKey | None"
    ) -> None:
        """Create the uplink of a device. Raise TlsInvalid if the TLS settings of a parent cannot be used."""
        self._plan = plan
        self._segment = link.segment
        self._fronts = fronts
        self._clock = clock
        self._signer = signer
        register = Register(
            subserver_id=str(uuid5(NAMESPACE_URL, f"{own_id}/{link.segment}")),
            segment=link.segment,
            tools=True,
            notifications=True,
            heartbeat_interval_ms=max(link.retry_after_ms, plan.ax.heartbeat_min_ms),
            transport_class=link.offer.transport,
            version=VERSION,
        )
        super().__init__(register, parent_openers(plan), log)

    def _register_message(self, parent: int, register: Register) -> Register:
        plan = self._plan.ax.parents[parent]
        return worded_for(register, plan, self._segment, self._signer, self._clock.wall())

    def _begin(self, step: JoinedParent, send: Callable[[bytes], bool]) -> UpwardFront:
        granted_scope = step.registered.auth_scope
        name = f"{PARENT}{self._plan.ax.parents[step.parent].url}"
        parent = principal_for(name, granted_scope.value if granted_scope is not None else None, self._plan.access)
        principal = msgspec.structs.replace(parent, name=f"{name}{DEVICE_MARK}{self._segment}")
        return UpwardFront(*self._fronts, principal, step.registered.assigned_segment, send, self._segment)
