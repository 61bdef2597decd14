"""The calls under way: what they need while they wait for their servers (`CallHandler`), their deadlines, their end.

Every call is registered when it is sent or begins to wait, and finished exactly once. `finish` frees its place at the
link, counts and records it. One sweep serves the deadlines of all calls, instead of a timer for each: the plain call
must not pay for a timer. A call that reaches its deadline is given up (MCP-AX 7.3), unless it reported progress or its
client is being asked. A call that waits for its client is parked, and takes no place at its link meanwhile.

A server may ask its client in four combinations of eras:

    server legacy, client legacy   the question goes to the client as it is
    server legacy, client modern   the call is parked, and its retry brings the answers (`Parking`)
    server modern, client modern   the answer `input_required` goes to the client as it is
    server modern, client legacy   `Interview` asks the client in its own way, and sends the request again with the
                                   answers, until the server asks no more or has asked too often

A parked call is answered `input_required` with the questions and a state. The retry of its client brings the answers
with the state, and resumes the call. The call stays under way at the server meanwhile.

    asked      the server asks: the call gets a Space; questions that come together reach the client in one round
    told       the client has its answer; the sink of the call is now `_Away`, which keeps the server's answer
    resumed    the retry brought answers; they go to the server, and unanswered questions are asked again
    delivered  the server had answered before the client came back: the retry is answered at once
    abandoned  the state expired, or the call gave way to another: it is cancelled at the server

The state is sealed with a key of this process. Only the principal that began the call may use it, with the same
request, once, and until it expires. A state that this node did not seal goes on to the server, which may know it.

A parked call is not in flight: it takes no place at its link, and no deadline runs. Of its request only the parts are
kept that the retry and the record need. Over HTTP it holds the connection on which the server asked; there is no other
way to receive the server's answer.
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import LatencyClass
from interlock.ax.protocol.hop_metadata import with_latency
from interlock.catalog.catalog import Catalog
from interlock.catalog.routes import Route
from interlock.core.audit_record import AuditRecord, digest_of
from interlock.core.calls.call import OK, PARKED_MAX, REFUSED, Call, CallLink, Outcome, Timing
from interlock.core.calls.caller import AnswerReceiver, ClientRequest, refuse_question
from interlock.core.clock import Clock
from interlock.core.recorder import LARGE_BYTES, Recorder
from interlock.guard.budgets import Budgets
from interlock.links.keeper import Keeper, ServerKeeper
from interlock.links.subscriptions import Heard
from interlock.mcp import mrtr
from interlock.mcp.meta import RAW_EMPTY, declares, find_missing_capability, may_be_asked, question_capability
from interlock.mcp.methods import ELICIT, LOG_RANK, META_CAPABILITIES, META_LOG_LEVEL, TOOLS_CALL, Era
from interlock.mcp.mrtr import QUESTIONS_MAX, RESUMABLE, ROUNDS_MAX, Question, Ticket, encode_input_required, seal
from interlock.process.limits import descriptor_limit
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Request, decode_array, decode_object, encode_result, error_body, find_string
from interlock.wire.refusal import (
    CALL_TIMEOUT,
    FORMS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    TOOL_DEGRADED,
    URL_ELICITATION_REQUIRED,
    Refusal,
)

PARKED_S: Final = 300.0  # how long a client may think
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024  # of questions, and of answers that came before their clients
EXPIRED_AT_ONCE: Final = 100  # of ten times a second: each is a message to its server
GATHER_S: Final = 0.01  # questions that come within this time reach the client in one round


class _Away(msgspec.Struct):
    """Receiver of a call's messages between the client's request and its retry. It stores the answer, and drops
    progress and log messages.

    It holds no references, so its call is freed at once if the client never returns.
    """

    message: bytes | None = None
    status: int = 200

    def emit(self, message: bytes) -> None:
        pass

    def answer(self, message: bytes, status: int = 200) -> None:
        self.message, self.status = message, status

    def drop(self) -> None:
        pass


class Space(msgspec.Struct, eq=False):
    """Parked call with the questions that its client has not answered yet.

    It also keeps the server's answer if that arrives before the client returns.
    """

    call: Call
    handle: str  # by which its client names it, in the sealed state
    size: int = 0  # in bytes, of what is kept here
    round: int = 0
    expires_at: float = 0.0
    questions: dict[str, tuple[AnswerReceiver, bytes, Question]] = {}
    next_key: int = 0
    waiting: bool = False  # the client has been told and has not come back
    away: _Away = msgspec.field(default_factory=_Away)


class Parking:
    """Registry of the parked calls of a node, which wait until their clients retry with answers to a server's
    questions.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)  # parked calls end with the process, so does the key
        self.room = descriptor_limit() * 2 // 3  # the rest of the descriptors is for calls that are at work
        self.spaces: dict[str, Space] = {}
        self._of_call: dict[Call, Space] = {}
        self._of: dict[str, dict[str, Space]] = {}  # principal -> handle -> space, oldest first
        self._bytes = 0
        self._look_again = inf  # nothing expires before

    @property
    def waiting(self) -> int:
        """Return the number of parked calls, those that wait until their clients retry with answers."""
        return sum(space.waiting for space in self.spaces.values())

    # The server asks

    def asked(self, call: Call, link: AnswerReceiver, request: Request) -> None:
        """Record a question that a server asks during a call. The call then waits until its client retries with the
        answer.

        The question is declined if the client cannot be asked, or if a limit is reached.
        """
        capabilities = call.meta.get(META_CAPABILITIES, RAW_EMPTY)
        able = may_be_asked(capabilities, request.method, request.params)
        if call.method not in RESUMABLE or not able:
            call.open_dialogue().lacked = None if able else question_capability(request.method, request.params)
            refuse_question(link, request.id, f"the client of this call does not support {request.method}")
            return
        space = self._of_call.get(call)
        size = len(request.params)
        principal = call.caller.principal.name
        if self._bytes + size > PARKED_BYTES_MAX or (space is None and not self._make_room(principal)):
            refuse_question(link, request.id, "too many calls wait for their clients")
            return
        dialogue = call.open_dialogue()
        if space is None:
            space = self._of_call[call] = Space(call, secrets.token_urlsafe(16))
            dialogue.request_digest = _digest(call)
            self.spaces[space.handle] = self._of.setdefault(principal, {})[space.handle] = space
        if len(space.questions) >= QUESTIONS_MAX:
            refuse_question(link, request.id, f"more than {QUESTIONS_MAX} questions at once")
            return
        dialogue.lacked = None  # it goes on without what it asked for before
        space.next_key += 1
        space.questions[str(space.next_key)] = (link, request.id, Question(request.method, request.params))
        call.asking += 1
        self._count(space, size)
        if space.waiting:
            call.handler.suspend(call)
        elif not dialogue.is_gathering:
            dialogue.is_gathering = True
            asyncio.get_running_loop().call_later(GATHER_S, self._tell_gathered, space)

    def _make_room(self, principal: str) -> bool:
        """Make room for another waiting call of this principal. Return False if that is impossible.

        At the limit, a call of the principal with the most waiting calls is abandoned.
        """
        if len(self.spaces) < min(PARKED_MAX, self.room):
            return True
        most = max(self._of.values(), key=len, default={})
        if len(most) <= len(self._of.get(principal, ())) + 1:
            return False
        if (space := next((space for space in most.values() if space.waiting), None)) is None:
            return False
        self._abandon(space, "it gave way to another client's call")
        return True

    def _count(self, space: Space, size: int) -> None:
        space.size += size
        self._bytes += size

    def _tell_gathered(self, space: Space) -> None:
        space.call.open_dialogue().is_gathering = False
        if space.questions and not space.waiting and not space.call.done:
            self._send_questions(space)

    def withdrawn(self, call: Call, upstream_id: bytes) -> None:
        """Remove a question whose answer the server no longer wants."""
        if (space := self._of_call.get(call)) is not None:
            for key, (_, theirs, question) in list(space.questions.items()):
                if theirs == upstream_id:
                    del space.questions[key]
                    call.asking -= 1
                    self._count(space, -len(question.params))
            if not space.questions:
                call.handler.resume(call)  # its server is at work again, and may ask anew

    def _send_questions(self, space: Space) -> None:
        """Answer the client with the open questions, and with the state that it must send back when it retries the
        request.
        """
        call = space.call
        space.round += 1
        space.waiting = True
        space.expires_at = self._clock.now() + PARKED_S
        self._look_again = min(self._look_again, space.expires_at)
        sink, call.sink = call.sink, space.away
        call.handler.suspend(call)
        if call.ticket is not None:
            # The server has the request and it is never sent again: keep only the digest for the record.
            call.ticket = call.wished = None
            call.params = {"arguments": digest_of(call.params.get("arguments"))}
        digest, until = call.open_dialogue().request_digest, self._clock.wall() + PARKED_S
        state = seal(Ticket(space.handle, space.round, call.caller.principal.name, digest, until), self._key)
        questions = {key: question for key, (_, _, question) in space.questions.items()}
        sink.answer(encode_result(call.client_id, encode_input_required(questions, state)))

    # The client comes back

    def resume(self, request: ClientRequest) -> Call | Refusal | None:
        """Continue the waiting call to which a client's retry belongs, or return a refusal of the retry.

        Return None if the request continues no call of this node: it has no state, this node did not issue the state,
        or the state belongs to a page that the user had to visit. The request is then a new call.
        """
        caller, params = request.caller, request.params
        raw = params.get("requestState")
        state = find_string(raw) if raw is not None else None
        if state is None or not mrtr.is_ours(state):
            return None
        if (ticket := mrtr.unseal_untrusted(state, self._key)) is None:
            return None  # made by a node below, or changed: the server of the request decides
        foreign = ticket.digest != b"" and ticket.digest != mrtr.request_digest(request.method, params)
        if ticket.principal != caller.principal.name or foreign:
            return _refusal("state_foreign", "this requestState belongs to another request")
        if self._clock.wall() > ticket.expires_at:
            return _refusal("state_expired", "this requestState has expired; send the request again")
        if not ticket.handle:
            params.pop("inputResponses", None)
            params.pop("requestState", None)
            return None
        space = self.spaces.get(ticket.handle)
        if space is None or not space.waiting or space.round != ticket.round:
            return _refusal("state_used", "this requestState was used already; send the request again")
        call = space.call
        space.waiting = False
        call.return_to(request)
        call.handler.resume(call)
        responses = decode_object(params["inputResponses"]) if "inputResponses" in params else {}
        answers = []
        for key, answer in (responses or {}).items():
            if key in space.questions and bytes(answer)[:1] == b"{":  # a result is an object; else it is asked again
                link, upstream_id, question = space.questions.pop(key)
                call.asking -= 1
                self._count(space, -len(question.params))
                answers.append((link, upstream_id, b'"result":' + bytes(answer)))
        _answer_after(call.handler.prepare_server(call), call, answers)
        if call.done:
            self._deliver(space, request)
        elif space.questions:  # not all was answered: ask again
            self._send_questions(space)
        return call

    def _deliver(self, space: Space, request: ClientRequest) -> None:
        """Answer a client's retry with the reply that the server sent before the client retried."""
        client_id = request.client_id
        self._forget(space)
        try:
            response = codec.decode_untrusted(space.away.message or b"")
        except codec.CodecError:
            response = None
        if not isinstance(response, codec.Response):
            return
        if response.error:
            answer = codec.encode_error(client_id, response.error)
        else:
            answer = encode_result(client_id, response.result)
        request.sink.answer(answer, space.away.status)

    # Endings

    def ended(self, call: Call) -> None:
        """Decline the open questions of a call that was answered or cancelled.

        The answer to a parked call is kept until its client returns.
        """
        if (space := self._of_call.get(call)) is None:
            return
        questions, space.questions = space.questions, {}
        for link, upstream_id, _ in questions.values():
            refuse_question(link, upstream_id, "the call of this question has ended")
        answer = space.away.message
        if not (space.waiting and answer is not None):
            self._forget(space)
        else:
            self._count(space, len(answer) - space.size)

    def sweep(self, now: float) -> None:
        if now < self._look_again:
            return
        waiting = [space for space in self.spaces.values() if space.waiting]
        expired = [space for space in waiting if space.expires_at <= now]
        for space in expired[:EXPIRED_AT_ONCE]:
            self._abandon(space, "the client did not come back")
        if len(expired) <= EXPIRED_AT_ONCE:
            self._look_again = min((space.expires_at for space in waiting if space.expires_at > now), default=inf)

    def _abandon(self, space: Space, reason: str) -> None:
        self._forget(space)
        space.call.cancel(reason)

    def _forget(self, space: Space) -> None:
        if self.spaces.pop(space.handle, None) is None:
            return
        self._count(space, -space.size)
        del self._of_call[space.call]
        principal = space.call.caller.principal.name
        del self._of[principal][space.handle]
        if not self._of[principal]:
            del self._of[principal]

    # A legacy server that refuses until a page was visited

    def url_required(self, call: Call, error: Raw) -> tuple[bytes, int] | None:
        """Translate a legacy server's demand to visit a web page (error -32042) for a modern client. Return None for
        any other error.
        """
        members = decode_object(error) or {}
        if bytes(members.get("code", b"")) != str(FORMS[URL_ELICITATION_REQUIRED].number).encode():
            return None
        data = decode_object(members["data"]) if "data" in members else None
        wanted = decode_array(data["elicitations"]) if data is not None and "elicitations" in data else None
        if not wanted or call.method not in RESUMABLE:
            return None
        if not declares(call.meta.get(META_CAPABILITIES, RAW_EMPTY), "elicitation", "url"):
            lacked: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
            refusal = Refusal(MISSING_CAPABILITY, "the server needs the client to open a page", lacked)
            return codec.encode_error(call.client_id, error_body(refusal)), refusal.mcp_status
        return self._visit(call, wanted[:QUESTIONS_MAX], _digest(call)), 200

    def ask_to_visit(self, call: Call, elicitation: dict[str, str]) -> bytes | None:
        """Return an answer that asks the client's user to visit a page of this node, or None if the client does not
        support that.
        """
        able = declares(call.meta.get(META_CAPABILITIES, RAW_EMPTY), "elicitation", "url")
        if not able or call.method not in RESUMABLE:
            return None
        # Nothing waits here: the retry is a call like any other.
        return self._visit(call, [Raw(codec.encode_value(elicitation))], b"")

    def _visit(self, call: Call, pages: list[Raw], digest: bytes) -> bytes:
        questions = {str(number): Question(ELICIT, raw) for number, raw in enumerate(pages, 1)}
        ticket = Ticket("", 0, call.caller.principal.name, digest, self._clock.wall() + PARKED_S)
        return encode_result(call.client_id, encode_input_required(questions, seal(ticket, self._key)))


