"""Parked calls of 2026-07-28 clients at legacy servers that ask in mid-call.

Theory of operation. The client is answered `input_required` with the questions and a state, and the call is parked. Its
retry brings the answers with the state, and resumes the call. The call stays under way at the server meanwhile.

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
from collections.abc import Callable
from math import inf
from typing import Any, Final

from msgspec import Raw

from interlock.core.audit_record import digest_of
from interlock.core.calls.call import PARKED_MAX, Call
from interlock.core.calls.caller import AnswerReceiver, ClientRequest
from interlock.core.clock import Clock
from interlock.mcp.capabilities import declares, may_be_asked, question_capability
from interlock.mcp.meta import RAW_EMPTY
from interlock.mcp.methods import ELICIT, META_CAPABILITIES
from interlock.mcp.mrtr import (
    QUESTIONS_MAX,
    RESUMABLE,
    Question,
    Ticket,
    encode_input_required,
    is_ours,
    request_digest,
    seal,
    unseal_untrusted,
)
from interlock.process.limits import descriptor_limit
from interlock.wire.jsonrpc.codec import (
    CodecError,
    Request,
    Response,
    decode_array,
    decode_object,
    decode_untrusted,
    encode_error,
    encode_result,
    encode_value,
    error_body,
    find_string,
)
from interlock.wire.refusal import (
    FORMS,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    URL_ELICITATION_REQUIRED,
    Refusal,
)

PARKED_S: Final = 300.0  # how long a client may think
PARKED_BYTES_MAX: Final = 256 * 1024 * 1024  # of questions, and of answers that came before their clients
EXPIRED_AT_ONCE: Final = 100  # of ten times a second: each is a message to its server
GATHER_S: Final = 0.01  # questions that come within this time reach the client in one round


class _Away:
    """Sink of a parked call while its client is away. It keeps the answer and drops progress and logs.

    It holds no references, so its call is freed at once if the client never returns.
    """

    __slots__ = ("message", "status")

    def __init__(self) -> None:
        self.message: bytes | None = None
        self.status = 200

    def emit(self, message: bytes) -> None:
        pass

    def answer(self, message: bytes, status: int = 200) -> None:
        self.message, self.status = message, status

    def drop(self) -> None:
        pass


class Space:
    """Parked call with its open questions.

    It also keeps the server's answer if that arrives before the client returns.
    """

    __slots__ = ("away", "bytes", "call", "expires_at", "next_key", "questions", "round", "waiting")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.bytes = 0  # of what is kept here
        self.round = 0
        self.expires_at = 0.0
        self.questions: dict[str, tuple[AnswerReceiver, bytes, Question]] = {}
        self.next_key = 0
        self.waiting = False  # the client has been told and has not come back
        self.away = _Away()


Later = Callable[[float, Callable[[], None]], object]


class Parking:
    """Registry of the parked calls of a node."""

    def __init__(self, clock: Clock, later: Later | None = None) -> None:
        self._clock = clock
        self._later = later or (lambda seconds, then: asyncio.get_running_loop().call_later(seconds, then))
        self._key = secrets.token_bytes(32)  # parked calls end with the process, so does the key
        self.room = descriptor_limit() * 2 // 3  # the rest of the descriptors is for calls that are at work
        self.spaces: dict[str, Space] = {}
        self._handles: dict[Call, str] = {}
        self._of: dict[str, dict[str, Space]] = {}  # principal -> handle -> space, oldest first
        self._bytes = 0
        self._look_again = inf  # nothing expires before

    @property
    def waiting(self) -> int:
        """Return how many calls wait for their clients to return."""
        return sum(space.waiting for space in self.spaces.values())

    # The server asks

    def asked(self, call: Call, link: AnswerReceiver, request: Request) -> None:
        """Record a server's question and park its call.

        The question is declined if the client cannot be asked, or if a limit is reached.
        """
        capabilities = call.meta.get(META_CAPABILITIES, RAW_EMPTY)
        able = may_be_asked(capabilities, request.method, request.params)
        if call.method not in RESUMABLE or not able:
            call.open_dialogue().lacked = None if able else question_capability(request.method, request.params)
            _decline(link, request.id, f"the client of this call does not support {request.method}")
            return
        handle = self._handles.get(call)
        space = self.spaces.get(handle) if handle is not None else None
        size = len(request.params)
        if self._bytes + size > PARKED_BYTES_MAX or (space is None and not self._make_room(call.caller.principal.name)):
            _decline(link, request.id, "too many calls wait for their clients")
            return
        if space is None:
            handle, space = secrets.token_urlsafe(16), Space(call)
            call.open_dialogue().request_digest = _digest(call)
            self.spaces[handle] = space
            self._handles[call] = handle
            self._of.setdefault(call.caller.principal.name, {})[handle] = space
        if len(space.questions) >= QUESTIONS_MAX:
            _decline(link, request.id, f"more than {QUESTIONS_MAX} questions at once")
            return
        dialogue = call.open_dialogue()
        dialogue.lacked = None  # it goes on without what it asked for before
        space.next_key += 1
        space.questions[str(space.next_key)] = (link, request.id, Question(request.method, request.params))
        call.asking += 1
        self._count(space, size)
        if space.waiting:
            call.handler.suspend(call)
        elif not dialogue.is_gathering:
            dialogue.is_gathering = True
            self._later(GATHER_S, lambda: self._on_gathered(handle or "", space))

    def _make_room(self, principal: str) -> bool:
        """Make room for another waiting call of this principal. Return False if that is impossible.

        At the limit, a call of the principal with the most waiting calls is abandoned.
        """
        if len(self.spaces) < min(PARKED_MAX, self.room):
            return True
        most = max(self._of.values(), key=len, default={})
        if len(most) <= len(self._of.get(principal, ())) + 1:
            return False
        handle = next((handle for handle, space in most.items() if space.waiting), None)
        if handle is None:
            return False
        self._abandon(handle, most[handle], "it gave way to another client's call")
        return True

    def _count(self, space: Space, size: int) -> None:
        space.bytes += size
        self._bytes += size

    def _on_gathered(self, handle: str, space: Space) -> None:
        space.call.open_dialogue().is_gathering = False
        if space.questions and not space.waiting and not space.call.done:
            self._tell(handle, space)

    def withdrawn(self, call: Call, upstream_id: bytes) -> None:
        """Remove a question whose answer the server no longer wants."""
        space = self.spaces.get(self._handles.get(call, ""))
        if space is not None:
            for key, (_, theirs, question) in list(space.questions.items()):
                if theirs == upstream_id:
                    del space.questions[key]
                    call.asking -= 1
                    self._count(space, -len(question.params))
            if not space.questions:
                call.handler.resume(call)  # its server is at work again, and may ask anew

    def _tell(self, handle: str, space: Space) -> None:
        """Answer the client with the open questions and the state that its retry must contain."""
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
        state = seal(Ticket(handle, space.round, call.caller.principal.name, digest, until), self._key)
        questions = {key: question for key, (_, _, question) in space.questions.items()}
        sink.answer(encode_result(call.client_id, encode_input_required(questions, state)))

    # The client comes back

    def resume(self, request: ClientRequest) -> Call | Refusal | None:
        """Resume the call that a retry belongs to, or return the refusal of the retry.

        Return None if the request continues no call of this node: it has no state, this node did not issue the state,
        or the state belongs to a page that the user had to visit. The request is then a new call.
        """
        caller, params = request.caller, request.params
        raw = params.get("requestState")
        state = find_string(raw) if raw is not None else None
        if state is None or not is_ours(state):
            return None
        ticket = unseal_untrusted(state, self._key)
        if ticket is None:
            return None  # made by a node below, or changed: the server of the request decides
        foreign = ticket.digest != b"" and ticket.digest != request_digest(request.method, params)
        if ticket.principal != caller.principal.name or foreign:
            return _refusal("state_foreign", "this requestState belongs to another request")
        if self._clock.wall() > ticket.expires_at:
            return _refusal("state_expired", "this requestState has expired; send the request anew")
        if not ticket.handle:
            params.pop("inputResponses", None)
            params.pop("requestState", None)
            return None
        space = self.spaces.get(ticket.handle)
        if space is None or not space.waiting or space.round != ticket.round:
            return _refusal("state_used", "this requestState was used already; send the request anew")
        handle, call = ticket.handle, space.call
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
            self._deliver(handle, space, request)
        elif space.questions:  # not all was answered: ask again
            self._tell(handle, space)
        return call

    def _deliver(self, handle: str, space: Space, request: ClientRequest) -> None:
        """Answer a retry with the answer that the server gave before the client returned."""
        client_id = request.client_id
        self._forget(handle, space)
        try:
            response = decode_untrusted(space.away.message or b"")
        except CodecError:
            response = None
        if isinstance(response, Response):
            again = (
                encode_error(client_id, response.error) if response.error else encode_result(client_id, response.result)
            )
            request.sink.answer(again, space.away.status)

    # Endings

    def ended(self, call: Call) -> None:
        """Decline the open questions of a call that was answered or cancelled.

        The answer to a parked call is kept until its client returns.
        """
        handle = self._handles.get(call)
        space = self.spaces.get(handle) if handle is not None else None
        if handle is None or space is None:
            return
        questions, space.questions = space.questions, {}
        for link, upstream_id, _ in questions.values():
            _decline(link, upstream_id, "the call of this question has ended")
        answer = space.away.message
        if not (space.waiting and answer is not None):
            self._forget(handle, space)
        else:
            self._count(space, len(answer) - space.bytes)

    def sweep(self, now: float) -> None:
        if now < self._look_again:
            return
        waiting = [(handle, space) for handle, space in self.spaces.items() if space.waiting]
        expired = [(handle, space) for handle, space in waiting if space.expires_at <= now]
        for handle, space in expired[:EXPIRED_AT_ONCE]:
            self._abandon(handle, space, "the client did not come back")
        if len(expired) <= EXPIRED_AT_ONCE:
            self._look_again = min((space.expires_at for _, space in waiting if space.expires_at > now), default=inf)

    def _abandon(self, handle: str, space: Space, reason: str) -> None:
        self._forget(handle, space)
        space.call.cancel(reason)

    def _forget(self, handle: str, space: Space) -> None:
        if self.spaces.pop(handle, None) is None:
            return
        self._count(space, -space.bytes)
        self._handles.pop(space.call, None)
        principal = space.call.caller.principal.name
        theirs = self._of[principal]
        del theirs[handle]
        if not theirs:
            del self._of[principal]

    # A legacy server that refuses until a page was visited

    def url_required(self, call: Call, error: Raw) -> tuple[bytes, int] | None:
        """Translate error -32042 of 2025-11-25 for a 2026-07-28 client. Return None for any other error."""
        members = decode_object(error) or {}
        if bytes(members.get("code", b"")) != str(FORMS[URL_ELICITATION_REQUIRED].number).encode():
            return None
        data = decode_object(members["data"]) if "data" in members else None
        wanted = decode_array(data["elicitations"]) if data is not None and "elicitations" in data else None
        if not wanted or call.method not in RESUMABLE:
            return None
        if not declares(call.meta.get(META_CAPABILITIES, RAW_EMPTY), "elicitation", "url"):
            refusal = Refusal(
                MISSING_CAPABILITY,
                "the server needs the client to open a page",
                {"requiredCapabilities": {"elicitation": {"url": {}}}},
            )
            return encode_error(call.client_id, error_body(refusal)), refusal.mcp_status
        return self._visit(call, wanted[:QUESTIONS_MAX], _digest(call)), 200

    def ask_to_visit(self, call: Call, elicitation: dict[str, str]) -> bytes | None:
        """Return an answer that asks the client's user to visit a page of this node, or None if the client does not
        support that.
        """
        able = declares(call.meta.get(META_CAPABILITIES, RAW_EMPTY), "elicitation", "url")
        if not able or call.method not in RESUMABLE:
            return None
        return self._visit(
            call, [Raw(encode_value(elicitation))], b""
        )  # nothing waits: the retry is a call like any other

    def _visit(self, call: Call, pages: list[Raw], digest: bytes) -> bytes:
        questions = {str(number): Question(ELICIT, raw) for number, raw in enumerate(pages, 1)}
        ticket = Ticket("", 0, call.caller.principal.name, digest, self._clock.wall() + PARKED_S)
        return encode_result(call.client_id, encode_input_required(questions, seal(ticket, self._key)))


def _digest(call: Call) -> bytes:
    """Return the digest of what a retry must repeat: the request as its client sent it."""
    digest = call.dialogue.request_digest if call.dialogue is not None else b""
    if digest or call.wished is None:
        return digest
    return request_digest(call.method, call.as_wished())


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
                _decline(link, upstream_id, "the call of this question has ended")


def _decline(link: AnswerReceiver, upstream_id: bytes, why: str) -> None:
    link.respond(upstream_id, b'"error":' + error_body(Refusal(METHOD_NOT_FOUND, why)))


def _refusal(reason: str, message: str) -> Refusal:
    return Refusal(INVALID_PARAMS, message, {"reason": reason})
