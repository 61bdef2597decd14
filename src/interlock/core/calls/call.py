"""Calls in flight: what waits for a server's answer, and how the answer finds its way back.

`Pending` is what a link keeps per request it sent. `Call` is a client's call; `Inquiry` is a question of the link
itself (handshake, lists). A call ends exactly once, whatever arrives later.

A call is used by packages that build on each other, so it names here what it needs of them: `CallLink` is the part of
a link that calls use (`links`), `CallRoute` that of a route (`catalog`), `CallHold` what keeps a call back (`gate`,
`rooms`, `aql`), and `CallHandler` what serves it until it ends (`dispatch`). A failure inside the node ends a call with
an internal error whose reference is in the log.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from enum import Enum
from math import inf
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.ax.protocol.budget import Price
from interlock.ax.protocol.hop_metadata import ADOPTED, Offer
from interlock.core.calls.caller import AnswerReceiver, Caller, ClientRequest, Sink, refuse_question
from interlock.core.calls.check import Account, Admitted, Charge, Check, CheckRefusal, Release
from interlock.core.link_state import Standing
from interlock.gate.protocol.reserved_claims import DIGEST_MARK, ESCAPE_MARK, META_MARK, without_claims
from interlock.mcp import results
from interlock.mcp.meta import PROGRESS_TOKEN
from interlock.mcp.methods import LOG_MESSAGE, LOG_RANK, META_LOG_LEVEL, MODERN, NAMED_BY, PROGRESS, Era
from interlock.mcp.results import LARGE_BYTES, ResultFacts, find_result_facts
from interlock.wire.jsonrpc import codec
from interlock.wire.jsonrpc.codec import Notification, Request, Response, decode_object, encode_result, find_string
from interlock.wire.refusal import FORMS, INTERNAL_ERROR, METHOD_NOT_FOUND, Refusal, find_code

PARKED_MAX: Final = 20_000  # calls that wait for an answer of their clients


class Outcome(Enum):
    """The outcome of a call, as the audit log records it."""

    OK = "ok"
    TOOL_ERROR = "tool_error"  # a result with isError
    ERROR = "error"  # a JSON-RPC error of the server
    REFUSED = "refused"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"  # the link went away; what the server did is unknown
    NOT_SENT = "not_sent"  # the link went away before; the server did nothing


OK: Final = Outcome.OK  # names of their own, as in `protocol.mcp.eras`
REFUSED: Final = Outcome.REFUSED


class Pending(Protocol):
    """A request that a link has sent and whose response it awaits."""

    upstream_id: int
    handle: object

    def on_response(self, response: Response, era: Era) -> None:
        """Handle the response, which ends the request."""

    def on_failed(self, fault: Refusal, outcome: Outcome) -> None:
        """Handle a failure of the link, which ends the request without a response."""

    def on_progress(self, params: dict[str, Raw]) -> None:
        """Handle a progress notification of the server for this request."""

    def on_log(self, params: Raw) -> None:
        """Handle a log message that the server sent for this request."""

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        """Handle a question that the server asks while it works on this request."""


class CallHandler(Protocol):
    """The operations of the dispatcher that a call uses."""

    timing: "Timing | None"

    def finish(self, call: "Call", outcome: Outcome) -> None:
        """Free the resources of a call, and record its outcome."""

    def ask_client(self, call: "Call", link: AnswerReceiver, request: Request) -> None:
        """Ask a modern client a question on behalf of the legacy server that works on its call."""

    def withdraw_question(self, call: "Call", upstream_id: bytes) -> None:
        """Withdraw a question that the server no longer wants answered."""

    def prepare_server(self, call: "Call") -> asyncio.Future[Any] | None:
        """Send the server the settings of the call's client, such as its log level, before a waiting call continues.
        The client may have changed them meanwhile.

        Return a future that must be done before the call continues, or None if the call can continue at once.
        """

    def suspend(self, call: "Call") -> None:
        """Suspend a call that waits for its client.

        Until it is resumed it uses no capacity of its server and has no deadline.
        """

    def resume(self, call: "Call") -> None:
        """Resume a suspended call."""

    def interview_client(self, call: "Call", result: Raw) -> bool:
        """Ask a legacy client the questions that a modern server's result contains.

        Return False if it contains none.
        """

    def ask_consent(self, call: "Call", server: str, url: str, consent_id: str) -> None:
        """End a call by sending its client the URL of a page. There the user can allow the node to use the server on
        their behalf.
        """

    def translate_error(self, call: "Call", error: Raw) -> tuple[bytes, int] | None:
        """Translate a legacy server's error into the form that a modern client expects.

        Returns the whole message and its status, or None if the error stays as it is.
        """

    def translate_failure(self, call: "Call", result: Raw) -> tuple[bytes, int] | None:
        """Translate a result that reports a failed tool into the error that a modern client expects. Return None if the
        result stays as it is.
        """


Timing = Callable[["Call", bytes], bytes]  # writes into a result how long it took (MCP-AX 7.2)


class AccessList(Protocol):
    """The principals that may use a restricted link, such as the link of a room."""

    @property
    def name(self) -> str:
        """Return a name for the members of this list. Lists with the same members have the same name."""

    def admits(self, principal: str) -> bool:
        """Return whether the principal can see the link."""

    def find_refusal(self, principal: str) -> Refusal | None:
        """Return why a principal that sees the link may not call over it, or None if calls are allowed."""


LATENCIES_MAX: Final = 100  # calls of which a link remembers how long they took


class CallLink:
    """The part of a link to a server that calls, the guard and budgets use: its state, its load and its budget.

    The complete link is `links.link.Link`.
    """

    account: Account | None = None  # the budget of a registration
    members: AccessList | None = None  # None: everybody may use it

    def __init__(self, segment: str, offer: Offer, standing: Standing) -> None:
        self.segment = segment
        self.offer = offer
        self.standing = standing
        self.booked = 0  # clients' calls under way; the link's own questions do not count
        self.on_room: Callable[[], None] | None = None  # serves the next call that waits for this link, if one waits
        self.errors = 0
        self.latencies: deque[float] = deque(maxlen=LATENCIES_MAX)

    def cancel(self, pending: Pending, reason: str) -> None:
        """Cancel a request at the server, because no call waits for its response any more."""

    def send_again(self, call: "Call") -> None:
        """Send the same call again, with the answers that its client gave to the server's questions."""

    def suspend(self, call: "Call") -> None:
        """Record that the server waits for the call's client to answer."""

    def resume(self, call: "Call") -> None:
        """Record that the client has answered and the server works on the call again."""


