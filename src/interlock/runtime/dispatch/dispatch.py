"""From a client's request to a server: find the way, pass the guard, send, and see to the end of the call.

One function per routed method; all of them end in `go`, the only caller of the guard. A call that needs no waiting
goes from the front to the link without a task, a future or a timer of its own.
"""

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.protocol.ax.capability import TIMEOUT_S, LatencyClass
from interlock.protocol.ax.latency import with_latency
from interlock.protocol.ax.messages import CONFIRM
from interlock.protocol.jsonrpc.codec import decode_object, decode_value, encode_fault, encode_value, maybe_string
from interlock.protocol.jsonrpc.errors import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    TOOL_DEGRADED,
    URL_ELICITATION_REQUIRED,
    CodecError,
    Fault,
)
from interlock.protocol.jsonrpc.messages import Request
from interlock.protocol.mcp.capabilities import declares
from interlock.protocol.mcp.eras import LEGACY, MODERN, Era
from interlock.protocol.mcp.headers import encode_header, mirror_headers, mirror_mismatch
from interlock.protocol.mcp.ladder import HTTP_STATUS
from interlock.protocol.mcp.methods import (
    COMPLETE,
    LOG_RANK,
    META_LOG_LEVEL,
    NAMED_BY,
    PROMPTS_GET,
    RESOURCES_READ,
    TOOLS_CALL,
)
from interlock.protocol.mcp.mrtr import RESUMABLE, read_input_required
from interlock.protocol.mcp.tasks import tool_across_eras
from interlock.runtime.base.clock import Clock
from interlock.runtime.base.recorder import Recorder
from interlock.runtime.calls.budgets import READING, Budgets
from interlock.runtime.calls.call import OK, REFUSED, Call, CallLink, Outcome, Timing
from interlock.runtime.calls.caller import Asked, Caller, Sink, ViewKey
from interlock.runtime.calls.guard import BUSY, HELD, NOT_FOUND, RELISTED, Admitted, Guard, Refuse, Rung
from interlock.runtime.calls.incoming_route import OUT_OF_SCOPE, Hop
from interlock.runtime.calls.legacy_questions import Interview
from interlock.runtime.calls.parking import Parking
from interlock.runtime.catalog.catalog import Catalog, View
from interlock.runtime.catalog.routes import Route
from interlock.runtime.credentials.consents import Consent
from interlock.runtime.credentials.errors import Unobtainable
from interlock.runtime.dispatch.task_table import Tasks
from interlock.runtime.dispatch.timeouts import SWEEP_S, next_sweep_s, timed_out
from interlock.runtime.gate.confirm import Confirmations
from interlock.runtime.gate.gate import Gate
from interlock.runtime.gate.responses import Back
from interlock.runtime.links.handshake import modern_head
from interlock.runtime.links.keeper import Heard, Keeper
from interlock.runtime.links.link import Crowded, Link, Personal
from interlock.runtime.links.unauthorized_retry import unauthorised
from interlock.store.ports import StoreError

log = logging.getLogger("interlock.dispatch")

RESPAWN_WAIT_S: Final = 5.0  # how long a call waits for a server that is being started again
STANDARD_S: Final = TIMEOUT_S[LatencyClass.STANDARD]
REF_PREFIX: Final = "mcp_"  # of every kind of reference to a driver's resource (AIP-resources-2)


