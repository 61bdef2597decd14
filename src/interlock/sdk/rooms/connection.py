"""The connection of a participant to a room: dialled again when it is lost, and resumed where it stopped.

Theory of operation. The connection reads frames of the gateway. It passes on each stored envelope exactly once, in the
order of the room and with its number, and the gateway's own messages. The number of an envelope comes in a frame of its
own, so an envelope waits in `_unnumbered` until that frame arrives. `position` is the number of the last envelope that
was passed on; after a loss the gateway is asked for everything behind it.

A sent envelope is held until the gateway has accepted it, and is sent again under the same id after a loss: the gateway
publishes an id once (X-4-4). If the gateway refuses a repeated id as a duplicate of the same content, the first one had
arrived.

Losses are told apart by the close code. Those in FINAL mean that the gateway does not want this participant, and end
the connection. All others are tried again, at random and growing intervals, so that many participants do not return at
the same moment.

Requests that have no envelope go to the gateway over HTTP (X-N-6).
"""

import asyncio
import http.client
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from interlock.mcp.methods import LATEST_LEGACY
from interlock.net.message_pipe import GOING_AWAY, NORMAL, POLICY, TOO_BIG, MessagePipe
from interlock.net.websocket import DialFailed, dial
from interlock.rooms.protocol.envelope import V01, Envelope, EnvelopeRefusal, decode_untrusted
from interlock.rooms.protocol.participants import GATEWAY
from interlock.sdk.rooms.conversation import fail
from interlock.sdk.rooms.model import EnvelopeRefused, RoomRefused, RoomUnreachable
from interlock.wire.jsonrpc.codec import CodecError, decode_value
from interlock.wire.jsonrpc.oversized import Oversized

if TYPE_CHECKING:
    from interlock.sdk.rooms.participant import Participant

log = logging.getLogger("interlock.rooms")

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # of the gateway; it wraps several envelopes in one
SENT_BYTES_MAX: Final = 4 * 1024 * 1024  # X-4-13: a larger frame ends the connection
OUTBOX_MAX: Final = 1000  # envelopes that the gateway has not taken
WELCOME_S: Final = 10.0
RETRY_MIN_S: Final = 0.2
RETRY_MAX_S: Final = 30.0
STEADY_S: Final = 10.0  # a connection that lasted so long was no failure
# Close codes after which connecting again is of no use.
FINAL: Final = {
    POLICY: "abuse",
    TOO_BIG: "envelope_too_large",
    4401: "credential_ended",
    4403: "removed",
    4409: "replaced",
}
# Refusals that pass by themselves, so that connecting again makes sense.
PASSING: Final = frozenset(("room_full", "id_in_use", "rate_limited", "unavailable"))
_NO_ROOM: Final = frozenset((400, 401, 403, 404, 421, 426))

Ticket = str | Callable[[], Awaitable[str]]


class RoomAddress(msgspec.Struct, frozen=True):
    """The address of a room, and the credential for it."""

    address: str  # without a path
    topic: str
    token: str | None = None
    ticket: Ticket | None = None
    tls: ssl.SSLContext | None = None
    name: str | None = None  # shown to the others
    kind: str | None = None


class _OutgoingEnvelope(msgspec.Struct):
    """An envelope that the gateway has not published yet, and the future that completes when it has."""

    data: bytes
    taken: "asyncio.Future[None]"