class CallRoute(Protocol):
    """The route from a tool's name to its server, as calls use it. The complete class is `catalog.routes.Route`."""

    @property
    def qualified(self) -> str: ...

    @property
    def link(self) -> CallLink: ...

    @property
    def price(self) -> Price:
        """Return how much a call over this route costs in budgets."""

    @property
    def offered_digest(self) -> str:
        """Return the digest of the tool's definition as the server lists it now (MCP-AX 11.3)."""

    @property
    def is_held(self) -> bool:
        """Return whether this node holds each call over this route until a person approves it."""

    @property
    def gated(self) -> bool:
        """Return whether a person must approve each call, either at this node or at a node below it."""

    @property
    def refusal(self) -> Refusal | None:
        """Return the refusal that the registry of names gives to every call over this route, or None."""

    @property
    def checks(self) -> tuple[Check[Any], ...]:
        """Return the guard's checks for calls over this route, in order.

        The tuple is empty if only the common checks apply.
        """


class Dialogue(msgspec.Struct, eq=False):
    """The questions that a server has asked the client during a call.

    Few servers ask questions, so a call has no dialogue until the first one.
    """

    questions: tuple[bytes, ...] = ()  # open, by the server's ids
    is_gathering: bool = False  # the server has just asked and may ask more
    lacked: dict[str, Any] | None = None  # the capability for a question that the client does not have
    request_digest: bytes = b""  # what a retry must repeat, once one is asked for
    rounds: int = 0  # of input_required
    abandon: Callable[[], None] | None = None  # withdraws the questions that a legacy client is being asked


