"""The link to the present parent (MCP-AX 6, 13.3): the pure `Registrant` with an event loop, a clock and a pipe.

In: a registration, and a function for each parent that opens a pipe to it. `Registrant` decides, and returns steps;
`_take` carries them out, one after the other, and sets one timer for the next deadline. While registered, the `Tenant`
that `_begin` returns serves the parent's requests. A leaf (`sdk`), a device on behalf of which the node registers, and
the node itself are registrants: a subclass says what each serves.

A pipe that was given up may still deliver messages. Each pipe has a sink of its own (`_Link`), and messages of a sink
that is not the current one are ignored.

`run` returns when it was stopped, when the only possible parent is gone (stdio), or after a failure if `once` is set.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, assert_never
from urllib.parse import urlsplit

from msgspec import Raw

from interlock.ax.protocol import messages
from interlock.ax.protocol.messages import Deregister, Heartbeat, Register
from interlock.ax.protocol.registration import codec, registrant
from interlock.ax.protocol.registration.registrant import CycleReported, Failed, JoinedParent, Left, Send, Steps
from interlock.net.message_pipe import GOING_AWAY, NORMAL, MessagePipe, MessageSink
from interlock.net.websocket import DialFailed
from interlock.wire.jsonrpc import codec as jsonrpc
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized, message_too_large
from interlock.wire.refusal import FORMS, INTERNAL_ERROR, INVALID_REQUEST, NAMESPACE_INVALID, Refusal, UpstreamError

REGISTRATION_PATH: Final = "/ax"
SHOWN_MAX: Final = 300  # characters of a parent's message in our log

Opener = Callable[[MessageSink], Awaitable[MessagePipe]]
_INTERNAL: Final = FORMS[INTERNAL_ERROR].number


class Tenant(Protocol):
    """Handler of the parent's messages on one link, from the registration to its end."""

    def serve(self, request: jsonrpc.Request) -> None: ...

    def hear(self, notification: jsonrpc.Notification) -> None:
        """Handle a notification of the parent that is not about the registration."""

    def hear_answer(self, response: jsonrpc.Response) -> None:
        """Handle the parent's answer to a request that this handler has sent."""

    def leave(self) -> None:
        """Handle the loss of the link."""