class Dispatch:
    def __init__(
        self,
        catalog: Catalog,
        keepers: Mapping[str, Keeper],
        recorder: Recorder,
        clock: Clock,
        calls_max: int,
        *,
        latency_meta: bool = False,
    ) -> None:
        self.timing: Timing | None = self._with_latency if latency_meta else None
        self._catalog = catalog
        self._keepers = keepers
        self._recorder = recorder
        self._clock = clock
        self._calls_max = calls_max
        self.guard = Guard()
        self.gate: Gate | None = None  # without one, what it would hold is refused
        self.confirmations: Confirmations | None = None
        self.parking = Parking(clock)
        self.tasks = Tasks(clock)
        self._sweeping = False
        self._holds: set[asyncio.Task[None]] = set()
        self.in_flight: set[Call] = set()
        self.total = 0
        self.failed = 0

    def enforce(self, budgets: Budgets) -> None:
        """From now on: what was declared under one holds, also when nothing is limited any more."""
        self.guard.budgets = budgets

    def view(self, key: ViewKey) -> View:
        return self._catalog.namespace.view(key)

    # One function per routed method

    def call_tool(
        self,
        caller: Caller,
        client_id: bytes,
        params: dict[str, Any],
        meta: dict[str, Raw],
        sink: Sink,
        headers: Mapping[bytes, bytes] | None = None,
        *,
        as_task: bool = False,
    ) -> Call:
        """`as_task`: a legacy client asks for a task."""
        back: Back | None = None
        if "requestState" in params:
            came = self._came_back(caller, client_id, params, meta, sink)
            if isinstance(came, Call):
                return came
            back = came
        name = params.get("name")
        namespace = self._catalog.namespace
        if caller.seen is not namespace:
            caller.seen, caller.view = namespace, namespace.view(caller.key)
        view: View = caller.view
        route = view.tools.get(bytes(name)) if name is not None else None
        if route is None:
            text = maybe_string(name)
            route = view.find_tool(text) if text is not None else None
            if route is None:
                return self._refuse_unknown_tool(self._new(caller, client_id, TOOLS_CALL, params, meta, sink), text)
        arguments = params.get("arguments")
        if arguments is not None and bytes(arguments)[:1] != b"{":
            call = self._new(caller, client_id, TOOLS_CALL, params, meta, sink, route.qualified)
            return self._invalid(call, "params.arguments must be an object")
        head, onward = route.head, route.onward
        if caller.hop is not None:
            found = self._onward(caller.hop, params, meta, (*route.below, route.local), onward)
            if isinstance(found, Fault):
                return self.refuse(self._new(caller, client_id, TOOLS_CALL, params, meta, sink, route.qualified), found)
            onward = found
        if route.mirrored:
            mirrored = self._mirrored(route, arguments, headers)
            if isinstance(mirrored, Fault):
                call = self._new(caller, client_id, TOOLS_CALL, params, meta, sink, route.qualified)
                return self.refuse(call, mirrored)
            head = mirrored
        link = route.link
        call = (link.task_call_type if as_task else link.call_type)(
            caller,
            client_id,
            TOOLS_CALL,
            params,
            meta,
            sink,
            self._clock.now(),
            self,
            route.qualified,
            route.timeout_s,
            head,
            onward,
            route.price,
            route,
        )
        if not link.modern:
            fault = self._across(call, link, route)
            if fault is not None:
                return self.refuse(call, fault)
        elif link.checks_input:
            link.check_input(call)
            if call.done:
                return call
        if route.gate is not None:
            fault = HELD.fault if self.gate is None else self.gate.enter(call, route, back)
            if fault is not None:
                return self.refuse(call, fault)
        params["name"] = route.wire_name
        return self.go(call, link)

    def _refuse_unknown_tool(self, call: Call, name: str | None) -> Call:
        if name is None:
            return self._invalid(call, "params.name must be a string")
        call.target = name[:255]
        return self.refuse(call, NOT_FOUND if call.caller.hop is None else self._unlisted(call.caller, name))

    def get_prompt(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call:
        resumed = self._resumed(caller, client_id, PROMPTS_GET, params, meta, sink)
        if resumed is not None:
            return resumed
        name = maybe_string(params.get("name"))
        route = self.view(caller.key).find_prompt(name) if name is not None else None
        if route is None:
            call = self._new(caller, client_id, PROMPTS_GET, params, meta, sink, (name or "")[:255])
            if name is None:
                return self._invalid(call, "params.name must be a string")
            return self._invalid(call, "unknown prompt", {"reason": "prompt_not_found"})
        onward = self._onward(caller.hop, params, meta, (*route.below, route.local), route.onward)
        if isinstance(onward, Fault):
            return self.refuse(self._new(caller, client_id, PROMPTS_GET, params, meta, sink, route.qualified), onward)
        common = caller, client_id, PROMPTS_GET, params, meta, sink, self._clock.now(), self, route.qualified
        link = route.link
        call = link.new_request(route.original, *common, route.timeout_s, route.head, onward, READING)
        return self._request(call, link, "name", route.wire_name)

    def read_resource(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call:
        resumed = self._resumed(caller, client_id, RESOURCES_READ, params, meta, sink)
        if resumed is not None:
            return resumed
        uri = maybe_string(params.get("uri"))
        if uri is None:
            call = self._new(caller, client_id, RESOURCES_READ, params, meta, sink)
            return self._invalid(call, "params.uri must be a string")
        target = uri[:255]
        found = self.view(caller.key).find_resource(uri)
        if isinstance(found, list):
            call = self._new(caller, client_id, RESOURCES_READ, params, meta, sink, target)
            return self.refuse(call, resource_not_found(uri, found, caller.era))
        link, downstream = found
        onward = self._onward_to_place(caller.hop, params, meta, link, downstream)
        if isinstance(onward, Fault):
            return self.refuse(self._new(caller, client_id, RESOURCES_READ, params, meta, sink, target), onward)
        head = modern_head(RESOURCES_READ) + b"mcp-name: %b\r\n" % encode_header(downstream)
        common = caller, client_id, RESOURCES_READ, params, meta, sink, self._clock.now(), self, target
        call = link.new_request(downstream, *common, STANDARD_S, head, onward, READING)
        return self._request(call, link, "uri", Raw(encode_value(downstream)))

    def complete(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call:
        ref: dict[str, Any] | None = decode_object(params["ref"]) if "ref" in params else None
        kind = maybe_string((ref or {}).get("type"))
        link: Link | None = None
        what = target = ""
        onward: dict[str, Raw] | Fault | None = None
        if ref is not None and kind == "ref/prompt":
            name = maybe_string(ref.get("name")) or ""
            target = name[:255]
            route = self.view(caller.key).find_prompt(name)
            if route is not None:
                link, ref["name"], what = route.link, route.wire_name, route.original
                onward = self._onward(caller.hop, params, meta, (*route.below, route.local), route.onward)
        elif ref is not None and kind == "ref/resource":
            uri = maybe_string(ref.get("uri")) or ""
            target = uri[:255]
            place = self.view(caller.key).find_template(uri)
            if place is not None:
                link, ref["uri"] = place
                what = place[1]
                onward = self._onward_to_place(caller.hop, params, meta, *place)
        else:
            call = self._new(caller, client_id, COMPLETE, params, meta, sink)
            return self._invalid(call, "params.ref must be a ref/prompt or a ref/resource")
        if link is None or isinstance(onward, Fault):
            call = self._new(caller, client_id, COMPLETE, params, meta, sink, target)
            if isinstance(onward, Fault):
                return self.refuse(call, onward)
            return self._invalid(call, "params.ref names nothing here", {"reason": "reference_not_found"})
        params["ref"] = ref
        common = caller, client_id, COMPLETE, params, meta, sink, self._clock.now(), self, target
        call = link.new_request(what, *common, STANDARD_S, modern_head(COMPLETE), onward, READING)
        return call if call.done else self.go(call, link)

    def _request(self, call: Call, link: Link, member: str, wire_name: Raw) -> Call:
        """`member`: of its params, which its server calls `wire_name`."""
        if call.done:
            return call
        fault = self._across(call, link)
        if fault is not None:
            return self.refuse(call, fault)
        call.params[member] = wire_name
        return self.go(call, link)

    def confirm(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call:
        """mcpax/confirm, from anybody."""
        if self.confirmations is None:
            return self.refuse(self._new(caller, client_id, CONFIRM, params, meta, sink), HELD.fault)
        return self.confirmations.confirm(caller, client_id, params, meta, sink)

    # What comes from a parent, and goes to AX peers (MCP-AX 7.2)

    def _onward(
        self,
        hop: Hop | None,
        params: dict[str, Any],
        meta: dict[str, Raw],
        rest: tuple[str, ...],
        own: dict[str, Raw] | None,
    ) -> dict[str, Raw] | Fault | None:
        """What an AX peer below reads of the route: `own`, or a parent's, one further. A parent's request that is not
        where its route says is refused."""
        if hop is None:
            return own
        onward = hop.onward(params, meta, rest)
        return onward if isinstance(onward, Fault) or (onward is not None and own is not None) else own

    def _onward_to_place(
        self, hop: Hop | None, params: dict[str, Any], meta: dict[str, Raw], link: Link, uri: str
    ) -> dict[str, Raw] | Fault | None:
        """The same for a resource, whose path ends in the segment of the server that has it."""
        namespace = self._catalog.namespace
        own = namespace.onward(link, uri) if link.offer.kind != "adopted" else None
        return own if hop is None else self._onward(hop, params, meta, namespace.way(link, uri), own)

    def _unlisted(self, caller: Caller, name: str) -> Fault:
        """A parent is told apart what is not there and what its scope, or our child's, does not reach (10.2)."""
        namespace = self._catalog.namespace
        beyond = any(name in shelf.out_of_scope for shelf in namespace.shelves)
        wider = msgspec.structs.replace(caller.key, scope="admin")
        return OUT_OF_SCOPE if beyond or namespace.view(wider).find_tool(name) is not None else NOT_FOUND

    # The common way

    def _new(
        self,
        caller: Caller,
        client_id: bytes,
        method: str,
        params: dict[str, Any],
        meta: dict[str, Raw],
        sink: Sink,
        target: str = "",
    ) -> Call:
        """A request that is refused, or answered here."""
        return Call(caller, client_id, method, params, meta, sink, self._clock.now(), self, target)

    def go(self, call: Call, link: Link) -> Call:
        if link.personal is not None:
            own = link.personal.ready(call.caller.principal.name)
            if own is None:
                return self._go_personally(call, link, link.personal)
            link = own
        if link.booked >= self._calls_max:  # per link: one server that never answers must not starve others
            return self.refuse(call, BUSY)
        if call.after is not None:
            return self._hold(call, link)
        verdict = self.guard.admit(call, link)
        if isinstance(verdict, Refuse):
            if verdict.rung is Rung.AVAILABILITY and self._worth_waiting(link):
                return self._hold(call, link)
            if verdict.rung is Rung.GATE and self.gate is not None:
                return call if self.gate.answers_at_once(call) else self._hold(call, link)
            return self.refuse(call, verdict.fault)
        self._register(call, link)
        link.send(verdict)
        return call

    def _register(self, call: Call, link: Link) -> None:
        call.booked = link
        link.booked += 1
        if call.timeout_s is not None:
            call.deadline = call.started + call.timeout_s
        self.in_flight.add(call)
        if call.caller.calls is not None:
            call.caller.calls[call.client_id] = call
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _worth_waiting(self, link: Link) -> bool:
        """A child that ended is started again on demand; one that keeps ending is not waited for."""
        keeper = self._keepers.get(link.segment)
        return keeper is not None and keeper.may_return_soon

    def _hold(self, call: Call, link: Link) -> Call:
        """The time of its class begins when it is sent (MCP-AX 7.3); until then other bounds hold."""
        self._register(call, link)
        call.deadline = inf
        task = asyncio.get_running_loop().create_task(self._send_when_ready(call, link))
        self._holds.add(task)
        task.add_done_callback(self._holds.discard)
        return call

    async def _send_when_ready(self, call: Call, link: Link) -> None:
        if call.after is not None:
            await asyncio.wait((call.after,))
        verdict = self.guard.admit(call, link)
        is_away = link.pipe is None or (isinstance(verdict, Refuse) and verdict.rung is not Rung.GATE)
        if is_away and self._worth_waiting(link) and not call.done:
            keeper = self._keepers[link.segment]
            keeper.wake()
            await keeper.usable_within(RESPAWN_WAIT_S)
            verdict = self.guard.admit(call, link)
            if not isinstance(verdict, Refuse) or verdict.rung is Rung.GATE:
                verdict = self._maybe_relisted(call) or verdict
        await self._end_hold(call, link, verdict)

    def _maybe_relisted(self, call: Call) -> Refuse | None:
        """A server may come back with other tools: what is held, withheld or gone by now is not called as it was."""
        if call.method != TOOLS_CALL:
            return None
        route = self.view(call.caller.key).find_tool(call.target)
        if route is not None:
            same = not route.is_held if call.gate is None else route.digest == call.gate.route.digest
            if same:
                return None
        return Refuse(Rung.ROUTE, RELISTED)

    async def _end_hold(self, call: Call, link: Link, verdict: Admitted[Call] | Refuse) -> None:
        if call.done:
            return
        if not isinstance(verdict, Refuse):
            self._send_late(call, link, verdict)
        elif verdict.rung is not Rung.GATE or self.gate is None:
            call.on_failed(verdict.fault, Outcome.REFUSED)
        elif not self.gate.answers_at_once(call):
            released = await self.gate.released(call, link)
            if released is not None:
                self._send_late(call, link, released)
                self.gate.sent(call, link)

    def _send_late(self, call: Call, link: Link, admitted: Admitted[Call]) -> None:
        call.forwarded = self._clock.now()
        if call.timeout_s is not None:
            call.deadline = call.forwarded + call.timeout_s
        link.send(admitted)

    def _go_personally(self, call: Call, link: Link, personal: Personal) -> Call:
        if link.booked >= self._calls_max:
            return self.refuse(call, BUSY)
        self._register(call, link)
        task = asyncio.get_running_loop().create_task(self._send_personally(call, link, personal))
        self._holds.add(task)
        task.add_done_callback(self._holds.discard)
        return call

    async def _send_personally(self, call: Call, link: Link, personal: Personal) -> None:
        """The user's link is not up: bring it up, or send the user to the page where they can agree to it."""
        try:
            found = await personal.open(call.caller.principal.name)
        except (Unobtainable, StoreError) as error:
            log.warning("link %s: no token for %s: %s", link.segment, call.caller.principal.name, error)
            call.on_failed(unauthorised(link.segment), Outcome.REFUSED)
            return
        except Crowded:
            call.on_failed(BUSY, Outcome.REFUSED)
            return
        if call.done:
            return
        if isinstance(found, Consent):
            self.ask_consent(call, link.segment, found)
            return
        if found.booked >= self._calls_max:
            call.on_failed(BUSY, Outcome.REFUSED)
            return
        link.booked -= 1
        found.booked += 1
        call.booked = found
        await self._end_hold(call, found, self.guard.admit(call, found))

    def _mirrored(self, route: Route, arguments: Raw | None, headers: Mapping[bytes, bytes] | None) -> bytes | Fault:
        """Arguments that a 2026-07-28 tool wants repeated as headers: checked where they came so, written anew."""
        try:
            values = decode_value(arguments) if arguments is not None else {}
        except CodecError:
            return Fault(INVALID_PARAMS, "params.arguments cannot be read")
        if headers is not None:
            mismatch = mirror_mismatch(route.mirrored, values, headers)
            if mismatch is not None:
                return Fault(HEADER_MISMATCH, mismatch)
        return route.head + mirror_headers(route.mirrored, values)

    def _invalid(self, call: Call, message: str, data: dict[str, Any] | None = None) -> Call:
        return self.refuse(call, Fault(INVALID_PARAMS, message, data))

    def refuse(self, call: Call, fault: Fault) -> Call:
        """NOT_FOUND is 200 on HTTP: 404 with -32601 means an unknown method there."""
        status = 200 if fault is NOT_FOUND or call.caller.era is Era.LEGACY else HTTP_STATUS.get(fault.code, 200)
        call.refuse(fault, status)
        return call

    # Across eras (`CallHandler`)

    def _across(self, call: Call, link: Link, tool: Route | None = None) -> Fault | None:
        """A modern client's call to a legacy server: note what a retry must repeat, and the log level it wants."""
        if call.caller.era is LEGACY or link.facts is None or link.facts.era is MODERN:
            return None
        if "requestState" in call.params:  # nobody but us makes one for this server
            data = {"reason": "state_invalid"}
            return Fault(INVALID_PARAMS, "this requestState was not made here, or was changed", data)
        if tool is not None and tool.needs_task:
            return tool_across_eras(Era.MODERN)
        call.wished = call.params.get(NAMED_BY[call.method])
        call.params.pop("inputResponses", None)  # of no round that this server knows
        call.params.pop("task", None)  # a wish of 2025-11-25, which servers of 2026-07-28 overlook
        call.after = self._tell_level(call, link)
        return None

    def _tell_level(self, call: Call, link: CallLink) -> Heard | None:
        """Over HTTP a level and what follows it are two requests, and nobody keeps them in order but who waits."""
        level = maybe_string(call.meta.get(META_LOG_LEVEL))
        keeper = self._keepers.get(link.segment) if level in LOG_RANK else None
        return keeper.want_log_level(level) if keeper is not None and level is not None else None

    def prepare_server(self, call: Call) -> Heard | None:
        return None if call.link is None else self._tell_level(call, call.link)

    def _came_back(
        self, caller: Caller, client_id: bytes, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call | Back | None:
        """A tools/call with a state: of a call that is held, of one that is parked, or of its server's own."""
        back = self.gate.returned(caller, params) if self.gate is not None else None
        if isinstance(back, Fault):
            return self.refuse(self._new(caller, client_id, TOOLS_CALL, params, meta, sink), back)
        return back or self._resumed(caller, client_id, TOOLS_CALL, params, meta, sink)

    def _resumed(
        self, caller: Caller, client_id: bytes, method: str, params: dict[str, Any], meta: dict[str, Raw], sink: Sink
    ) -> Call | None:
        """The parked call a retry takes up, or the refusal as an ended call; None for every other request."""
        if caller.era is Era.LEGACY or "requestState" not in params:
            return None
        resumed = self.parking.resume(caller, client_id, method, params, meta, sink)
        if isinstance(resumed, Fault):
            return self.refuse(self._new(caller, client_id, method, params, meta, sink), resumed)
        return resumed

    def ask_client(self, call: Call, link: Asked, request: Request) -> None:
        self.parking.asked(call, link, request)

    def withdraw_question(self, call: Call, upstream_id: bytes) -> None:
        self.parking.withdrawn(call, upstream_id)

    def set_aside(self, call: Call) -> None:
        self.in_flight.discard(call)
        if call.booked is not None:
            if call.link is not None:
                call.link.set_aside(call)
            call.booked.booked -= 1
            call.booked = None

    def take_up(self, call: Call) -> None:
        if call.booked is None and call.link is not None and not call.done:
            call.booked = call.link
            call.booked.booked += 1
            call.booked.take_up(call)
            self.in_flight.add(call)
            if call.timeout_s is not None:  # the time its client took is not the server's
                call.deadline = self._clock.now() + call.timeout_s

    def interview_client(self, call: Call, result: Raw) -> bool:
        if b'"input_required"' not in bytes(result) or call.method not in RESUMABLE:
            return False
        wanted = read_input_required(result)
        if wanted is None:
            return False
        if isinstance(wanted, str):
            call.on_failed(Fault(INTERNAL_ERROR, f"the server's question is malformed: {wanted}"), Outcome.ERROR)
        elif (fault := self._ask_for(call, len(wanted.questions))) is not None:
            call.on_failed(fault, Outcome.ERROR)
        else:
            Interview(call, wanted).start()
        return True

    def _ask_for(self, call: Call, questions: int) -> Fault | None:
        budgets = self.guard.budgets
        return None if budgets is None or not isinstance(call.link, Link) else budgets.asked(call.link, call, questions)

    def ask_consent(self, call: Call, segment: str, consent: Consent) -> None:
        said = f"{segment} takes calls of yours once you have agreed on this page. Open it, then call again."
        asked = {"mode": "url", "url": consent.url, "message": said}
        caller = call.caller
        if caller.era is Era.MODERN:
            answer = self.parking.ask_to_visit(call, asked)
            if answer is not None:
                call.reason = "auth_required"
                call.answer(answer, Outcome.REFUSED)
                return
        elif declares(caller.modern_capabilities, "elicitation", "url"):
            data: dict[str, Any] = {"reason": "auth_required", "elicitations": [{**asked, "elicitationId": consent.id}]}
            call.on_failed(Fault(URL_ELICITATION_REQUIRED, said, data), Outcome.REFUSED)
            return
        data = {"reason": "auth_required", "url": consent.url, "next": said, "mcpax_code": -32002}
        call.on_failed(Fault(TOOL_DEGRADED, "tool_degraded", data), Outcome.REFUSED)

    def translate_error(self, call: Call, error: Raw) -> tuple[bytes, int] | None:
        lacked = call.dialogue.lacked if call.dialogue is not None else None
        if lacked is not None:  # the server's error is what came of a question the client cannot answer
            said = maybe_string((decode_object(error) or {}).get("message")) or "no reason given"
            data = {"requiredCapabilities": lacked, "error": error}
            fault = Fault(MISSING_CAPABILITY, f"the server asked for what the client lacks, and failed: {said}", data)
            return encode_fault(call.client_id, fault), HTTP_STATUS[MISSING_CAPABILITY]
        return self.parking.url_required(call, error)

    # The end of a call

    def _with_latency(self, call: Call, result: bytes) -> bytes:
        since = call.started if call.forwarded is None else call.forwarded
        return with_latency(result, int((self._clock.now() - since) * 1000))

    def finish(self, call: Call, outcome: Outcome) -> None:
        self.in_flight.discard(call)
        if call.dialogue is not None:
            self.parking.ended(call)
        caller = call.caller
        if caller.calls is not None and caller.calls.get(call.client_id) is call:
            del caller.calls[call.client_id]
        now = self._clock.now()
        seconds = now - call.started
        self.total += 1
        if call.booked is not None:
            call.booked.booked -= 1
        link = call.link
        if link is not None:
            link.latencies.append(seconds)
        verdict = "admitted"
        if outcome is not OK:
            if outcome is REFUSED:
                verdict = "refused"
            if call.gate is None:  # one that waits for a person has not failed
                self.failed += outcome is not Outcome.TOOL_ERROR and outcome is not Outcome.CANCELLED
            if link is not None and outcome in (Outcome.ERROR, Outcome.LOST, Outcome.TIMEOUT):
                link.errors += 1
        self._recorder.add(
            (
                self._clock.wall() - seconds,
                caller.principal.name,
                caller.via,
                call.method,
                call.target,
                call.params.get("arguments"),
                verdict,
                outcome._value_,
                seconds,
                call.reason,
            )
        )

    def let_go(self, fault: Fault) -> None:
        """End what only waits for as long as it takes, and can be asked again."""
        for call in [call for call in self.in_flight if call.waits_forever]:
            if call.link is not None:
                call.link.cancel(call, fault.message)
            call.on_failed(fault, Outcome.CANCELLED)

    def _sweep(self) -> None:
        now = self._clock.now()
        for call in [call for call in self.in_flight if call.deadline <= now]:
            if call.progressed or call.asking:  # progress sets the clock anew; a person who is asked stops it
                call.progressed = False
                call.deadline = now + (call.timeout_s or 0)
                continue
            self._time_out(call)
        self.parking.sweep(now)
        self._sweeping = bool(self.in_flight or self.parking.spaces)
        if self._sweeping:
            asyncio.get_running_loop().call_later(next_sweep_s(self.in_flight, now), self._sweep)

    def _time_out(self, call: Call) -> None:
        tool = self.view(call.caller.key).find_tool(call.target) if call.method == TOOLS_CALL else None
        if call.link is not None:
            call.link.cancel(call, "timeout")
        call.on_failed(timed_out(call, tool), Outcome.TIMEOUT)


def resource_not_found(uri: str, candidates: list[str], era: Era) -> Fault:
    if candidates:
        data = {"reason": "ambiguous_uri", "uri": uri, "candidates": candidates}
        return Fault(INVALID_PARAMS, "several servers have this URI; name one of the candidates", data)
    if uri.startswith(REF_PREFIX):
        data = {"reason": "ref_invalid", "uri": uri}
        return Fault(INVALID_PARAMS, "ref_invalid: no driver has this kind of reference", data)
    return Fault(RESOURCE_NOT_FOUND if era is Era.LEGACY else INVALID_PARAMS, "Resource not found", {"uri": uri})