CallFactory = Callable[..., "Call"]  # takes the first fields of a call, in their order


class CallHold(Protocol):
    """Interface of an object that holds a call until a person approves it. Afterwards it processes the answer of the
    call.

    A hold refers to the call only while one of its methods runs, so that neither keeps the other alive.
    """

    is_waiting: bool  # for a person; False once its approval is used

    @property
    def is_asked_first(self) -> bool:
        """Return whether the call still needs a person's approval before the client's request may be sent unchanged."""

    def identify(self, call: "Call") -> Refusal | None:
        """Compute the digest that identifies the request, so that an approval applies only to this request.

        Return a refusal if that is impossible.
        """
        return None

    def acknowledge(self, call: "Call") -> CheckRefusal | None:
        """Return a refusal if the caller itself must confirm this call first (MCP-AQL), otherwise None."""
        return None

    def find_refusal(self, call: "Call") -> CheckRefusal | None:
        """Return a refusal of the call if it follows without reading the store, otherwise None."""
        return None

    async def find_release(self, call: "Call") -> Release | CheckRefusal:
        """Return the approval that releases the call. If there is none, request one and return a refusal that tells the
        client to wait.
        """

    def on_sent(self, call: "Call") -> None:
        """Restore the client's request in the call, after it was replaced by the request that was sent."""
        return

    def note_claims(self, call: "Call", result: bytes) -> None:
        """Read what a result of an aggregator without a proved authority says about the hold of the call, before such
        claims are removed.
        """
        return

    def on_ended(self, call: "Call", outcome: Outcome, message: bytes) -> bytes:
        """Process the end of the call. Return the message that is sent to the client as the answer,
        usually `message`.
        """
        return message