class GatewayConnection:
    """The connection of a participant to the gateway, which is the server of the room.

    `open` connects once, and `keep` reconnects until `close`. The connection passes the following to the participant:
    a welcome after each connect, stored envelopes in order, events of the gateway, and a note when all missed envelopes
    have been read.
    """

    def __init__(
        self, place: RoomAddress, reader: "Participant", *, history: int = 0, after: int | None = None
    ) -> None:
        """Create a connection. `history` is the number of recent envelopes to read first. With `after`, read all
        envelopes after that sequence number instead.
        """
        self.position = after  # the number of the last envelope that was received
        self._place = place
        self._reader = reader
        self._history = history
        self._pipe: MessagePipe | None = None
        self._welcomed: asyncio.Future[None] | None = None
        self._over: asyncio.Future[tuple[int, str]] | None = None
        self._unnumbered: Envelope | None = None  # its number is the next frame
        self._last = 0  # the number of the last envelope before the welcome
        self._last_event = ""  # the id of the gateway's last event, whose number may follow
        self._outbox: dict[str, _OutgoingEnvelope] = {}
        self._readable = asyncio.Event()
        self._readable.set()
        self._lost_at: float | None = None
        self._is_leaving = False
        self._failed: Exception | None = None
        self._is_ticket_used = False

    @property
    def is_open(self) -> bool:
        """Return whether the gateway has sent its welcome on the current connection."""
        return self._welcomed is not None and self._welcomed.done() and self._pipe is not None

    # Life

    async def open(self) -> None:
        """Make one attempt to connect. Raise RoomUnreachable if a later attempt may succeed, otherwise RoomRefused."""
        loop = asyncio.get_running_loop()
        self._unnumbered = self._failed = None
        self._is_leaving = False
        self._welcomed, self._over = loop.create_future(), loop.create_future()
        headers = {"Authorization": f"Bearer {self._place.token}"} if self._place.token is not None else {}
        try:
            url, tls = await self._url(), self._place.tls
            self._pipe = await dial(url, self, subprotocol=None, headers=headers, tls=tls, max_bytes=FRAME_BYTES_MAX)
            async with asyncio.timeout(WELCOME_S):
                await self._welcomed
        except DialFailed as failed:
            try:
                body = msgspec.json.decode(failed.body, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                body = {}
            code, message = str(body.get("error", "refused")), str(body.get("message", failed.reason))
            if failed.status in _NO_ROOM and code not in PASSING:
                raise RoomRefused(code, message) from None
            raise RoomUnreachable(message if body else failed.reason) from None
        except TimeoutError:
            if self._pipe is not None:
                self._pipe.abort()
            raise RoomUnreachable(f"it sent no welcome within {WELCOME_S:g} s") from None

    async def keep(self) -> None:
        """Reconnect whenever the connection is lost, until `close` is called. Raise RoomRefused if the gateway no
        longer accepts the participant.
        """
        failures, began = 0, time.monotonic()
        while self._over is not None:
            code, reason = await asyncio.shield(self._over)
            self._pipe = None
            if self._is_leaving:
                return
            if code in FINAL:
                raise RoomRefused(FINAL[code], reason)
            self._lost_at = time.monotonic()
            if self._lost_at - began > STEADY_S:
                failures = 0
            log.info("the connection to room %s was lost (%s %s)", self._place.topic, code, reason)
            while self._pipe is None:
                failures += 1
                # The delay is random, from a wider range after more failures.
                widest_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(failures, 20))
                await asyncio.sleep(random.uniform(RETRY_MIN_S, widest_s))  # noqa: S311 - jitter, no secret
                await self._readable.wait()
                try:
                    await self.open()
                except RoomUnreachable as away:
                    self._pipe = None
                    log.info("room %s: %s", self._place.topic, away)
            began = time.monotonic()

    async def close(self) -> None:
        """Leave the room, and wait until the connection is closed."""
        self._is_leaving = True
        if self._pipe is not None and self._over is not None:
            self._pipe.close(NORMAL)
            await asyncio.shield(self._over)

    def fail(self, why: Exception) -> None:
        """Make all envelopes fail with `why`: those that are not published yet, and those sent later."""
        self._failed = why
        for outgoing in self._outbox.values():
            fail(outgoing.taken, why)
        self._outbox.clear()

    async def _url(self) -> str:
        """Return the URL of the room's WebSocket, with the position at which to resume. Raise RoomRefused if the only
        ticket was already used.
        """
        query: dict[str, object] = {"topic": self._place.topic, "protocol": V01, "sequences": 1, "mcp": LATEST_LEGACY}
        query |= {key: value for key, value in (("name", self._place.name), ("kind", self._place.kind)) if value}
        if self.position is not None:
            query["after"] = self.position
        elif self._history:
            query["history"] = self._history
        ticket = self._place.ticket
        if ticket is not None and self._place.token is None:
            if isinstance(ticket, str) and self._is_ticket_used:
                raise RoomRefused("ticket_used", "a ticket is valid for one connection; give token=, or a function")
            self._is_ticket_used = True
            query["ticket"] = ticket if isinstance(ticket, str) else await ticket()
        return f"{self._place.address}/v0/ws?{urlencode(query)}"

    # Reading

    def hold(self, is_held: bool) -> None:
        """Pause or continue reading. The gateway may close a paused connection, which is then resumed later."""
        if is_held:
            self._readable.clear()
            if self._pipe is not None:
                self._pipe.pause_reading()
        else:
            self._readable.set()
            if self._pipe is not None:
                self._pipe.resume_reading()

    def on_message(self, data: bytes) -> None:
        """Handle a message of the gateway. The sequence number of an envelope follows in a separate message."""
        envelope = decode_untrusted(data, FRAME_BYTES_MAX)
        try:
            if isinstance(envelope, EnvelopeRefusal):
                log.warning("room %s: the gateway sent what is no envelope: %s", self._place.topic, envelope.message)
            elif envelope.sender != GATEWAY:
                self._unnumbered = envelope
            elif envelope.kind == "system":
                self._on_system(envelope)
            else:
                if envelope.kind == "mcp" and envelope.correlation_id is not None:
                    error = decode_value(envelope.payload).get("error", {})
                    self._refused(envelope.correlation_id, "privilege_violation", error)
                self._reader._on_event(envelope)
        except (CodecError, msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
            log.exception("room %s: the gateway sent what cannot be understood", self._place.topic)
            if self._pipe is not None:
                self._pipe.abort()

    def _on_system(self, envelope: Envelope) -> None:
        """Handle a system message of the gateway. A `sequence` message contains the number of the preceding
        envelope.
        """
        payload = decode_value(envelope.payload)
        match payload.get("event"):
            case "welcome":
                self._on_welcome(payload)
            case "sequence":
                numbered, self._unnumbered = self._unnumbered, None
                if numbered is not None and numbered.id == envelope.correlation_id:
                    self._take(numbered, payload["sequence"], is_old=False)
                elif envelope.correlation_id == self._last_event:
                    self.position = max(self.position or 0, payload["sequence"])
            case "history":
                history = msgspec.json.decode(envelope.payload, type=_History)
                for raw, sequence in zip(history.envelopes, history.sequences, strict=True):
                    old = decode_untrusted(bytes(raw), FRAME_BYTES_MAX)
                    if isinstance(old, Envelope):
                        self._take(old, sequence, is_old=True)
                if not history.more:
                    self._caught_up()
            case "history_gap":
                log.warning("room %s: some messages are no longer stored", self._place.topic)
                self._reader._on_event(envelope)
                if "after" not in payload:  # no history follows
                    self.position = max(self.position or 0, self._last)
                    self._caught_up()
            case event:
                if event == "error" and envelope.correlation_id is not None:
                    self._refused(envelope.correlation_id, str(payload.get("code")), payload)
                self._last_event = envelope.id
                self._reader._on_event(envelope)

    def _on_welcome(self, payload: dict[str, Any]) -> None:
        """Handle the welcome of the gateway: determine where to continue reading, and resend envelopes that were not
        published.
        """
        self._last = last = payload.get("sequence", 0)
        if self.position is None:
            self.position = max(0, last - self._history)
        elif self.position > last:  # it was restored from an older copy
            log.warning("room %s has fewer envelopes than before", self._place.topic)
            self.position = last
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_result(None)
        self._reader._on_welcome(payload)
        if self.position >= last:
            self._caught_up()  # no history follows
        for id, outgoing in list(self._outbox.items()):
            self._write(id, outgoing)

    def _caught_up(self) -> None:
        away_s = None if self._lost_at is None else time.monotonic() - self._lost_at
        self._reader._on_caught_up(away_s)

    def _take(self, envelope: Envelope, sequence: int, *, is_old: bool) -> None:
        """Pass a numbered envelope to the participant, unless it was already passed on before the connection was
        lost.
        """
        before = self.position or 0
        if sequence <= before:
            return
        if sequence > before + 1:
            log.warning("room %s: %d envelopes are no longer kept", self._place.topic, sequence - before - 1)
        self.position = sequence
        self._taken(envelope.id)
        if envelope.sender != GATEWAY:
            self._reader._on_stored(envelope, sequence, is_old=is_old)
        elif envelope.id != self._last_event:  # otherwise it was passed on before, without its number
            self._reader._on_event(envelope, is_old=is_old)

    def on_oversized(self, frame: Oversized) -> None:
        log.warning("room %s: the gateway sent a frame over %d bytes", self._place.topic, FRAME_BYTES_MAX)

    def on_closed(self, code: int, reason: str) -> None:
        """Handle the end of the connection. If the welcome has not arrived yet, `open` fails."""
        if self._welcomed is not None:
            why = RoomRefused(FINAL[code], reason) if code in FINAL else RoomUnreachable(f"it closed: {reason}")
            fail(self._welcomed, why)
        if self._over is not None and not self._over.done():
            self._over.set_result((code, reason or ("the node stops" if code == GOING_AWAY else "")))

    # Sending

    def send(self, id: str, data: bytes) -> "asyncio.Future[None]":
        """Send an envelope. Return a future that completes when the gateway has published it.

        Raise RoomError if it cannot be sent at all.
        """
        if self._failed is not None:
            raise self._failed
        if len(data) > SENT_BYTES_MAX:
            raise EnvelopeRefused("envelope_too_large", f"an envelope has at most {SENT_BYTES_MAX} bytes")
        if len(self._outbox) >= OUTBOX_MAX:
            raise EnvelopeRefused("unavailable", f"{OUTBOX_MAX} envelopes wait for the gateway already")
        taken = asyncio.get_running_loop().create_future()
        self._outbox[id] = outgoing = _OutgoingEnvelope(data, taken)
        self._write(id, outgoing)
        return taken

    def forget(self, id: str) -> None:
        """Stop resending an envelope."""
        self._outbox.pop(id, None)

    def _write(self, id: str, outgoing: _OutgoingEnvelope) -> None:
        """Send an envelope if the connection is open. Otherwise it is sent after the next welcome."""
        if outgoing.taken.cancelled():
            self.forget(id)
        elif self.is_open and self._pipe is not None and not self._pipe.send(outgoing.data):
            self._pipe.abort()  # the gateway does not read; it goes out again afterwards

    def _taken(self, id: str) -> None:
        outgoing = self._outbox.pop(id, None)
        if outgoing is not None and not outgoing.taken.done():
            outgoing.taken.set_result(None)

    def _refused(self, id: str, code: str, error: dict[str, Any]) -> None:
        """Make the future of an envelope fail, because the gateway refused the envelope."""
        details = error.get("details") or error.get("data") or {}
        if code == "duplicate_id" and details.get("identical") is True:
            self._taken(id)  # the first one arrived, and its echo was lost
            return
        if (outgoing := self._outbox.pop(id, None)) is not None:
            fail(outgoing.taken, EnvelopeRefused(code, str(error.get("message", "")), details))


class _History(msgspec.Struct):
    """The payload of a `history` message."""

    envelopes: list[msgspec.Raw]
    sequences: list[int]
    more: bool = False


ANSWER_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


def send_request(place: RoomAddress, *path: str, body: dict[str, Any] | None = None) -> bytes:
    """Send a GET request, or a POST request with a JSON body, to a path below the URL of the room. Return the body of
    the response. Raise EnvelopeRefused with the gateway's error code, or RoomUnreachable.
    """
    parts, method = urlsplit(place.address), "GET" if body is None else "POST"
    connection = http.client.HTTPConnection(parts.netloc, timeout=ANSWER_S)
    if parts.scheme == "wss":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=ANSWER_S, context=place.tls)
    headers = {"content-type": "application/json"} if body is not None else {}
    if place.token is not None:
        headers["authorization"] = f"Bearer {place.token}"
    below = "/".join(quote(segment, safe="") for segment in ("topics", place.topic, *path))
    try:
        connection.request(method, f"/v0/{below}", None if body is None else msgspec.json.encode(body), headers)
        answer = connection.getresponse()
        written = answer.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise RoomUnreachable(f"the gateway did not answer: {error}") from None
    finally:
        connection.close()
    if answer.status >= http.client.BAD_REQUEST:
        try:
            reply = msgspec.json.decode(written, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise RoomUnreachable(f"the gateway answers HTTP {answer.status}") from None
        why = reply.get("error", {})
        if isinstance(why, dict):  # a violation of a privilege has the form of a JSON-RPC error
            raise EnvelopeRefused("privilege_violation", str(why.get("message", "")), why.get("data"))
        raise EnvelopeRefused(str(why), str(reply.get("message", "")), reply.get("details"))
    return written