def _digest(call: Call) -> bytes:
    """Return the digest of a request as the client sent it. It identifies the request, because a retry must have the
    same content.
    """
    digest = call.dialogue.request_digest if call.dialogue is not None else b""
    return digest if digest or call.wished is None else mrtr.request_digest(call.method, call.as_wished())


def _answer_after(
    first: asyncio.Future[Any] | None, call: Call, answers: list[tuple[AnswerReceiver, bytes, bytes]]
) -> None:
    if first is not None:
        first.add_done_callback(lambda _: _answer_after(None, call, answers))
    else:
        for link, upstream_id, answer in answers:
            if not call.done:
                link.respond(upstream_id, answer)
            else:
                refuse_question(link, upstream_id, "the call of this question has ended")


def _refusal(reason: str, message: str) -> Refusal:
    return Refusal(INVALID_PARAMS, message, {"reason": reason})


# A server that asks nothing and only wants its state back waits for something: the request is sent again, but not at
# once.
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 0.25
_RESULT: Final = b'"result":'


class Interview:
    """Round of a modern server's questions to a legacy client. It collects the answers, and then sends the call again
    with them.
    """

    def __init__(self, call: Call, wanted: mrtr.InputRequired) -> None:
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
            reason = f"the server asked more than {ROUNDS_MAX} times"
            if channel is None:
                reason = "the client cannot be asked"
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
                params = decode_object(question.params) if question.method == ELICIT else None
                # 2025-11-25 requires an id for each page that the user should visit; 2026-07-28 has no such id.
                if params is not None and find_string(params.get("mode")) == "url" and "elicitationId" not in params:
                    with_id = {**params, "elicitationId": secrets.token_urlsafe(16)}
                    question = Question(ELICIT, Raw(codec.encode_value(with_id)))
                channel.ask(self, name, question.method, question.params, call.sink)

    def respond(self, upstream_id: bytes, payload: bytes) -> None:
        """Handle the client's answer to one question."""
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
        if (channel := self._call.caller.channel) is not None:
            for name in self._open.values():
                channel.withdraw(self, name, RAW_EMPTY)

    def _on_unanswered(self, why: str) -> None:
        """End the call, because its client refused or failed to answer a question."""
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