class Call(msgspec.Struct, eq=False):
    """A client's call, from its creation until it is answered or cancelled.

    Only `_end` and `cancel` end a call. The first of them to run decides the outcome, and later ones have no effect.
    """

    caller: Caller
    client_id: bytes
    method: str
    params: dict[str, Any]
    meta: dict[str, Raw]
    sink: Sink
    started: float
    handler: CallHandler
    target: str = ""  # the qualified name, for people and the audit log
    timeout_s: float | None = None
    head: bytes = b""  # the routing headers of a 2026-07-28 server
    onward: dict[str, Raw] | None = None  # route and cursor (MCP-AX 7.2), where the server is an AX peer
    price: Price | None = None  # what it counts for in budgets; None: nothing
    route: CallRoute | None = None  # of a tool
    done: bool = False
    progressed: bool = False  # since the deadline was last set
    reason: str | None = None  # for the record: why it was refused or failed
    upstream_id: int = 0
    handle: object = None
    link: CallLink | None = None
    booked: CallLink | None = None  # the link whose room it takes
    ticket: "Admitted[Call] | None" = None  # what let it through, should the link have to send it again
    deadline: float = inf
    asking: int = 0  # questions to the client under way: no deadline meanwhile
    dialogue: Dialogue | None = None
    renewed: bool = False  # it was refused for its credential once, and sent again with another
    wished: Raw | None = None  # the name or URI as its client wrote it, where a retry may have to repeat it
    after: asyncio.Future[Any] | None = None  # what its server must have heard before it
    forwarded: float | None = None  # when it was sent, where that was not at once
    charge: Charge | None = None  # what it was charged
    hold: CallHold | None = None  # of a tool with a gate

    @property
    def waits_forever(self) -> bool:
        """Return whether the call has no deadline. This is the case for calls that can be repeated without loss."""
        return False

    def open_dialogue(self) -> Dialogue:
        """Return the dialogue of this call. Create it at the server's first question."""
        dialogue = self.dialogue
        if dialogue is None:
            dialogue = self.dialogue = Dialogue()
        return dialogue

    @property
    def progress_token(self) -> Raw | None:
        return self.meta.get(PROGRESS_TOKEN)

    def on_response(self, response: Response, era: Era) -> None:
        if self.done:
            return
        mine = self.caller.era
        if response.error:
            error = bytes(response.error)
            if era is not mine:
                instead = self.handler.translate_error(self, response.error) if mine is Era.MODERN else None
                if instead is not None:
                    self._end(instead[0], Outcome.ERROR, instead[1])
                    return
                if mine is Era.LEGACY:
                    error = results.error_to_legacy(response.error, self.method)
                elif self.caller.hop is None:  # links to AX peers keep the numbers of the leaf, and the draft's
                    error = results.error_to_modern(response.error)
            elif mine is Era.MODERN and self.caller.hop is None:
                # Behind an aggregator, a leaf may be of any era.
                below = self.link is not None and self.link.offer.is_aggregator
                to_modern = results.error_to_modern if below else results.find_modern_error
                error = to_modern(response.error) or error
            below = self.link is not None and self.link.offer.is_aggregator
            status = _status(error, is_of_node=below) if mine is Era.MODERN else 200
            self._end(codec.encode_error(self.client_id, error), Outcome.ERROR, status)
            return
        result, text = response.result, response.text or bytes(response.result)
        facts = find_result_facts(result, response.text) if len(text) > LARGE_BYTES else None
        # `find`, because `in` first takes what it looks for as a number, which costs more than most searches here.
        if facts is None:
            may_claim = (
                text.find(META_MARK) >= 0
                or text.find(DIGEST_MARK) >= 0
                or (text.find(b"\\") >= 0 and text.find(ESCAPE_MARK) >= 0)
            )
            is_typed = text.find(b'"resultType"') >= 0
            # Most results say only that they are no error; no string holds this member: its quotes would be escaped.
            may_fail = text.count(b'"isError"') != text.count(b'"isError":false')
        else:
            may_claim, is_typed, may_fail = facts.may_claim, facts.is_typed, facts.is_error
        if may_claim:
            text = self._without_claims(bytes(result))
            result = Raw(text)
        if era is not mine or (mine is MODERN and not is_typed):
            if facts is not None and not may_claim and self._end_large(result, facts):
                return
            if mine is Era.LEGACY and self.handler.interview_client(self, result):
                return
            if mine is Era.MODERN:
                brought = results.result_to_modern(result, self.method)
            else:
                brought = results.result_to_legacy(result)
            if isinstance(brought, Refusal):
                self.on_failed(brought, Outcome.ERROR)
                return
            result = Raw(brought)
        outcome = OK
        if may_fail and (facts is not None or _is_error(result)):
            outcome = Outcome.TOOL_ERROR
            if era is not mine and mine is MODERN:
                instead = self.handler.translate_failure(self, result)
                if instead is not None:
                    self._end(instead[0], outcome, instead[1])
                    return
        if self.handler.timing is not None:
            result = Raw(self.handler.timing(self, bytes(result)))
        self._end(encode_result(self.client_id, result), outcome, 200)

    def _end_large(self, result: Raw, facts: ResultFacts) -> bool:
        """Translate a large result to the client's protocol era and end the call with it. The result is copied only
        once.

        Return False, without ending the call, if more than the beginning of the result must change.
        """
        if facts.is_error or self.handler.timing is not None:
            return False
        if self.caller.era is MODERN:
            pieces = results.large_to_modern(result, self.method, facts.names)
        else:
            pieces = results.large_to_legacy(result, facts.names) if facts.is_complete else None
        if pieces is not None:
            self._end(codec.encode_result_pieces(self.client_id, pieces), OK, 200)
        return pieces is not None

    def _without_claims(self, result: bytes) -> bytes:
        """Return the result without metadata that only an authenticated aggregator may set, such as a demand for a
        person's approval.

        The gate itself reads the approval that a node below demands.
        """
        offer = self.link.offer if self.link is not None else ADOPTED
        is_aggregator = offer.is_aggregator and offer.proved
        if self.hold is not None and is_aggregator:
            return result
        if self.hold is not None and offer.is_aggregator:
            self.hold.note_claims(self, result)
        return without_claims(result, is_aggregator=is_aggregator)

    def on_failed(self, fault: Refusal, outcome: Outcome) -> None:
        if not self.done:
            self.reason = _reason(fault)
            was_not_sent = (fault.details or {}).get("outcome") == "not_sent"
            if outcome is Outcome.REFUSED or self.link is None or was_not_sent:
                self.refund()
            if was_not_sent and outcome is Outcome.LOST:
                outcome = Outcome.NOT_SENT
            self._end(self._encode_refusal(fault), outcome, 200)

    def answer(self, message: bytes, outcome: Outcome) -> None:
        """End the call with a message that this node has written."""
        if not self.done:
            self._end(message, outcome, 200)

    def refuse(self, fault: Refusal, status: int) -> None:
        """End the call with a refusal by this node."""
        self.reason = _reason(fault)
        self.refund()
        self._end(self._encode_refusal(fault), Outcome.REFUSED, status)

    def _encode_refusal(self, refusal: Refusal) -> bytes:
        draft = self.caller.era is Era.LEGACY or self.caller.hop is not None
        return codec.encode_refusal(self.client_id, refusal, draft=draft)

    def cancel(self, reason: str) -> None:
        """Cancel the call at its server and send no answer, because the client no longer wants it."""
        if self.done:
            return
        self.done = True
        if self.link is not None:
            self.link.cancel(self, reason)
        else:
            self.refund()
        self._let_go()
        self.sink.drop()
        self.handler.finish(self, Outcome.CANCELLED)
        if self.hold is not None:
            self.hold.on_ended(self, Outcome.CANCELLED, b"")

    def _end(self, message: bytes, outcome: Outcome, status: int) -> None:
        self.done = True
        self._let_go()
        if self.hold is not None:
            message = self.hold.on_ended(self, outcome, message)
        self.sink.answer(message, status)
        self.handler.finish(self, outcome)

    def argument_refusal(self) -> Refusal | None:
        """Return a refusal if the arguments break the contract of the tool, otherwise None. Without a contract, only
        the server checks arguments.
        """
        return None

    def availability_refusal(self) -> Refusal | None:
        """Return a refusal if the call has a choice of servers and none of them can handle it now. Otherwise return
        None.
        """
        return None

    def refund(self) -> None:
        """Return the charge to the budgets if the call was never sent (MCP-AX 11.4).

        A call whose server asked for more input was sent in the round before, so it is not refunded.
        """
        if self.charge is not None and (self.dialogue is None or not self.dialogue.rounds):
            self.charge.refund()
            self.charge = None

    def _let_go(self) -> None:
        self.ticket = self.handle = None  # they hold the call: without this every call would wait for the collector
        if self.dialogue is not None and self.dialogue.abandon is not None:
            self.dialogue.abandon()
            self.dialogue.abandon = None

    def on_progress(self, params: dict[str, Raw]) -> None:
        self.progressed = True
        token = self.progress_token
        if token is None or self.done:
            return
        params[PROGRESS_TOKEN] = token
        self.sink.emit(codec.encode_notification(PROGRESS.encode(), codec.encode_value(params)))

    def on_log(self, params: Raw) -> None:
        caller = self.caller
        if self.done:
            return
        # A modern client names its level with each request, a legacy one once for its session; without one, none.
        level = caller.log_level if caller.era is Era.LEGACY else find_string(self.meta.get(META_LOG_LEVEL))
        if level is None or not passes_level(params, level):
            return
        self.sink.emit(codec.encode_notification(LOG_MESSAGE.encode(), bytes(params)))

    def on_vendor_notification(self, notification: Notification, era: Era) -> None:
        """Pass on a notification that no revision of MCP defines, if the client uses the same protocol era.

        The notification has no meaning in the other era. Parents receive events through a different mechanism.
        """
        if not self.done and era is self.caller.era and self.caller.hop is None:
            method = codec.encode_value(notification.method)[1:-1]
            self.sink.emit(codec.encode_notification(method, bytes(notification.params)))

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        channel = self.caller.channel
        if self.done:
            refuse_question(link, request.id, f"the client of this call cannot be asked for {request.method}")
        elif channel is None:
            self.handler.ask_client(self, link, request)
        else:
            self.asking += 1
            channel.ask(link, request.id, request.method, request.params, self.sink)

    def send_only(self, params: dict[str, Any], meta: dict[str, Raw]) -> None:
        """Replace the params and `_meta` that are sent to the server for this call."""
        self.params, self.meta = params, meta

    def send_as(self, method: str, head: bytes, params: dict[str, Any], meta: dict[str, Raw]) -> None:
        """Replace the request that is sent to the server for this call."""
        self.method, self.head, self.params, self.meta = method, head, params, meta

    def tell_below(self, members: dict[str, Raw]) -> None:
        """Add members to the request that is sent to the server. They are sent only if the server is an MCP-AX node."""
        self.onward = members if self.onward is None else {**self.onward, **members}

    def as_wished(self) -> dict[str, Any]:
        """Return the params with the name or URI of the target as the client wrote it. `wished` must still be set."""
        return {**self.params, NAMED_BY[self.method]: self.wished}

    def return_to(self, request: ClientRequest) -> None:
        """Continue a call that waited for its client: the client has sent the request again, and `request` is the new
        one. The deadline starts again.
        """
        self.progressed = True
        self.client_id = request.client_id
        self.meta = request.meta
        self.sink = request.sink


