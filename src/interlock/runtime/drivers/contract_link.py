"""The contracts of one segment, offered as if one server had them all.

To the catalog, the guard and the clients it is a link that is always there. At its other end is no server: a call that
was admitted here chooses its driver and goes over a link lent to it. Input is checked before the gate is asked (guard
rung 7): it depends on no driver, and nobody is asked to agree to what cannot be sent.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from interlock.config.plan import Dial, ServerPlan
from interlock.protocol.drivers import round_state
from interlock.protocol.jsonrpc.codec import decode_value
from interlock.protocol.jsonrpc.errors import INVALID_PARAMS, CodecError, Fault
from interlock.protocol.mcp.eras import LATEST_MODERN, Era
from interlock.runtime.calls import Call
from interlock.runtime.clock import Clock
from interlock.runtime.drivers.context import context_of
from interlock.runtime.drivers.contract_calls import ContractCall
from interlock.runtime.drivers.lent_calls import LentCall
from interlock.runtime.drivers.served import Served
from interlock.runtime.guard import RELISTED, Admitted, Guard
from interlock.runtime.links.link import Link, LinkWatcher, ServerFacts
from interlock.runtime.links.state import LinkState
from interlock.runtime.recorder import Recorder
from interlock.runtime.shelves import Route

_STATE_INVALID: Final = Fault(
    INVALID_PARAMS, "this requestState was not made here, or was changed", {"reason": "state_invalid"}
)
_UNREADABLE: Final = Fault(INVALID_PARAMS, "params.arguments cannot be read")


class ContractLink(Link):
    def __init__(self, segment: str, watcher: LinkWatcher, clock: Clock, guard: Guard, recorder: Recorder) -> None:
        super().__init__(ServerPlan(segment=segment, reach=Dial(url="")), watcher, clock, vendor_meta=False)
        self.kind, self.transport = "contracts", "none"
        self.guard = guard
        self.clock = clock
        self.recorder = recorder
        self.contracts: Mapping[str, Served] = {}  # by their local names
        self.enters = self._entered
        self._work: set[asyncio.Task[None]] = set()
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.stand(LinkState.READY, None)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    def send(self, admitted: Admitted[Call]) -> None:
        call = admitted.command
        self.calls += 1
        if isinstance(call, LentCall):
            call.depart(admitted)
        else:
            super().send(admitted)

    def _entered(self, call: Call, route: Route) -> Call:
        """Guard rung 7. A call that is not as its contract wants it is answered here."""
        served = self.contracts.get(route.original)
        params = call.params
        if served is None:
            return _refused(call, RELISTED)
        try:
            given = decode_value(params["arguments"]) if "arguments" in params else {}
        except CodecError:
            return _refused(call, _UNREADABLE)
        made = ContractCall(
            call.caller,
            call.client_id,
            call.method,
            params,
            call.meta,
            call.sink,
            call.started,
            call.house,
            call.target,
            served.timeout_s,
            call.head,
            call.onward,
            call.price,
            lender=self,
            asked=dict(params),
            served=served,
            given=given,
            approved=route.is_held,
        )
        if "requestState" in params:
            opened = round_state.opened_untrusted(params["requestState"])
            if opened is None:
                return _refused(made, _STATE_INVALID)
            made.pinned, made.state = opened
        fault = served.maybe_fault(given, context_of(call.caller, served.workspace))
        if fault is not None:
            made.fail(fault)
        return made


def _refused(call: Call, fault: Fault) -> Call:
    call.refuse(fault, 200)
    return call