SERVER_MESSAGE_CHARS_MAX: Final = 1000  # of a server's message in our own; the data has all of it
SWEEP_S: Final = 0.1  # shorter than the time of any latency class: no deadline is set and passed between two sweeps
_SWEEP_MIN_S: Final = 0.002  # a loop may wake a little early
_FAILURES: Final = (Outcome.ERROR, Outcome.LOST, Outcome.NOT_SENT, Outcome.TIMEOUT)


@dataclass(eq=False)
class CallsUnderWay:
    """Registry of the calls that were sent or wait to be sent. It also has the methods that calls use
    until they end.
    """

    catalog: Catalog
    keepers: Mapping[str, Keeper]
    recorder: Recorder
    clock: Clock
    budgets: Budgets
    latency_meta: bool
    calls: set[Call] = field(default_factory=set)
    total: int = 0
    failed: int = 0
    _sweeping: bool = False

    def __post_init__(self) -> None:
        self.timing: Timing | None = self._write_latency if self.latency_meta else None
        self.parking = Parking(self.clock)

    def register(self, call: Call, link: CallLink) -> None:
        """Add a call that is about to be sent: count it against the capacity of its link, and watch its deadline."""
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
        keeper = self.keepers.get(link.segment) if level in LOG_RANK else None
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
                call.deadline = self.clock.now() + call.timeout_s

    def interview_client(self, call: Call, result: Raw) -> bool:
        if b'"input_required"' not in bytes(result) or call.method not in RESUMABLE:
            return False
        if (wanted := mrtr.read_input_required(result)) is None:
            return False
        refusal: Refusal | None = None
        if isinstance(wanted, str):
            refusal = Refusal(INTERNAL_ERROR, f"the server's question is malformed: {wanted}")
        elif call.link is not None and self.budgets.is_enforced:
            refusal = self.budgets.charge_questions(call.link, call.caller, len(wanted.questions))
        if refusal is not None:
            call.on_failed(refusal, Outcome.ERROR)
        elif isinstance(wanted, mrtr.InputRequired):
            Interview(call, wanted).start()
        return True

    def ask_consent(self, call: Call, server: str, url: str, consent_id: str) -> None:
        message = f"{server} takes calls of yours once you have agreed on this page. Open it, then call again."
        page = {"mode": "url", "url": url, "message": message}
        caller = call.caller
        if caller.era is Era.MODERN:
            if (answer := self.parking.ask_to_visit(call, page)) is not None:
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

    @staticmethod
    def _find_missing_capability(call: Call, message: str | None, outcome: dict[str, Raw]) -> tuple[bytes, int] | None:
        """Return an encoded error and its HTTP status if a call failed because its client lacks a capability.

        Return None for any other failure.

        The server failed because it asked something that the client cannot answer, or because it knew that it could not
        ask.
        """
        lacked: dict[str, Any] | None = call.dialogue.lacked if call.dialogue is not None else None
        lacked = lacked or find_missing_capability(message or "", call.meta.get(META_CAPABILITIES, RAW_EMPTY))
        if lacked is None:
            return None
        reason = (message or "no reason given")[:SERVER_MESSAGE_CHARS_MAX]
        why = f"the server asked for what the client lacks, and failed: {reason}"
        refusal = Refusal(MISSING_CAPABILITY, why, {"requiredCapabilities": lacked, **outcome})
        return codec.encode_refusal(call.client_id, refusal), refusal.mcp_status

    # The end of a call

    def _write_latency(self, call: Call, result: bytes) -> bytes:
        """Write into a result how long its call took, as measured at this node (MCP-AX 7.2)."""
        since = call.started if call.forwarded is None else call.forwarded
        return with_latency(result, int((self.clock.now() - since) * 1000))

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
        seconds = self.clock.now() - call.started
        self.total += 1
        if (booked := call.booked) is not None:
            booked.booked -= 1
            if booked.on_room is not None:
                booked.on_room()
        if (link := call.link) is not None:
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
        self.recorder.add(
            AuditRecord(
                self.clock.wall() - seconds,
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
            self.recorder.hurry()

    def end_waiting(self, refusal: Refusal) -> None:
        """End all calls that have no deadline, with this refusal. Their clients can repeat them."""
        for call in [call for call in self.calls if call.waits_forever]:
            if call.link is not None:
                call.link.cancel(call, refusal.message)
            call.on_failed(refusal, Outcome.CANCELLED)

    def _sweep(self) -> None:
        now = self.clock.now()
        for call in [call for call in self.calls if call.deadline <= now]:
            if call.progressed or call.asking:  # progress restarts the clock; a question to a person stops it
                call.progressed = False
                call.deadline = now + (call.timeout_s or 0)
                continue
            namespace = self.catalog.namespace
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
    """Return how many seconds to wait before looking for overdue calls again.

    The bounds are narrow because an outer hop waits only 50 ms longer than an inner hop, and the inner hop must time
    out first.
    """
    due = min((call.deadline for call in calls), default=inf) - now
    return min(SWEEP_S, max(due, _SWEEP_MIN_S))
