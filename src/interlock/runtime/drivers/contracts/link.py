"""The contracts of one segment, offered as if one server had them all.

To the catalog, the guard and the clients it is a link that is always there. At its other end is no server: a call that
was admitted here chooses its driver and goes over a link lent to it. Input is checked before the gate is asked (guard
rung 7): it depends on no driver, and nobody is asked to agree to what cannot be sent.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from interlock.config.plan import Dial, ServerPlan
from interlock.protocol.drivers.binding import request_state as round_state
from interlock.protocol.drivers.binding import resource_refs as refs
from interlock.protocol.drivers.errors import DriverError
from interlock.protocol.jsonrpc.codec import decode_value
from interlock.protocol.jsonrpc.errors import INVALID_PARAMS, CodecError, Fault
from interlock.protocol.mcp import methods
from interlock.protocol.mcp.eras import LATEST_MODERN, Era
from interlock.protocol.mcp.headers import encode_header
from interlock.protocol.mcp.meta import RAW_EMPTY
from interlock.runtime.base.clock import Clock
from interlock.runtime.base.link_state import LinkState, Outlook
from interlock.runtime.base.recorder import Recorder
from interlock.runtime.calls.call import Call
from interlock.runtime.calls.guard import RELISTED, Admitted, Guard
from interlock.runtime.catalog.routes import Route
from interlock.runtime.drivers.contracts.call import ContractCall
from interlock.runtime.drivers.contracts.contract import Served
from interlock.runtime.drivers.contracts.leased_call import LentCall
from interlock.runtime.drivers.contracts.passthrough_call import RawCall
from interlock.runtime.drivers.contracts.unbound_items import Exposed, Shown
from interlock.runtime.drivers.interfaces import Provider
from interlock.runtime.links.handshake import modern_head
from interlock.runtime.links.link import Link, ServerFacts
from interlock.runtime.links.link_events import LinkEvents

_STATE_INVALID: Final = Fault(
    INVALID_PARAMS, "this requestState was not made here, or was changed", {"reason": "state_invalid"}
)
_NO_RESOURCE: Final = Fault(INVALID_PARAMS, "Resource not found", {"reason": "resource_unavailable"})
_UNREADABLE: Final = Fault(INVALID_PARAMS, "params.arguments cannot be read")


class ContractLink(Link):
    def __init__(self, segment: str, events: LinkEvents, clock: Clock, guard: Guard, recorder: Recorder) -> None:
        super().__init__(ServerPlan(segment=segment, reach=Dial(url="")), events, clock, vendor_meta=False)
        self.kind, self.transport = "contracts", "none"
        self.guard = guard
        self.clock = clock
        self.recorder = recorder
        self.contracts: Mapping[str, Served] = {}  # by their local names
        self.shown = Shown()  # what drivers offer here besides
        self.kinds: Mapping[str, refs.Kind] = {}  # of references to resources, of all drivers
        self.providers: Mapping[str, Provider] = {}  # by the drivers' keys
        self.enters = self._entered
        self._work: set[asyncio.Task[None]] = set()
        self.greeted(ServerFacts(era=Era.MODERN, version=LATEST_MODERN))
        self.stand(LinkState.READY, None)

    def offers(self, capability: str, has: bool) -> None:
        """What clients are told of it when they are greeted."""
        assert self.facts is not None  # noqa: S101  (greeted above)
        known = {name: raw for name, raw in self.facts.capabilities.items() if name != capability}
        self.facts = msgspec.structs.replace(self.facts, capabilities=known | ({capability: RAW_EMPTY} if has else {}))

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

    def maybe_outlook(self, tool: str) -> Outlook | None:
        served = self.contracts.get(tool)
        return None if served is None else served.outlook(self.clock)

    def _entered(self, call: Call, route: Route) -> Call:
        """Guard rung 7. A call that is not as its contract wants it is answered here."""
        served = self.contracts.get(route.original)
        if served is None:
            exposed = self.shown.tools.get(route.original)
            if exposed is None:
                return _refused(call, RELISTED)
            raw = self._raw(call, exposed.provider, {"name": route.wire_name})
            raw.approved = route.is_held
            return raw
        params = call.params
        try:
            given = decode_value(params["arguments"]) if "arguments" in params else {}
        except CodecError:
            return _refused(call, _UNREADABLE)
        made = ContractCall(
            *_as_begun(call),
            lender=self,
            asked=dict(params),
            served=served,
            given=given,
            approved=route.is_held,
        )
        made.timeout_s = served.timeout_s
        if "requestState" in params:
            opened = round_state.open_untrusted(params["requestState"])
            if opened is None:
                return _refused(made, _STATE_INVALID)
            made.pinned, made.state = opened
        fault = served.maybe_fault(given, call.caller)
        if fault is not None:
            made.fail(fault)
        return made

    def entered(self, call: Call, what: str) -> Call:
        match call.method:
            case methods.PROMPTS_GET:
                return self._prompt(call, self.shown.prompts.get(what))
            case methods.RESOURCES_READ:
                return self._resource(call, what)
        shown = self.shown.prompts.get(what) or self.shown.templates.get(what) or self.shown.resources.get(what)
        if shown is None:
            return _refused(call, RELISTED)
        member = "name" if what in self.shown.prompts else "uri"
        return self._raw(call, shown.provider, {"ref": {**call.params["ref"], member: shown.theirs}})

    def _prompt(self, call: Call, shown: Exposed | None) -> Call:
        if shown is None:
            return _refused(call, RELISTED)
        made = self._raw(call, shown.provider, {"name": shown.theirs})
        made.head = modern_head(methods.PROMPTS_GET) + b"mcp-name: %b\r\n" % encode_header(shown.theirs)
        return made

    def _resource(self, call: Call, uri: str) -> Call:
        """Of a reference, of a resource that is listed, or of one that a listed template names."""
        sha256 = None
        if uri.startswith(refs.PREFIX):
            ref = refs.parse(uri, self.kinds)
            if isinstance(ref, DriverError):
                return _refused(call, Fault(INVALID_PARAMS, f"{ref.code}: {ref.message}", {"reason": ref.code}))
            provider = self.providers.get(self.kinds[ref.kind].driver)
            uri, sha256 = ref.uri, ref.sha256
        else:
            shown = self.shown.resources.get(uri) or next(
                (one for template, one in self.shown.templates.items() if refs.matches(template, uri)), None
            )
            provider = shown.provider if shown is not None else None
        if provider is None:
            return _refused(call, _NO_RESOURCE)
        made = self._raw(call, provider, {"uri": uri})
        made.uri, made.sha256 = uri, sha256
        made.head = modern_head(methods.RESOURCES_READ) + b"mcp-name: %b\r\n" % encode_header(uri)
        if provider.listing is not None and not provider.listing.resources.digest:
            made.fail(DriverError(code="resource_unavailable", message="the server has no resources"))
        return made

    def _raw(self, call: Call, provider: Provider, says: dict[str, Any]) -> RawCall:
        return RawCall(*_as_begun(call), lender=self, asked=dict(call.params), provider=provider, says=says)


def _as_begun(call: Call) -> tuple[Any, ...]:
    """What has been set of a call that has just begun, in the order of its fields."""
    return (
        call.caller,
        call.client_id,
        call.method,
        call.params,
        call.meta,
        call.sink,
        call.started,
        call.handler,
        call.target,
        call.timeout_s,
        call.head,
        call.onward,
        call.price,
    )


def _refused(call: Call, fault: Fault) -> Call:
    call.refuse(fault, 200)
    return call
