"""What calls need from the dispatcher (`CallHandler`): questions across eras, pages to visit, deadlines, the end.

Here is what is known of all calls under way: which they are, what has to be told to whom when one of them waits for its
client, and what is recorded when it ends.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.latency import with_latency
from interlock.catalog.catalog import Catalog, View
from interlock.core.calls.call import OK, REFUSED, Call, CallLink, Outcome, Timing
from interlock.core.calls.caller import Asked, ViewKey
from interlock.core.clock import Clock
from interlock.core.recorder import LARGE_BYTES, Recorder
from interlock.credentials.consents import Consent
from interlock.dispatch.legacy_questions import Interview
from interlock.dispatch.parking import Parking
from interlock.dispatch.timeouts import SWEEP_S, next_sweep_s, timeout_fault
from interlock.guard.budgets import Budgets
from interlock.links.keeper import Keeper
from interlock.links.log_level import Heard
from interlock.mcp.capabilities import capability_said_lacking, declares
from interlock.mcp.eras import Era
from interlock.mcp.ladder import HTTP_STATUS
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import LOG_RANK, META_CAPABILITIES, META_LOG_LEVEL, TOOLS_CALL
from interlock.mcp.mrtr import RESUMABLE, read_input_required
from interlock.wire.jsonrpc.codec import decode_array, decode_object, encode_fault, maybe_string
from interlock.wire.jsonrpc.errors import (
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    TOOL_DEGRADED,
    URL_ELICITATION_REQUIRED,
    Fault,
)
from interlock.wire.jsonrpc.messages import Request

SAID_CHARS_MAX: Final = 1000  # of a server's words in our message; all of it is in the data
_FAILURES: Final = (Outcome.ERROR, Outcome.LOST, Outcome.NOT_SENT, Outcome.TIMEOUT)


class Handler:
    """The calls under way and what becomes of them."""

    def __init__(
        self,
        catalog: Catalog,
        keepers: Mapping[str, Keeper],
        recorder: Recorder,
        clock: Clock,
        budgets: Budgets,
        *,
        latency_meta: bool,
    ) -> None:
        self.timing: Timing | None = self._with_latency if latency_meta else None
        self._catalog = catalog
        self._keepers = keepers
        self._recorder = recorder
        self._clock = clock
        self.budgets = budgets
        self.parking = Parking(clock)
        self._sweeping = False
        self.in_flight: set[Call] = set()
        self.total = 0
        self.failed = 0

    def view(self, key: ViewKey) -> View:
        return self._catalog.namespace.view(key)

    def _register(self, call: Call, link: CallLink) -> None:
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

    # Across eras

    def _tell_level(self, call: Call, link: CallLink) -> Heard | None:
        """Over HTTP a level and what follows it are two requests; only waiting keeps them in order."""
        level = maybe_string(call.meta.get(META_LOG_LEVEL))
        keeper = self._keepers.get(link.segment) if level in LOG_RANK else None
        return keeper.log_level.want(level) if keeper is not None and level is not None else None

    def prepare_server(self, call: Call) -> Heard | None:
        return None if call.link is None else self._tell_level(call, call.link)

    def ask_client(self, call: Call, link: Asked, request: Request) -> None:
        self.parking.asked(call, link, request)

    def withdraw_question(self, call: Call, upstream_id: bytes) -> None:
        self.parking.withdrawn(call, upstream_id)

    def suspend(self, call: Call) -> None:
        self.in_flight.discard(call)
        if call.booked is not None:
            if call.link is not None:
                call.link.suspend(call)
            call.booked.booked -= 1
            if call.booked.queue is not None:
                call.booked.queue.on_room()
            call.booked = None

    def resume(self, call: Call) -> None:
        if call.booked is None and call.link is not None and not call.done:
            call.booked = call.link
            call.booked.booked += 1
            call.booked.resume(call)
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
        if call.link is None or not self.budgets.is_enforced:
            return None
        return self.budgets.charge_questions(call.link, call.caller, questions)

    def ask_consent(self, call: Call, server: str, consent: Consent) -> None:
        said = f"{server} takes calls of yours once you have agreed on this page. Open it, then call again."
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
        said = maybe_string((decode_object(error) or {}).get("message"))
        return self._maybe_lacking(call, said, {"error": error}) or self.parking.url_required(call, error)

    def translate_failure(self, call: Call, result: Raw) -> tuple[bytes, int] | None:
        blocks = decode_array((decode_object(result) or {}).get("content", b"[]")) or [Raw(b"{}")]
        return self._maybe_lacking(call, maybe_string((decode_object(blocks[0]) or {}).get("text")), {"result": result})

    def _maybe_lacking(self, call: Call, said: str | None, outcome: dict[str, Raw]) -> tuple[bytes, int] | None:
        """The answer where a failure is what came of a question that the client cannot answer, or of its server's
        knowing that it could not."""
        lacked = call.dialogue.lacked if call.dialogue is not None else None
        if lacked is None:
            lacked = capability_said_lacking(said or "", call.meta.get(META_CAPABILITIES, RAW_EMPTY))
        if lacked is None:
            return None
        why = f"the server asked for what the client lacks, and failed: {(said or 'no reason given')[:SAID_CHARS_MAX]}"
        fault = Fault(MISSING_CAPABILITY, why, {"requiredCapabilities": lacked, **outcome})
        return encode_fault(call.client_id, fault), HTTP_STATUS[MISSING_CAPABILITY]

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
        seconds = self._clock.now() - call.started
        self.total += 1
        booked = call.booked
        if booked is not None:
            booked.booked -= 1
            if booked.queue is not None:
                booked.queue.on_room()
        link = call.link
        if link is not None:
            link.latencies.append(seconds)
        verdict = "admitted"
        if outcome is not OK:
            if outcome is REFUSED:
                verdict = "refused"
            if call.hold is None or not call.hold.is_waiting:  # one that waits for a person has not failed
                self.failed += outcome is not Outcome.TOOL_ERROR and outcome is not Outcome.CANCELLED
            if link is not None and outcome in _FAILURES:
                link.errors += 1
        try:
            arguments = call.params["arguments"]
        except KeyError:
            arguments = None
        self._recorder.add(
            (
                self._clock.wall() - seconds,
                caller.principal.name,
                caller.via,
                call.method,
                call.target,
                arguments,
                verdict,
                outcome._value_,
                seconds,
                call.reason,
            )
        )
        if arguments is not None and len(arguments) > LARGE_BYTES:
            self._recorder.hurry()

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
        call.on_failed(timeout_fault(call, tool), Outcome.TIMEOUT)
