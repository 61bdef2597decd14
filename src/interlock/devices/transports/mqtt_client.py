"""The MQTT library's client within limits: what a broker can make it keep, and how fast it is read.

The library keeps whatever a broker announces, sends with QoS 2 and never releases, or leaves unread, and reads as fast
as it can. Each is bounded here, where the library reads. What is kept beyond ends the connection, and `fault` says why.
What comes faster is read more slowly, as of a serial line: the broker has to wait, and others on the node have their
turn. What answers a message of ours is not counted against the broker. A message is handed over as it is read: the
library's own queue drops what comes faster than its reader takes it, of any device.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import aiomqtt
import paho.mqtt.client as paho

from interlock.devices.protocol.json_codec import MESSAGE_BYTES_MAX

PACKET_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX  # an honest broker drops what is beyond it, as it is told
UNRELEASED_MAX: Final = 16  # with QoS 2, which is not asked for
UNREAD_MAX: Final = 1024  # packets that the broker does not take
READS_PER_PACKET: Final = 3  # its type, its length, its body
READS_PER_S: Final = 2000 * READS_PER_PACKET  # of the socket, each some 10 us of work; small pieces count as whole ones
BYTES_PER_S: Final = 4 * 1024 * 1024
BURST_S: Final = 0.5  # of that rate may come at once
REST_S: Final = 0.05  # at least, between two turns: many short ones cost more than what they read
READS_PER_MESSAGE: Final = 2 * READS_PER_PACKET  # of ours: its acknowledgement, and an answer


class BoundedClient(aiomqtt.Client):
    def __init__(self, take: Callable[[str, bytes], None], *arguments: Any, **options: Any) -> None:
        """`take` is given the topic and the payload of each message."""
        super().__init__(*arguments, **options)
        self._take = take
        self.refusal: str | None = None  # of the broker: what it did that is not borne
        self._paid_until = 0.0
        self._client._sock_recv = self._bounded(self._client)  # type: ignore[method-assign, assignment]  # no other seam

    def expect_answer(self) -> None:
        """A message is published."""
        self._paid_until -= READS_PER_MESSAGE / READS_PER_S

    async def ended(self) -> BaseException | None:
        """Waits for the end of the connection, and says why."""
        await asyncio.wait([self._disconnected])
        return self._disconnected.exception()

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        self._take(message.topic, bytes(message.payload))

    def _bounded(self, client: paho.Client) -> Callable[[int], bytes]:
        """Every byte passes here; for the rest of a packet the library asks for as many as were announced."""
        receive = client._sock_recv

        def receive_bounded(size: int) -> bytes:
            if size > PACKET_BYTES_MAX:
                self.refusal = f"it announced a packet of {size} bytes, and {PACKET_BYTES_MAX} are taken"
            elif len(client._in_messages) > UNRELEASED_MAX:
                self.refusal = f"it released none of {UNRELEASED_MAX} messages with QoS 2"
            elif len(client._out_packet) > UNREAD_MAX:
                self.refusal = f"it left {UNREAD_MAX} packets unread"
            if self.refusal is not None:
                raise ConnectionError(self.refusal)
            data = receive(size)
            self._paid_until += 1 / READS_PER_S + len(data) / BYTES_PER_S
            return data

        return receive_bounded

    def _on_socket_open(self, client: paho.Client, userdata: Any, sock: Any) -> None:
        super()._on_socket_open(client, userdata, sock)
        self._loop.call_soon_threadsafe(self._watch, client)  # in place of the library's own reader

    def _watch(self, client: paho.Client) -> None:
        connected = client.socket()
        if connected is not None:
            self._loop.add_reader(connected.fileno(), self._take_turn, client)

    def _take_turn(self, client: paho.Client) -> None:
        """Reads once, or rests where more came than is due."""
        now = self._loop.time()
        self._paid_until = max(now, self._paid_until)
        try:
            client.loop_read()
            # what TLS has decoded already, no socket tells
            while self._paid_until < now + BURST_S and getattr(client.socket(), "pending", int)():
                client.loop_read()
        except Exception as error:  # as the library does: the connection is broken
            if not self._disconnected.done():
                self._disconnected.set_exception(error)
            return
        connected = client.socket()
        if self._paid_until > now + BURST_S and connected is not None:
            self._loop.remove_reader(connected.fileno())
            self._loop.call_later(self._paid_until - now - BURST_S + REST_S, self._return, client)

    def _return(self, client: paho.Client) -> None:
        if client.socket() is not None:
            self._watch(client)
            self._take_turn(client)
