"""The end of a node's traffic: no new calls, calls under way are answered, streams end in order.

The last part of a node, and so the first that is closed: everything a call needs is still open.
"""

import asyncio
from typing import Final

from interlock.approvals.inbox import Inbox
from interlock.ax.endpoint.endpoint import AxEndpoint
from interlock.ax.parents.service import ParentService
from interlock.ax.registrar import Registrar
from interlock.dispatch.dispatch import Dispatch
from interlock.fronts.public import PublicEndpoint
from interlock.node.endpoints import DRAIN_S, Endpoints
from interlock.rooms.rooms import Rooms
from interlock.wire.jsonrpc.errors import UNAVAILABLE, Fault

DRAIN_TICK_S: Final = 0.02


class Shutdown:
    def __init__(
        self,
        *,
        endpoints: Endpoints | None,
        public: PublicEndpoint,
        subservers: AxEndpoint | None,
        inbox: Inbox,
        dispatch: Dispatch,
        parents: ParentService,
        registrar: Registrar,
        rooms: Rooms,
    ) -> None:
        self._endpoints = endpoints
        self._public = public
        self._subservers = subservers
        self._inbox = inbox
        self._dispatch = dispatch
        self._parents = parents
        self._registrar = registrar
        self._rooms = rooms

    async def open(self) -> None:
        """There is nothing to begin."""

    async def close(self) -> None:
        if self._endpoints is not None:
            self._endpoints.refuse_new()
        if self._subservers is not None:
            self._subservers.stop()
        self._public.end_streams()
        self._inbox.end_listening()
        self._parents.stop_calls()
        await self.drain()
        self._public.end_sse()
        await self._parents.close()
        self._registrar.hang_up()
        self._rooms.hang_up()
        if self._endpoints is not None:
            await self._endpoints.end()

    async def drain(self) -> None:
        """Until every call under way is answered, within a bound. A call that waits for a person is not waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_S
        self._dispatch.let_go(Fault(UNAVAILABLE, "unavailable", {"reason": "node_stopping"}))
        while any(not call.asking for call in self._dispatch.in_flight):
            if loop.time() > deadline:
                return
            await asyncio.sleep(DRAIN_TICK_S)
