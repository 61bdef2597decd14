"""The calls under way: what they need while they wait for their servers (`CallHandler`), their deadlines, their end.

Every call is registered when it is sent or begins to wait, and finished exactly once. `finish` frees its place at the
link, counts and records it. One sweep serves the deadlines of all calls, instead of a timer for each: the plain call
must not pay for a timer. A call that reaches its deadline is given up (MCP-AX 7.3), unless it reported progress or its
client is being asked. A call that waits for its client is parked, and takes no place at its link meanwhile.

A server may ask its client in four combinations of eras:

    server legacy, client legacy   the question goes to the client as it is
    server legacy, client modern   the call is parked, and its retry brings the answers (`parking`)
    server modern, client modern   the answer `input_required` goes to the client as it is
    server modern, client legacy   `Interview` asks the client in its own way, and sends the request again with the
                                   answers, until the server asks no more or has asked too often
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

from msgspec import Raw

from interlock.ax.protocol.capability import LatencyClass
from interlock.ax.protocol.hop_metadata import with_latency
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.core.audit_record import AuditRecord
from interlock.core.calls.call import OK, REFUSED, Call, CallLink, Outcome, Timing
from interlock.core.calls.caller import AnswerReceiver
from interlock.core.clock import Clock
from interlock.core.recorder import LARGE_BYTES, Recorder
from interlock.dispatch.parking import Parking
from interlock.guard.budgets import Budgets
from interlock.links.keeper import Keeper
from interlock.links.server_keeper import ServerKeeper
from interlock.links.subscriptions import Heard
from interlock.mcp.capabilities import declares, find_missing_capability, may_be_asked
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import ELICIT, LOG_RANK, META_CAPABILITIES, META_LOG_LEVEL, TOOLS_CALL, Era
from interlock.mcp.mrtr import RESUMABLE, ROUNDS_MAX, InputRequired, Question, read_input_required
from interlock.wire.jsonrpc.codec import Request, decode_array, decode_object, encode_refusal, encode_value, find_string
from interlock.wire.refusal import (
    CALL_TIMEOUT,
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    TOOL_DEGRADED,
    URL_ELICITATION_REQUIRED,
    Refusal,
)

# A server that asks nothing and only wants its state back waits for something: the request is sent again, but not at
# once.
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 0.25
_RESULT: Final = b'"result":'


class Interview:
    """A round of a server's questions to a legacy client. It receives the client's answers instead of the link."""

    def __init__(self, call: Call, wanted: InputRequired) -> None:
        self._call = call
        self._wanted = wanted
        self._answers: dict[str, Raw] = {}
        self._open = {key: b'"%d"' % number for number, key in enumerate(wanted.questions)}
        self._ended = False

    def start(self) -> None:
        call = self._call
        channel = call.caller.channel
        dialogue = call.open_dialogue()
        dialogue.rounds += 1
        if channel is None or dialogue.rounds > ROUNDS_MAX:
            too_often = f"the server asked more than {ROUNDS_MAX} times"
            reason = "the client cannot be asked" if channel is None else too_often
            call.on_failed(Refusal(INTERNAL_ERROR, reason, {"reason": "input_required"}), Outcome.ERROR)
            return
        for question in self._wanted.questions.values():
            if not may_be_asked(call.caller.modern_capabilities, question.method, question.params):
                self._on_unanswered(f"it does not support {question.method}")
                return
        dialogue.abandon = self.abandon
        call.asking += 1  # people take their time: no deadline while they are asked
        if not self._open:
            pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** (dialogue.rounds - 1))
            asyncio.get_running_loop().call_later(pause_s, self._finish)
            return
        for key, name in list(self._open.items()):
            if not self._ended:
                question = self._wanted.questions[key]
                channel.ask(self, name, question.method, _for_legacy(question), call.sink)

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Handle the client's answer to one question (`AnswerReceiver`)."""
        key = next((key for key, name in self._open.items() if name == upstream_id), None)
        if key is None or self._ended:
            return
        if not payload.startswith(_RESULT):  # an error; the server cannot be notified of it
            error = decode_object(payload.partition(b":")[2]) or {}
            self._on_unanswered(find_string(error.get("message")) or "refused")
            return
        del self._open[key]
        self._answers[key] = Raw(payload[len(_RESULT) :])
        if not self._open:
            self._finish()

    def abandon(self) -> None:
        """Withdraw the open questions, because the call has ended."""
        self._ended = True
        channel = self._call.caller.channel
        if channel is not None:
            for name in self._open.values():
                channel.withdraw(self, name, RAW_EMPTY)

    def _on_unanswered(self, why: str) -> None:
        """End the call, because its client does not answer a question."""
        refusal = Refusal(INTERNAL_ERROR, f"the client did not answer the server: {why}", {"reason": "input_refused"})
        self._call.on_failed(refusal, Outcome.ERROR)

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        call = self._call
        call.open_dialogue().abandon = None
        call.asking -= 1
        if self._answers:
            call.params["inputResponses"] = self._answers
        else:
            call.params.pop("inputResponses", None)
        if self._wanted.state is None:
            call.params.pop("requestState", None)
        else:
            call.params["requestState"] = self._wanted.state
        if call.link is not None and not call.done:
            call.link.send_again(call)