class Uplink:
    """Client that registers a subserver or an aggregator with one of several parents (aggregators above it). It uses
    one connection at a time.
    """

    def __init__(
        self, register: Register, parents: Sequence[tuple[str, Opener]], log: logging.Logger, *, once: bool = False
    ) -> None:
        """Create the uplink.

        `parents` has a name for the log and a function that opens a pipe, for each parent. If `once` is true, the
        uplink ends at the first failure: a refusal, a failed attempt or a lost link.
        """
        self._engine = registrant.Registrant(register, len(parents))
        self._parents = parents
        self._log = log
        self._once = once
        self.refusal: str | None = None  # why the parent refused, if `once`
        self._ended = asyncio.Event()
        self._link: _Link | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tenant: Tenant | None = None

    def _begin(self, step: JoinedParent, send: Callable[[bytes], bool]) -> Tenant:
        """Create the handler of the parent's messages for the new registration.

        `send` sends a message to the parent.
        """
        raise NotImplementedError

    def _register_message(self, parent: int, register: Register) -> Register:
        """Return the registration to send to this parent."""
        return register

    async def run(self) -> None:
        """Register with a parent, and register again after each loss.

        Return after `stop`, when the only possible parent is gone, or after the first failure if `once` is set.
        """
        try:
            self._take(self._engine.start(_now()))
            await self._ended.wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._hang_up(GOING_AWAY, "shutting down")

    def _hang_up(self, code: int, reason: str) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        link, self._link = self._link, None  # so that the end of its pipe is not taken for a loss
        if link is not None and link.pipe is not None:
            link.pipe.close(code, reason)

    def stop(self) -> None:
        self._take(self._engine.stop(_now()))

    def _take(self, steps: Steps) -> None:
        """Carry out the registrant's steps in order, and set the timer for its next deadline."""
        for step in steps:
            match step:
                case registrant.DialParent():
                    self._dial(step.parent)
                case Send():
                    self._send(step)
                case registrant.Hangup():
                    self._hang_up(NORMAL, step.reason)
                case JoinedParent():
                    self._handle_joined(step)
                case Left():
                    self._handle_left(step)
                case Failed():
                    self._handle_failed(step)
                case CycleReported():
                    self._handle_cycle(step)
                case registrant.Ignored():
                    self._log.debug("the parent sent %s", step.reason)
                case _:
                    assert_never(step)
        if self._timer is not None:
            self._timer.cancel()
        if (deadline := self._engine.next_deadline()) is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._due)
        if self._engine.done:
            self._ended.set()

    def _due(self) -> None:
        self._timer = None
        self._take(self._engine.on_deadline(_now(), random.random()))  # noqa: S311 - jitter, no secret

    def _dial(self, parent: int) -> None:
        name, opener = self._parents[parent]
        link = _Link(self)
        self._link = link
        self._log.debug("dialling %s", name)
        self._dialling = asyncio.get_running_loop().create_task(self._open(link, opener))

    async def _open(self, link: "_Link", opener: Opener) -> None:
        try:
            pipe = await opener(link)
        except DialFailed as failed:
            if self._link is link:
                reason, path = failed.reason, urlsplit(self._parents[self._engine.parent or 0][0]).path
                if failed.status is not None and not path.endswith(REGISTRATION_PATH):
                    reason += f"; the address of an aggregator ends in {REGISTRATION_PATH}"
                self.handle_lost(reason, mendable=not failed.unauthorised)
            return
        except (OSError, ValueError) as error:  # standard input or output is not a pipe
            self.handle_lost(f"no pipe: {error}", mendable=False)
            return
        if self._link is not link:
            pipe.abort()
            return
        link.pipe = pipe
        self._take(self._engine.opened(_now()))

    def _send(self, step: Send) -> None:
        pipe = self._link.pipe if self._link is not None else None
        match step.message:
            case Register():
                worded = self._register_message(self._engine.parent or 0, step.message)
                method, params = messages.REGISTER, codec.encode_register(worded)
            case Heartbeat():
                method, params = messages.HEARTBEAT, jsonrpc.encode_value(step.message)
            case Deregister():
                method, params = messages.DEREGISTER, jsonrpc.encode_value(step.message)
            case _:
                assert_never(step.message)
        if pipe is None or not pipe.send(jsonrpc.encode_request(b"%d" % step.id, method.encode(), params)):
            # The pipe ends a link whose other side does not read.
            self._log.warning("%s could not be sent: the parent does not read", method)

    def _handle_joined(self, step: JoinedParent) -> None:
        if (link := self._link) is None or link.pipe is None:
            return
        self._tenant = self._begin(step, link.pipe.send)
        self._log.info("registered with %s as %s", self._parents[step.parent][0], step.registered.assigned_segment)

    def leave_tenant(self) -> None:
        """End the handler of the parent's messages, because the link to the parent is over."""
        if self._tenant is not None:
            self._tenant.leave()
            self._tenant = None

    def _handle_left(self, step: Left) -> None:
        self.leave_tenant()
        self._log.info("no longer registered with %s: %s", self._parents[step.parent][0], display_words(step.reason))

    def _handle_failed(self, step: Failed) -> None:
        name, reason = self._parents[step.parent][0], display_words(step.reason)
        if step.mendable:
            self._log.warning("%s: %s; trying again in %.1f s", name, reason, step.retry_in_s)
        else:
            refused = "%s refuses us: %s; this needs a change here or there, trying again in %.0f s"
            self._log.error(refused, name, reason, step.retry_in_s)
        if self._once:
            self.refusal = step.reason if step.error is not None else None
            self._ended.set()

    def _handle_cycle(self, step: CycleReported) -> None:
        """Do nothing, because only an aggregator can be part of a cycle. A subclass for aggregators overrides this."""

    def handle_lost(self, reason: str, *, mendable: bool = True) -> None:
        self._link = None
        self._take(self._engine.lost(reason, _now(), random.random(), mendable=mendable))  # noqa: S311

    # Messages of the parent, over the current link

    def receive(self, data: bytes) -> None:
        try:
            message = jsonrpc.decode_untrusted(data)
        except jsonrpc.CodecError as error:
            self._reply(jsonrpc.encode_refusal(error.message_id, error.refusal))
            return
        match message:
            case jsonrpc.Response():
                self._handle_response(message)
            case jsonrpc.Request() if message.method == messages.PARENT:
                self._reply(jsonrpc.encode_result(message.id, jsonrpc.encode_value(self._engine.parent_asked())))
            case jsonrpc.Request():
                if self._tenant is None:
                    refusal = Refusal(INVALID_REQUEST, "answer mcpax/register first")
                    self._reply(jsonrpc.encode_refusal(message.id, refusal))
                else:
                    self._tenant.serve(message)
            case jsonrpc.Notification():
                if message.method == messages.TOOLS_REFUSED:
                    self._handle_refused(message)
                elif message.method == messages.HELD_ELSEWHERE:
                    self._handle_held(message)
                elif self._tenant is not None:
                    self._tenant.hear(message)
            case _:
                assert_never(message)

    def refuse_oversized(self, oversized: Oversized) -> None:
        """Refuse a message of the parent that exceeds the size limit. Its content was not read."""
        self._log.warning("a message of the parent was skipped: it is larger than %d bytes", oversized.limit)
        refusal = message_too_large(oversized.limit)
        if oversized.kind is MessageKind.REQUEST:
            self._reply(jsonrpc.encode_refusal(oversized.id, refusal))
        elif oversized.kind is MessageKind.RESPONSE:
            self._handle_response(jsonrpc.Response(oversized.id, jsonrpc.ABSENT, Raw(jsonrpc.error_body(refusal))))

    def _handle_refused(self, message: jsonrpc.Notification) -> None:
        """Log the parent's notification that it does not list some of this node's tools (4.2)."""
        text = bytes(message.params).decode(errors="replace")
        self._log.warning("the parent does not list everything: %s", display_words(text))

    def _handle_held(self, message: jsonrpc.Notification) -> None:
        """Do nothing when the parent reports that other aggregators have subservers of this node, because only an
        aggregator has subservers. A subclass for aggregators overrides this.
        """

    def _reply(self, message: bytes) -> None:
        if self._link is not None and self._link.pipe is not None:
            self._link.pipe.send(message)

    def _handle_response(self, response: jsonrpc.Response) -> None:
        id = int(response.id) if response.id.isdigit() and len(response.id) < 19 else 0
        if (request := self._engine.find_message(id)) is None and self._tenant is not None:
            self._tenant.hear_answer(response)
            return
        jitter = random.random()  # noqa: S311
        if response.error:
            members = jsonrpc.decode_object(response.error) or {}
            try:
                code = jsonrpc.decode_value(members["code"])
                data = jsonrpc.decode_value(members["data"]) if "data" in members else None
            except (KeyError, jsonrpc.CodecError):
                error = UpstreamError(_INTERNAL, "an error that cannot be read")
            else:
                number = code if isinstance(code, int) and not isinstance(code, bool) else _INTERNAL
                message = jsonrpc.find_string(members.get("message")) or f"error {number}"
                error = UpstreamError(number, message, data if isinstance(data, dict) else None)
            self._take(self._engine.refused(id, error, _now(), jitter))
        elif not isinstance(request, Register):
            # The draft shows no answer to the other requests: any answer shows that the parent is alive.
            self._take(self._engine.answered(id))
        elif isinstance(read := codec.read_registered_untrusted(response.result), Refusal):
            self._take(self._engine.misanswered(id, read.message, _now(), jitter))
        else:
            self._take(self._engine.granted(id, read, _now()))


class _Link:
    """Receiver of the messages on one connection to a parent. It ignores messages after the uplink has replaced the
    connection.
    """

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self.pipe: MessagePipe | None = None

    def on_message(self, data: bytes) -> None:
        if self._uplink._link is self:
            self._uplink.receive(data)

    def on_oversized(self, oversized: Oversized) -> None:
        if self._uplink._link is self:
            self._uplink.refuse_oversized(oversized)

    def on_closed(self, code: int, reason: str) -> None:
        if self._uplink._link is not self:
            return
        if reason == "superseded":  # two processes that take turns would end each other's registration for ever
            why = "another process registered with our subserver_id: stop one, or give each a state folder of its own"
            self._uplink.handle_lost(why, mendable=False)
        else:
            refused = reason.startswith(NAMESPACE_INVALID)  # the same names would be refused again
            self._uplink.handle_lost(f"the link was closed: {reason or code}", mendable=not refused)


def display_words(words: str) -> str:
    """Return a message of the parent as one line for the log: without control characters and of limited length."""
    return ascii(words[:SHOWN_MAX])[1:-1]


def _now() -> float:
    return asyncio.get_running_loop().time()
