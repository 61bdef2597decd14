"""From a client's request to a server: find the route, make the call, pass the guard, send it over the link.

There is one function per routed method; all of them end in `send`. The guard admits, refuses or holds a call.

    admitted     sent at once: from the front to the link without a task, a future or a timer of its own
    held         sent by a task when a person has decided (`_settle`); the guard checks it once more then
    no capacity  joins the queue of its link, and is sent by a task when another call ends (`_send_in_turn`)
    server away  sent by a task if the server returns within RESPAWN_WAIT_S (`_send_later`)
    own link     sent by a task when the client's own link is open (`_send_over_own_link`)

Nothing is sent that the guard did not admit. A call of a tool that no server lists yet waits until all servers have
arrived (`Arrivals`), and is then made again from its request. A retry with a requestState resumes a parked or held call
instead of making a new one.

`ClientNotifications` passes on the vendor-specific notifications of clients. A notification is no call, so no check of
the guard looks at it. These rules take the place of the guard:

- Only one server can be meant: the client sees no other one, or no other one of the client's era.
- The client may not be limited to reading, and the safety loop must allow it to notify.
- The method begins with "notifications/" and is none of MCP's, so that no server takes it for a request.
- The rate is bounded, and every notification that is passed on is recorded.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.approvals.decisions import DecisionService
from interlock.approvals.protocol.approval import Approval
from interlock.ax.protocol.capability import TIMEOUT_S, LatencyClass
from interlock.ax.protocol.route import ROUTE
from interlock.catalog.catalog import EVERYTHING, Catalog, View
from interlock.catalog.checks import RouteCheck
from interlock.catalog.routes import Route
from interlock.core.audit_record import AuditRecord
from interlock.core.background import BackgroundTasks
from interlock.core.calls.call import Call, CallHold, Outcome, answer_failures
from interlock.core.calls.caller import Caller, ClientRequest, Followed, ViewKey
from interlock.core.calls.check import (
    BUSY,
    HELD,
    Admitted,
    CheckNumber,
    CheckRefusal,
    Held,
    is_not_found,
    own_links_full,
)
from interlock.core.clock import Clock
from interlock.core.link_state import LinkState
from interlock.core.recorder import Recorder
from interlock.credentials.secret_references import Unobtainable
from interlock.credentials.token import RequestedConsent
from interlock.dispatch.absent_tools import AbsentTools
from interlock.dispatch.availability import Arrivals, ArrivingCall, AvailabilityCheck, CallQueue, forbid_resending
from interlock.dispatch.calls_under_way import CallsUnderWay
from interlock.dispatch.tasks import Tasks
from interlock.gate.confirm import Confirmations, ConfirmCall, HeldHere
from interlock.gate.gate import Gate
from interlock.gate.responses import ReturningClient
from interlock.gate.rounds import Relayed
from interlock.guard.budgets import READING, Budgets
from interlock.guard.guard import Guard
from interlock.links.connected_link import ServerLink
from interlock.links.connector import LimitReached
from interlock.links.keeper import Keeper, unauthorised
from interlock.links.link import Link
from interlock.links.own_links import OwnLinks
from interlock.mcp import methods
from interlock.mcp.methods import LEGACY, META_CAPABILITIES, MODERN, NAMED_BY, RESOURCES_READ, TOOLS_CALL, Era
from interlock.mcp.modern_requests import mirror_headers, mirror_mismatch, modern_head
from interlock.mcp.tasks import tool_across_eras
from interlock.store.ports import StoreError
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import CodecError, Notification, decode_object, encode_result, find_string
from interlock.wire.refusal import HEADER_MISMATCH, INVALID_PARAMS, RESOURCE_NOT_FOUND, Refusal

log = logging.getLogger("interlock.dispatch")

STANDARD_S: Final = TIMEOUT_S[LatencyClass.STANDARD]
RESPAWN_WAIT_S: Final = 5.0  # how long a call waits for a server that is being started again
REF_PREFIX: Final = "mcp_"  # of every kind of reference to a driver's resource (AIP-resources-2)

_OBJECT: Final = ord("{")
_NO_PLACE: Final = CheckRefusal(CheckNumber.AVAILABILITY, BUSY)


@dataclass(eq=False, kw_only=True)
class Dispatch:
    """Dispatcher of a node's calls: turns requests of clients into calls, and sends them over links."""

    catalog: Catalog
    keepers: Mapping[str, Keeper]  # by the segment of their link
    recorder: Recorder
    clock: Clock
    guard: Guard[Route]
    route_check: RouteCheck
    availability: AvailabilityCheck
    budgets: Budgets
    gate: Gate
    decisions: DecisionService  # takes the proofs that clients bring
    arrivals: Arrivals
    absent_tools: AbsentTools
    latency_meta: bool = False

    def __post_init__(self) -> None:
        self._namespace = self.catalog.live  # one attribute away from what is listed now
        self.under_way = CallsUnderWay(
            self.catalog, self.keepers, self.recorder, self.clock, self.budgets, self.latency_meta
        )
        self._register = self.under_way.register  # every call is registered: without a look at both objects
        self.tasks = Tasks(self.clock)
        find_route = partial(self.route_check.find_route, EVERYTHING)
        self._confirmations = Confirmations(self.gate, self.decisions, find_route)
        self._queue = CallQueue(self.availability.is_full)
        self._delayed = BackgroundTasks()
        self._confirming = BackgroundTasks()

    def view(self, key: ViewKey) -> View:
        """Return the names and routes that a client with this key sees now."""
        return self._namespace.current.view(key)

    # One function per routed method

    def call_tool(
        self,
        request: ClientRequest,
        *,
        as_task: bool = False,
        ack: CallHold | None = None,
        released_by: str | None = None,
    ) -> Call:
        """Call a tool (tools/call).

        `as_task` is true if a legacy client asks for a task. `ack` is what the client itself has to confirm (MCP-AQL).
        `released_by` is the approval of a proposal to make exactly this call (MCPx).
        """
        caller, params, meta = request.caller, request.params, request.meta
        followed: Followed | None = None
        if caller.hop is not None:
            if isinstance(route_taken := caller.hop.follow(params, meta, params.get("name")), Refusal):
                return self.refuse(self._make_unsent_call(request), route_taken)
            if route_taken is not None:
                followed, params["name"] = route_taken, route_taken.raw
                if ROUTE not in meta:  # the parent wrote it beside `_meta`, which several calls share
                    meta = {**meta, **followed.received}
                    request = msgspec.structs.replace(request, meta=meta)
        back: ReturningClient | None = None
        if "requestState" in params:  # a client returns to a held call, or to a parked one
            if isinstance(returning := self.gate.responses.read_state(caller, params), Refusal):
                return self.refuse(self._make_unsent_call(request), returning)
            if (back := returning) is None and (resumed := self._find_resumed(request)) is not None:
                return resumed
        namespace = self._namespace.current
        if caller.seen is not namespace:
            caller.seen, caller.view = namespace, namespace.view(caller.key)
        view: View = caller.view
        # The table is keyed by the name as clients usually write it in JSON, so the name need not be decoded.
        try:
            route = view.tools[bytes(params["name"])]
        except KeyError:  # escaped in another way, or unknown
            name = find_string(params.get("name"))
            listed = view.find_tool(name) if name is not None else None
            if listed is None:
                later = self._postpone(request, partial(self.call_tool, as_task=as_task, ack=ack))
                if later is not None:
                    return later
                call = self._make_unsent_call(request, (name or "")[:255])
                if name is None:
                    return self._invalid(call, "params.name must be a string")
                absent = self.absent_tools.find(view, name) if caller.hop is None else None
                return self.refuse(call, absent.refusal if absent else self.route_check.unlisted(caller, name))
            route = listed
        arguments = params.get("arguments")
        if arguments is not None and memoryview(arguments)[0] != _OBJECT:
            # Some clients send null instead of no arguments, which is sent unchanged unless the node reads them.
            is_read = route.gate is not None or route.mirrored or route.link.checks_input
            if is_read or bytes(arguments) != b"null":
                return self._invalid(
                    self._make_unsent_call(request, route.qualified), "params.arguments must be an object"
                )
        head, onward = route.head, route.onward
        if followed is not None and onward is not None:
            onward = followed.onward
        if route.mirrored:
            if isinstance(mirrored := self._mirror_headers(route, arguments, request.headers), Refusal):
                return self.refuse(self._make_unsent_call(request, route.qualified), mirrored)
            head = mirrored
        link = route.link
        call = (link.task_call_type if as_task else link.call_type)(
            caller,
            request.client_id,
            TOOLS_CALL,
            params,
            meta,
            request.sink,
            self.clock.now(),
            self.under_way,
            route.qualified,
            route.timeout_s,
            head,
            onward,
            route.price,
            route,
        )
        if not link.modern and (refusal := self._cross_eras(call, link, route)) is not None:
            return self.refuse(call, refusal)
        if route.gate is not None:
            if call.hold is None:  # else its link holds it
                hold = call.hold = self.gate.hold(call, route, back, released_by)
                if back is not None and back.has_declined:
                    # The user declined. Nothing is sent, so only the first checks are made.
                    if (refused := self.guard.find_refusal(call, link, CheckNumber.AVAILABILITY)) is not None:
                        return self.refuse(call, refused.refusal)
                    self.gate.decline(call, hold, back.visit.confirmation_id)
                    return call
        elif ack is not None and call.hold is None:
            call.hold = ack
        params["name"] = route.wire_name
        return self.send(call, link)

    def _postpone(self, request: ClientRequest, make: Callable[[ClientRequest], Call]) -> Call | None:
        """Postpone a request for an item that no server lists, if servers that may offer the item are still connecting.

        Return the call that waits for them. Return None if there is nothing to wait for, or if the request came from a
        parent or is a retry.
        """
        if request.caller.hop is not None or "requestState" in request.params:
            return None
        call = ArrivingCall(*self.call_fields(request))
        return call if self.arrivals.postpone(call, partial(make, request)) else None

    def get_prompt(self, request: ClientRequest) -> Call:
        """Get a prompt (prompts/get)."""
        caller, params = request.caller, request.params
        followed = caller.hop.follow(params, request.meta, params.get("name")) if caller.hop is not None else None
        if (continued := self._follow(request, "name", followed)) is not None:
            return continued
        name = find_string(params.get("name"))
        if name is None or (route := self.view(caller.key).find_prompt(name)) is None:
            if (later := self._postpone(request, self.get_prompt)) is not None:
                return later
            call = self._make_unsent_call(request, (name or "")[:255])
            if name is None:
                return self._invalid(call, "params.name must be a string")
            return self._invalid(call, "unknown prompt", {"reason": "prompt_not_found"})
        onward, link = _onward(route.onward, followed), route.link
        fields = self.call_fields(request, route.qualified)
        call = link.new_request(route.original, *fields, route.timeout_s, route.head, onward, READING)
        return self._request(call, link, "name", route.wire_name)

    def read_resource(self, request: ClientRequest) -> Call:
        """Read a resource (resources/read)."""
        caller, params = request.caller, request.params
        followed: Followed | Refusal | None = None
        if caller.hop is not None and (own := find_string(params.get("uri"))) is not None:
            followed = caller.hop.follow_uri(params, request.meta, own)
        if (continued := self._follow(request, "uri", followed)) is not None:
            return continued
        if (uri := find_string(params.get("uri"))) is None:
            return self._invalid(self._make_unsent_call(request), "params.uri must be a string")
        target = uri[:255]
        if isinstance(place := self.view(caller.key).find_resource(uri), list):
            if (later := self._postpone(request, self.read_resource)) is not None:
                return later
            return self.refuse(self._make_unsent_call(request, target), resource_not_found(uri, place, caller.era))
        link, downstream = place
        onward = _onward(self._onward_to_place(link, downstream), followed)
        head = modern_head(RESOURCES_READ, downstream)
        call = link.new_request(downstream, *self.call_fields(request, target), link.timeout_s, head, onward, READING)
        return self._request(call, link, "uri", Raw(codec.encode_value(downstream)))

    def _follow(self, request: ClientRequest, member: str, followed: Followed | Refusal | None) -> Call | None:
        """Write the name that a parent's route gives to the item into a request. Return a call if the request is
        finished by that: its route is refused, or it resumes an earlier call.

        Return an ended call with the refusal of the route, or the call that a retry resumes. Otherwise return None.
        """
        if isinstance(followed, Refusal):
            return self.refuse(self._make_unsent_call(request), followed)
        if followed is not None:
            request.params[member] = followed.raw
        return self._find_resumed(request)

    def complete(self, request: ClientRequest) -> Call:
        """Complete an argument of a prompt or of a resource template (completion/complete)."""
        caller, params, meta = request.caller, request.params, request.meta
        ref: dict[str, Any] | None = decode_object(params["ref"]) if "ref" in params else None
        kind = find_string((ref or {}).get("type"))
        link: Link | None = None
        what = target = ""
        onward: dict[str, Raw] | None = None
        followed: Followed | Refusal | None = None
        if ref is not None and kind == "ref/prompt":
            followed = caller.hop.follow(params, meta, ref.get("name")) if caller.hop is not None else None
            name = followed.name if isinstance(followed, Followed) else find_string(ref.get("name")) or ""
            target = name[:255]
            if (route := self.view(caller.key).find_prompt(name)) is not None:
                link, ref["name"], what = route.link, route.wire_name, route.original
                onward = route.onward
        elif ref is not None and kind == "ref/resource":
            uri = find_string(ref.get("uri")) or ""
            followed = caller.hop.follow_uri(params, meta, uri) if caller.hop is not None else None
            uri = followed.name if isinstance(followed, Followed) else uri
            target = uri[:255]
            if (place := self.view(caller.key).find_template(uri)) is not None:
                link, ref["uri"] = place
                what = place[1]
                onward = self._onward_to_place(*place)
        else:
            return self._invalid(self._make_unsent_call(request), "params.ref must be a ref/prompt or a ref/resource")
        if isinstance(followed, Refusal):
            return self.refuse(self._make_unsent_call(request, target), followed)
        if link is None:
            call = self._make_unsent_call(request, target)
            return self._invalid(call, "params.ref names nothing here", {"reason": "reference_not_found"})
        params["ref"] = ref
        fields = self.call_fields(request, target)
        onward = _onward(onward, followed)
        call = link.new_request(what, *fields, link.timeout_s, modern_head(methods.COMPLETE), onward, READING)
        return call if call.done else self.send(call, link)

    def _request(self, call: Call, link: Link, member: str, wire_name: Raw) -> Call:
        """Send a request for a prompt or a resource.

        `member` is the param that names the item, and `wire_name` is the item's name at its server.
        """
        if call.done:
            return call
        if (refusal := self._cross_eras(call, link)) is not None:
            return self.refuse(call, refusal)
        call.params[member] = wire_name
        return self.send(call, link)

    def confirm(self, request: ClientRequest) -> Call:
        """Verify a person's proof of approval (mcpax/confirm), which any client may send, and make the call that waited
        for it.
        """
        caller = request.caller
        call = ConfirmCall(*self.call_fields(request))
        if isinstance(held := self._confirmations.find_held_call(call), Refusal):
            return self.refuse(call, held)
        if isinstance(held, Relayed):
            return self.send(call, self._confirmations.prepare_relay(call, held))
        if held.confirm.redeem:
            if isinstance(redeemed := self._confirmations.redeem(call, held.approval), Refusal):
                return self.refuse(call, redeemed)
            self._answer_confirm(call, redeemed, Outcome.REFUSED)
            return call
        if caller.calls is not None:
            caller.calls[request.client_id] = call
        self._confirming.begin(answer_failures(call, self._confirm(call, held)))
        return call

    async def _confirm(self, call: ConfirmCall, held: HeldHere) -> None:
        decided = await self._confirmations.decide(call, held)
        if not call.done:
            self._answer_confirm(call, decided, Outcome.OK)

    def _answer_confirm(self, call: ConfirmCall, decided: Approval | Refusal | bytes, outcome: Outcome) -> None:
        """Answer a mcpax/confirm request with a refusal or a result. If the confirmation was approved, make the held
        call instead, which answers the request.

        The approved call goes through every check. Its answer becomes the answer to the confirmation.
        """
        if isinstance(decided, Refusal):
            call.on_failed(decided, Outcome.REFUSED)
        elif isinstance(decided, bytes):
            call.answer(encode_result(call.client_id, decided), outcome)
        else:
            params, meta = self._confirmations.released_request(call, decided)
            self.under_way.finish(call, Outcome.OK)
            call.done = True
            released = ClientRequest(call.caller, call.client_id, TOOLS_CALL, params, meta, call.sink)
            call.released_call = self.call_tool(released)

    async def open(self) -> None:
        """Do nothing: the dispatcher needs no preparation."""

    async def close(self) -> None:
        """Wait until all requests mcpax/confirm under way have been decided."""
        await self._confirming.finish()

    # What the routed methods share

    def _make_unsent_call(self, request: ClientRequest, target: str = "") -> Call:
        """Return a call for a request that is not sent to any server, because this node refuses or answers it."""
        return Call(*self.call_fields(request, target))

    def call_fields(self, request: ClientRequest, target: str = "") -> tuple[Any, ...]:
        """Return the arguments for the constructor of a call that all kinds of calls have in common."""
        of_request = (request.caller, request.client_id, request.method, request.params, request.meta, request.sink)
        return (*of_request, self.clock.now(), self.under_way, target)

    def _onward_to_place(self, link: Link, uri: str) -> dict[str, Raw] | None:
        """Return the MCP-AX route for a request about a resource of this link, or None if the server is
        no MCP-AX node.
        """
        return self._namespace.current.onward(link, uri) if link.offer.kind != "adopted" else None

    def _mirror_headers(
        self, route: Route, arguments: Raw | None, headers: Mapping[bytes, bytes] | None
    ) -> bytes | Refusal:
        """Return the HTTP headers of a call of a tool that wants arguments repeated in headers, or a refusal of the
        call.

        A call is refused if its arguments cannot be read, or if the client's own headers differ from them.
        """
        try:
            values = codec.decode_value(arguments) if arguments is not None else {}
        except CodecError:
            return Refusal(INVALID_PARAMS, "params.arguments cannot be read")
        if headers is not None and (mismatch := mirror_mismatch(route.mirrored, values, headers)) is not None:
            return Refusal(HEADER_MISMATCH, mismatch)
        return route.head + mirror_headers(route.mirrored, values)

    def _invalid(self, call: Call, message: str, data: dict[str, Any] | None = None) -> Call:
        return self.refuse(call, Refusal(INVALID_PARAMS, message, data))

    def _cross_eras(self, call: Call, link: Link, tool: Route | None = None) -> Refusal | None:
        """Prepare a modern client's call for a legacy server, or return a refusal.

        Record what a retry must repeat, and request the log level.
        """
        if call.caller.era is LEGACY or link.facts is None or link.facts.era is MODERN:
            return None
        if "requestState" in call.params:  # only we make one for this server
            data = {"reason": "state_invalid"}
            return Refusal(INVALID_PARAMS, "this requestState was not made here, or was changed", data)
        if tool is not None and tool.needs_task:
            return tool_across_eras(Era.MODERN)
        call.wished = call.params.get(NAMED_BY[call.method])
        call.params.pop("inputResponses", None)  # of no round that this server knows
        call.params.pop("task", None)  # a wish of 2025-11-25, which servers of 2026-07-28 overlook
        call.after = self.under_way.set_log_level(call, link)
        return None

    def _find_resumed(self, request: ClientRequest) -> Call | None:
        """Return the waiting call that a client's retry continues, or an ended call that refuses an invalid retry.

        Return None for a request that resumes no parked call of this node.
        """
        if request.caller.era is Era.LEGACY or "requestState" not in request.params:
            return None
        if isinstance(resumed := self.under_way.parking.resume(request), Refusal):
            return self.refuse(self._make_unsent_call(request), resumed)
        return resumed

    # Sending

    def send(self, call: Call, link: Link) -> Call:
        """Send a call over its link at once, or as soon as it may be sent, or refuse it.

        The guard decides. An ordinary call uses the shared link, is admitted and has nothing to wait for, so it is sent
        without a task.
        """
        if link.own is not None or call.caller.channel is not None:
            own_links = link.own if link.own is not None else link.own_of_legacy
            if own_links is not None:
                own = own_links.ready(call.caller, call.meta.get(META_CAPABILITIES))
                if own is None:  # it has to be opened first, and the first checks come before that
                    if (refused := self.guard.find_refusal(call, link, CheckNumber.AVAILABILITY)) is not None:
                        return self._refuse(call, refused)
                    if self.availability.is_full(link):
                        return self.refuse(call, BUSY)
                    self._register(call, link)
                    self._delayed.begin(answer_failures(call, self._send_over_own_link(call, link, own_links)))
                    return call
                if own is not link:
                    link, call.after = own, self.under_way.set_log_level(call, own)
        if isinstance(verdict := self.guard.admit(call, link), Admitted):
            if call.after is None:
                self._register(call, link)
                link.send(verdict)
                return call
        elif isinstance(verdict, CheckRefusal) and not self.availability.may_wait(verdict, link):
            if verdict.refusal is BUSY and (waiting := self._queue.join(call, link)) is not None:
                self._register(call, link)
                link.booked -= 1  # it has no place at the link yet
                call.booked = None
                call.deadline = inf
                self._delayed.begin(answer_failures(call, self._send_in_turn(call, link, self._queue.wait(waiting))))
                return call
            if link.standing.state is LinkState.DEGRADED:
                self.availability.wake(link)
            return self._refuse(call, verdict)
        self._register(call, link)
        call.deadline = inf  # the time of its class begins when it is sent (MCP-AX 7.3); until then other bounds hold
        self._delayed.begin(answer_failures(call, self._send_later(call, link, is_held=verdict is HELD)))
        return call

    async def _send_in_turn(self, call: Call, link: Link, place: Awaitable[bool]) -> None:
        """Send a queued call when its server has capacity. Refuse it if its tool has changed since the guard checked
        it.

        `place` waits in the queue. Its result is False if the link had no capacity in time.
        """
        has_place = await place
        if call.done:
            return
        refused = self.route_check.find_relisted(call) if has_place else _NO_PLACE
        if refused is not None:
            self._refuse(call, refused, 200)
        else:
            await self._send_later(call, link)

    async def _send_later(self, call: Call, link: Link, *, is_held: bool = False) -> None:
        """Send a call as soon as its server has accepted earlier settings, such as a log level, and is connected.

        A held call is checked here only if its server was away: the guard checks it again when it is released.
        """
        if call.after is not None:
            await asyncio.wait((call.after,))
            if call.done:  # its client left meanwhile, and was given back what it was charged
                return
        verdict: Admitted[Call] | CheckRefusal | Held = HELD if is_held else self.guard.admit(call, link)
        is_away = not link.is_connected or (
            isinstance(verdict, CheckRefusal) and self.availability.may_wait(verdict, link)
        )
        if is_away and self.availability.may_return_soon(link) and not call.done:
            keeper = self.keepers[link.segment]
            keeper.wake()
            await keeper.usable_within(RESPAWN_WAIT_S)
            if call.done:
                return
            if not isinstance(verdict := self.guard.admit(call, link), CheckRefusal):
                verdict = self.route_check.find_relisted(call) or verdict
        await self._settle(call, link, verdict)

    async def _settle(self, call: Call, link: Link, verdict: Admitted[Call] | CheckRefusal | Held) -> None:
        """Send or refuse a call according to the guard's verdict. A call that needs a person's approval first waits for
        it.
        """
        if call.done:
            return
        is_released = isinstance(verdict, Held)
        if isinstance(verdict, Held):
            verdict = await self.guard.release(call, link)
            if call.done:
                return
        if isinstance(verdict, CheckRefusal):
            self._refuse(call, verdict, 200)
            return
        call.forwarded = self.clock.now()
        if call.timeout_s is not None:
            call.deadline = call.forwarded + call.timeout_s
        link.send(verdict)
        if is_released:
            forbid_resending(call, link)

    async def _send_over_own_link(self, call: Call, link: Link, own: OwnLinks) -> None:
        """Open the server connection that belongs to this client alone, and send the call over it.

        If the user must consent first, send the user to the page for that instead.
        """
        if call.done:
            return
        try:
            opened = await own.open(call.caller, call.meta.get(META_CAPABILITIES))
        except (Unobtainable, StoreError) as error:
            log.warning("link %s: no token for %s: %s", link.name, call.caller.principal.name, error)
            call.on_failed(unauthorised(link.name), Outcome.REFUSED)
            return
        except LimitReached as full:
            call.on_failed(own_links_full(full.most), Outcome.REFUSED)
            return
        if call.done:
            return
        if isinstance(opened, RequestedConsent):
            self.under_way.ask_consent(call, link.name, opened.url, opened.id)
            return
        verdict = self.guard.admit(call, opened)
        link.booked -= 1
        if link.on_room is not None:
            link.on_room()
        opened.booked += 1
        call.booked = opened
        if (heard := self.under_way.set_log_level(call, opened)) is not None:
            await asyncio.wait((heard,))
        await self._settle(call, opened, verdict)

    # Refusals

    def _refuse(self, call: Call, refused: CheckRefusal, status: int | None = None) -> Call:
        if refused.result is not None:
            call.answer(encode_result(call.client_id, refused.result), Outcome.REFUSED)
        elif status is not None:
            call.refuse(refused.refusal, status)
        else:
            self.refuse(call, refused.refusal)
        return call

    def refuse(self, call: Call, refusal: Refusal) -> Call:
        """Answer a call with a refusal, which ends it, and return the call.

        Over HTTP, the refusal of a legacy client has status 200. So has an unknown tool in either era, because 404 with
        -32601 means an unknown method.
        """
        is_200 = call.caller.era is Era.LEGACY or is_not_found(refusal)
        call.refuse(refusal, 200 if is_200 else refusal.mcp_status)
        return call