def _for_legacy(question: Question) -> Raw:
    """Return the params of a question in the form for a legacy client.

    2025-11-25 requires an id for each page that the user should visit; 2026-07-28 has no such id.
    """
    params = decode_object(question.params) if question.method == ELICIT else None
    if params is None or find_string(params.get("mode")) != "url" or "elicitationId" in params:
        return question.params
    return Raw(encode_value({**params, "elicitationId": secrets.token_urlsafe(16)}))


SERVER_MESSAGE_CHARS_MAX: Final = 1000  # of a server's message in our own; the data has all of it
SWEEP_S: Final = 0.1  # shorter than the time of any latency class: no deadline is set and passed between two sweeps
_SWEEP_MIN_S: Final = 0.002  # a loop may wake a little early
_FAILURES: Final = (Outcome.ERROR, Outcome.LOST, Outcome.NOT_SENT, Outcome.TIMEOUT)


class CallsUnderWay:
    """Registry of the calls that were sent or wait to be sent. It serves their needs until they end."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        keepers: Mapping[str, Keeper],
        recorder: Recorder,
        clock: Clock,
        budgets: Budgets,
        latency_meta: bool,
    ) -> None:
        self.timing: Timing | None = self._write_latency if latency_meta else None
        self._catalog = catalog
        self._keepers = keepers
        self._recorder = recorder
        self._clock = clock
        self._budgets = budgets
        self.parking = Parking(clock)
        self._sweeping = False
        self.calls: set[Call] = set()
        self.total = 0
        self.failed = 0

    def register(self, call: Call, link: CallLink) -> None:
        """Count a call against its link, and watch its deadline."""
        call.booked = link
        link.booked += 1
        if call.timeout_s is not None:
            call.deadline = call.started + call.timeout_s
        self.calls.add(call)
        if call.caller.calls is not None:
            call.caller.calls[call.client_id] = call
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    # Across eras

    def set_log_level(self, call: Call, link: CallLink) -> Heard | None:
        """Ask a legacy server for the log level that a modern client named in its request.

        Return a future to wait for before the request is sent, or None if there is nothing to wait for. Over HTTP the
        two are separate requests, which keep their order only if the second waits for the result of the first.
        """
        level = find_string(call.meta.get(META_LOG_LEVEL))
        keeper = self._keepers.get(link.segment) if level in LOG_RANK else None
        return keeper.log_level.want(level) if isinstance(keeper, ServerKeeper) and level is not None else None

    def prepare_server(self, call: Call) -> Heard | None:
        return None if call.link is None else self.set_log_level(call, call.link)

    def ask_client(self, call: Call, link: AnswerReceiver, request: Request) -> None:
        self.parking.asked(call, link, request)

    def withdraw_question(self, call: Call, upstream_id: bytes) -> None:
        self.parking.withdrawn(call, upstream_id)

    def suspend(self, call: Call) -> None:
        self.calls.discard(call)
        if call.booked is not None:
            if call.link is not None:
                call.link.suspend(call)
            call.booked.booked -= 1
            if call.booked.on_room is not None:
                call.booked.on_room()
            call.booked = None

    def resume(self, call: Call) -> None:
        if call.booked is None and call.link is not None and not call.done:
            call.booked = call.link
            call.booked.booked += 1
            call.booked.resume(call)
            self.calls.add(call)
            if call.timeout_s is not None:  # the time its client took is not the server's
                call.deadline = self._clock.now() + call.timeout_s

    def interview_client(self, call: Call, result: Raw) -> bool:
        if b'"input_required"' not in bytes(result) or call.method not in RESUMABLE:
            return False
        wanted = read_input_required(result)
        if wanted is None:
            return False
        if isinstance(wanted, str):
            call.on_failed(Refusal(INTERNAL_ERROR, f"the server's question is malformed: {wanted}"), Outcome.ERROR)
        else:
            refusal = None
            if call.link is not None and self._budgets.is_enforced:
                refusal = self._budgets.charge_questions(call.link, call.caller, len(wanted.questions))
            if refusal is not None:
                call.on_failed(refusal, Outcome.ERROR)
            else:
                Interview(call, wanted).start()
        return True

    def ask_consent(self, call: Call, server: str, url: str, consent_id: str) -> None:
        message = f"{server} takes calls of yours once you have agreed on this page. Open it, then call again."
        page = {"mode": "url", "url": url, "message": message}
        caller = call.caller
        if caller.era is Era.MODERN:
            answer = self.parking.ask_to_visit(call, page)
            if answer is not None:
                call.reason = "auth_required"
                call.answer(answer, Outcome.REFUSED)
                return
        elif declares(caller.modern_capabilities, "elicitation", "url"):
            data: dict[str, Any] = {"reason": "auth_required", "elicitations": [{**page, "elicitationId": consent_id}]}
            call.on_failed(Refusal(URL_ELICITATION_REQUIRED, message, data), Outcome.REFUSED)
            return
        data = {"reason": "auth_required", "url": url, "next": message, "mcpax_code": -32002}
        call.on_failed(Refusal(TOOL_DEGRADED, "tool_degraded", data), Outcome.REFUSED)

    def translate_error(self, call: Call, error: Raw) -> tuple[bytes, int] | None:
        message = find_string((decode_object(error) or {}).get("message"))
        lacking = self._find_missing_capability(call, message, {"error": error})
        return lacking or self.parking.url_required(call, error)

    def translate_failure(self, call: Call, result: Raw) -> tuple[bytes, int] | None:
        blocks = decode_array((decode_object(result) or {}).get("content", b"[]")) or [Raw(b"{}")]
        message = find_string((decode_object(blocks[0]) or {}).get("text"))
        return self._find_missing_capability(call, message, {"result": result})

    def _find_missing_capability(
        self, call: Call, message: str | None, outcome: dict[str, Raw]
    ) -> tuple[bytes, int] | None:
        """Return MISSING_CAPABILITY with its HTTP status if a missing client capability caused the failure, otherwise
        None.

        The server failed because it asked something that the client cannot answer, or because it knew that it could not
        ask.
        """
        lacked = call.dialogue.lacked if call.dialogue is not None else None
        if lacked is None:
            lacked = find_missing_capability(message or "", call.meta.get(META_CAPABILITIES, RAW_EMPTY))
        if lacked is None:
            return None
        reason = (message or "no reason given")[:SERVER_MESSAGE_CHARS_MAX]
        why = f"the server asked for what the client lacks, and failed: {reason}"
        refusal = Refusal(MISSING_CAPABILITY, why, {"requiredCapabilities": lacked, **outcome})
        return encode_refusal(call.client_id, refusal), refusal.mcp_status

    # The end of a call

    def _write_latency(self, call: Call, result: bytes) -> bytes:
        """Write into a result how long its call took at this hop (MCP-AX 7.2)."""
        since = call.started if call.forwarded is None else call.forwarded
        return with_latency(result, int((self._clock.now() - since) * 1000))

    def finish(self, call: Call, outcome: Outcome) -> None:
        """Release the resources of a call that has ended, and count and record its outcome. Called once for every call.

        A refusal is recorded as a verdict. A call that waits for a person's decision is not counted as failed. Neither
        is a call that its client cancelled or whose tool reported an error.
        """
        self.calls.discard(call)
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
            if booked.on_room is not None:
                booked.on_room()
        link = call.link
        if link is not None:
            link.latencies.append(seconds)
        verdict = "admitted"
        if outcome is not OK:
            if outcome is REFUSED:
                verdict = "refused"
            if call.hold is None or not call.hold.is_waiting:  # a call that waits for a person has not failed
                self.failed += outcome is not Outcome.TOOL_ERROR and outcome is not Outcome.CANCELLED
            if link is not None and outcome in _FAILURES:
                link.errors += 1
        try:
            arguments = call.params["arguments"]
        except KeyError:
            arguments = None
        self._recorder.add(
            AuditRecord(
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

    def end_waiting(self, refusal: Refusal) -> None:
        """End the calls that wait without a deadline, and that their clients can repeat."""
        for call in [call for call in self.calls if call.waits_forever]:
            if call.link is not None:
                call.link.cancel(call, refusal.message)
            call.on_failed(refusal, Outcome.CANCELLED)

    def _sweep(self) -> None:
        now = self._clock.now()
        for call in [call for call in self.calls if call.deadline <= now]:
            if call.progressed or call.asking:  # progress restarts the clock; a question to a person stops it
                call.progressed = False
                call.deadline = now + (call.timeout_s or 0)
                continue
            namespace = self._catalog.namespace
            tool = namespace.view(call.caller.key).find_tool(call.target) if call.method == TOOLS_CALL else None
            if call.link is not None:
                call.link.cancel(call, "timeout")
            call.on_failed(timeout_refusal(call, tool), Outcome.TIMEOUT)
        self.parking.sweep(now)
        self._sweeping = bool(self.calls or self.parking.spaces)
        if self._sweeping:
            asyncio.get_running_loop().call_later(next_sweep_s(self.calls, now), self._sweep)


def timeout_refusal(call: Call, tool: Route | None) -> Refusal:
    """Return the error of a call that exceeded its deadline.

    `tool` is the route of the tool as it is listed now, or None if the call is not a tool call or its tool is no longer
    listed. `hop` in the error counts the aggregators from this one to the tool's own, both included: 1 is the tool's
    own aggregator.
    """
    capability = tool.capability if tool is not None else None
    data = {
        "timeout_ms": round((call.timeout_s or 0) * 1000),
        "latency_class": (capability.latency_class if capability is not None else LatencyClass.STANDARD).value,
        "hop": tool.hops if tool is not None else 1,
        "outcome": "unknown" if call.link is not None else "not_sent",  # AX-7.3-1
    }
    return Refusal(CALL_TIMEOUT, "call_timeout", data)  # AX-7.3-1


def next_sweep_s(calls: Iterable[Call], now: float) -> float:
    """Return the seconds until the next deadline, within bounds.

    The bounds are narrow because an outer hop waits only 50 ms longer than an inner hop, and the inner hop must time
    out first.
    """
    due = min((call.deadline for call in calls), default=inf) - now
    return min(SWEEP_S, max(due, _SWEEP_MIN_S))