class OwnRequest:
    """A request that the node sends to a server for its own purposes. It ignores progress and log messages."""

    upstream_id = 0
    handle: object = None

    def on_progress(self, params: dict[str, Raw]) -> None:
        pass

    def on_log(self, params: Raw) -> None:
        pass

    def on_request(self, link: AnswerReceiver, request: Request) -> None:
        refuse_question(link, request.id, f"no client can be asked for {request.method} now")


class Inquiry(OwnRequest):
    """A request whose answer the node waits for, such as a handshake or a list."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Response | Refusal] = asyncio.get_running_loop().create_future()

    def on_response(self, response: Response, era: Era) -> None:
        if not self.future.done():
            self.future.set_result(response)

    def on_failed(self, fault: Refusal, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(fault)


def passes_level(params: Raw, level: str | None) -> bool:
    """Return whether a log message has at least this level. A client without a level gets all messages."""
    members = decode_object(params)
    message_level = find_string(members.get("level")) if members is not None else None
    return LOG_RANK.get(message_level or "", 0) >= LOG_RANK.get(level or "debug", 0)


def _status(error: bytes, *, is_of_node: bool) -> int:
    """Return the HTTP status for an encoded error that answers a modern client: the status of a direct connection.

    If a node below says that a tool is unknown, this is 200, because MCP reserves 404 for unknown methods.
    """
    try:
        code = codec.decode_value(error)["code"]
    except (codec.CodecError, KeyError, TypeError):
        return 200
    error_code = find_code(code)
    if error_code is None or (is_of_node and error_code == METHOD_NOT_FOUND):
        return 200
    return FORMS[error_code].mcp_status


def _is_error(result: Raw) -> bool:
    members = decode_object(result)
    return members is not None and bytes(members.get("isError", b"")) == b"true"


def _reason(fault: Refusal) -> str:
    reason = (fault.details or {}).get("reason")
    return reason if isinstance(reason, str) else fault.message


def internal(ref: str) -> Refusal:
    """Return the refusal for a failure inside the node. `ref` also appears in the log beside the cause."""
    return Refusal(INTERNAL_ERROR, "internal error", {"ref": ref})


_log: Final = logging.getLogger("interlock.calls")


async def answer_failures(call: Call, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` for `call`. If it raises an exception, the call ends with an internal error."""
    try:
        await work
    except Exception:
        ref = secrets.token_hex(6)
        _log.exception("%s: a call of it failed inside the node (ref %s)", call.target, ref)
        call.on_failed(internal(ref), Outcome.ERROR)