def _onward(own: dict[str, Raw] | None, followed: Followed | Refusal | None) -> dict[str, Raw] | None:
    """Return the MCP-AX route to send with a request to its server (MCP-AX 7.2), or None if the server is no MCP-AX
    node.

    `own` is the route of a request that began at this node; `followed` is the route that a parent sent.
    """
    return followed.onward if own is not None and isinstance(followed, Followed) else own


def resource_not_found(uri: str, candidates: list[str], era: Era) -> Refusal:
    if candidates:
        data = {"reason": "ambiguous_uri", "uri": uri, "candidates": candidates}
        return Refusal(INVALID_PARAMS, "several servers have this URI; name one of the candidates", data)
    if uri.startswith(REF_PREFIX):
        data = {"reason": "ref_invalid", "uri": uri}
        return Refusal(INVALID_PARAMS, "ref_invalid: no driver has this kind of reference", data)
    return Refusal(RESOURCE_NOT_FOUND if era is Era.LEGACY else INVALID_PARAMS, "Resource not found", {"uri": uri})


PER_S: Final = 100  # of all clients together; more within a second are dropped
_PREFIX: Final = "notifications/"  # a name without it could be a request's, which a server may act upon


@dataclass(eq=False)
class ClientNotifications:
    """Forwarding of clients' vendor-specific notifications to servers."""

    view: Callable[[ViewKey], View]
    recorder: Recorder
    clock: Clock
    may_notify: Callable[[Caller], bool]  # whether the safety loop allows a client to send notifications
    _since: float = 0.0
    _count: int = 0

    def pass_on(self, caller: Caller, notification: Notification) -> None:
        """Forward a client's notification to its server. Drop the notification if a rule does not allow it."""
        method = notification.method
        if not method.startswith(_PREFIX) or not methods.is_vendor_method(method) or caller.principal.scope == "read":
            return
        if not self.may_notify(caller):
            return
        is_modern, view = caller.era is Era.MODERN, self.view(caller.key)
        seen = [link for link in view.links if isinstance(link, ServerLink) and view.shows(link)]
        meant = [link for link in seen if link.modern is is_modern and link.is_connected]
        if len(meant) != 1:
            return
        # Without a link of the client's own that is open, the notification has no receiver.
        if (link := meant[0] if meant[0].own is None else meant[0].own.ready(caller)) is None:
            return
        now = self.clock.now()
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > PER_S:
            return
        link.forward_notification(notification)
        at, params = self.clock.wall(), notification.params or None
        who, via = caller.principal.name, caller.via
        self.recorder.add(AuditRecord(at, who, via, method[:128], link.segment, params, "admitted", "ok"))
