"""The uplink of a leaf to its current parent. While registered, a McpServer serves the parent's requests."""

import logging
from collections.abc import Callable, Sequence

import msgspec

from interlock.ax import uplink
from interlock.ax.protocol.messages import Proof, Register
from interlock.ax.protocol.registration.registrant import Joined
from interlock.ax.uplink import Opener
from interlock.sdk.subserver.mcp_server import McpServer, ToolOffer

log = logging.getLogger("interlock.subserver")


class LeafUplink(uplink.Uplink):
    """The uplink of a leaf. It proves the authority again at each registration, because a proof is for one parent."""

    def __init__(
        self,
        register: Register,
        parents: Sequence[tuple[str, Opener]],
        offer: ToolOffer,
        *,
        once: bool = False,
        on_joined: Callable[[], None] | None = None,
        prove: Callable[[int], Proof | None] | None = None,
    ) -> None:
        """Create the uplink. `prove` returns the proof of authority for a registration with a parent."""
        super().__init__(register, parents, log, once=once)
        self._offer = offer
        self._on_joined = on_joined
        self._prove = prove

    @property
    def server(self) -> McpServer | None:
        """Return the server while registered, otherwise None."""
        return self._tenant if isinstance(self._tenant, McpServer) else None

    def _register_message(self, parent: int, register: Register) -> Register:
        if self._prove is None:
            return register
        return msgspec.structs.replace(register, authority_proof=self._prove(parent))

    def _begin(self, step: Joined, send: Callable[[bytes], bool]) -> McpServer:
        if self._on_joined is not None:
            self._on_joined()
        return McpServer(self._offer, send, step.registered.assigned_segment)
