"""MQTT: whole messages as the payloads of a device's topics, QoS 1, over one connection for each broker.

The status topic is retained: a device that says `offline`, or whose last will says it, is lost until it says `online`.
Neither is trusted. `BoundedClient` limits what a broker can do. A device that publishes without end is dropped for a
while, so that the other devices of its broker are served.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import aiomqtt
import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interlock.core.background import BackgroundTasks
from interlock.devices.protocol.json_codec import MESSAGE_BYTES_MAX, is_online, topics_of
from interlock.devices.transports.transport import SharedConnection, Transport, TransportFailed

PACKET_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX  # an honest broker drops what is beyond it, as it is told
UNRELEASED_MAX: Final = 16  # with QoS 2, which is not asked for
UNREAD_MAX: Final = 1024  # packets that the broker does not take
READS_PER_PACKET: Final = 3  # its type, its length, its body
READS_PER_S: Final = 2000 * READS_PER_PACKET  # of the socket, each some 10 us of work; small pieces count as whole ones
BYTES_PER_S: Final = 4 * 1024 * 1024
CLIENT_BURST_S: Final = 0.5  # of that rate may come at once
REST_S: Final = 0.05  # at least, between two turns: many short ones cost more than what they read
READS_PER_MESSAGE: Final = 2 * READS_PER_PACKET  # of ours: its acknowledgement, and an answer


class BoundedClient(aiomqtt.Client):
    """The client of the MQTT library, with limits on what a broker can make it store and on how fast it reads.

    The library has no such limits: it stores packets of any announced size, QoS 2 messages that are never released, and
    messages that no one reads. Here, exceeding a storage limit ends the connection, and `refusal` says why. A broker
    that sends too fast is read more slowly, so that the rest of the node keeps running. Replies to our own messages do
    not count. Messages are delivered as soon as they are read, because the library's own queue drops messages of any
    device if its reader is slower than the broker.
    """

    def __init__(self, take: Callable[[str, bytes], None], *arguments: Any, **options: Any) -> None:
        """Create a client, which calls `take` with the topic and payload of each received message."""
        super().__init__(*arguments, **options)
        self._take = take
        self.refusal: str | None = None  # of the broker: what it did that is not borne
        self._paid_until = 0.0
        # The library reads all bytes with this function, including the rest of a packet whose size was announced.
        self._receive = self._client._sock_recv
        self._client._sock_recv = self._receive_bounded  # type: ignore[method-assign, assignment]  # no other seam

    def expect_answer(self) -> None:
        """Note that a message is published, so that the broker's reply to it does not count against the limits of the
        broker.
        """
        self._paid_until -= READS_PER_MESSAGE / READS_PER_S

    async def ended(self) -> BaseException | None:
        """Wait until the connection ends. Return the error that ended it, or None."""
        await asyncio.wait([self._disconnected])
        return self._disconnected.exception()

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        self._take(message.topic, bytes(message.payload))

    def _receive_bounded(self, size: int) -> bytes:
        """Read bytes from the socket for the MQTT library. Raise ConnectionError if the broker exceeds a limit."""
        if size > PACKET_BYTES_MAX:
            self.refusal = f"it announced a packet of {size} bytes, and {PACKET_BYTES_MAX} are taken"
        elif len(self._client._in_messages) > UNRELEASED_MAX:
            self.refusal = f"it released none of {UNRELEASED_MAX} messages with QoS 2"
        elif len(self._client._out_packet) > UNREAD_MAX:
            self.refusal = f"it left {UNREAD_MAX} packets unread"
        if self.refusal is not None:
            raise ConnectionError(self.refusal)
        data = self._receive(size)
        self._paid_until += 1 / READS_PER_S + len(data) / BYTES_PER_S
        return data

    def _on_socket_open(self, client: paho.Client, userdata: Any, sock: Any) -> None:
        super()._on_socket_open(client, userdata, sock)
        self._loop.call_soon_threadsafe(self._watch, client)  # in place of the library's own reader

    def _watch(self, client: paho.Client) -> None:
        if (connected := client.socket()) is not None:
            self._loop.add_reader(connected.fileno(), self._take_turn, client)

    def _take_turn(self, client: paho.Client) -> None:
        """Read once from the socket. If the broker sends faster than allowed, pause reading for a moment."""
        now = self._loop.time()
        self._paid_until = max(now, self._paid_until)
        try:
            client.loop_read()
            # what TLS has decoded already, no socket tells
            while self._paid_until < now + CLIENT_BURST_S and getattr(client.socket(), "pending", int)():
                client.loop_read()
        except Exception as error:  # as the library does: the connection is broken
            if not self._disconnected.done():
                self._disconnected.set_exception(error)
            return
        connected = client.socket()
        if self._paid_until > now + CLIENT_BURST_S and connected is not None:
            self._loop.remove_reader(connected.fileno())
            self._loop.call_later(self._paid_until - now - CLIENT_BURST_S + REST_S, self._return, client)

    def _return(self, client: paho.Client) -> None:
        if client.socket() is not None:
            self._watch(client)
            self._take_turn(client)


MESSAGES_PER_S = 100  # of one device, beside its answers: five times the events that are passed on
BURST_S = 2.0  # of that rate may come at once
FLOOD_REST_S = 30.0  # before a device that sent more is heard again
SOCKET_OPTIONS = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
KEEPALIVE_S = 15
ANSWER_S = 5.0  # of the broker
LEAVE_S = 1.0  # for its word that topics are given up, which comes behind all that it sent before
RETAINED_S = 0.05  # a retained status is here with the last SUBACK; this is for handing it over

_LOGGER = logging.getLogger("interlock.devices.mqtt")
_LOGGER.setLevel(logging.CRITICAL)  # what it says is told by `on_transport_lost`


class MqttTransport(Transport):
    """A transport over the MQTT topics of one device.

    With QoS 1 the transport is reliable: the broker confirms each published message, or the connection is lost.
    """

    is_reliable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        link = self._link
        try:
            self.topics = topics_of(link.topic or self._segment)
        except ValueError as error:
            raise TransportFailed(str(error)) from error
        host, port, tls = link.broker
        self._address = BrokerAddress(host, port, link.username, link.password, tls)
        self._broker: MqttBroker | None = None
        self._is_offline = False
        self._status_known = asyncio.Event()
        self._paid_until = 0.0

    async def open(self) -> None:
        self._is_offline = False
        self._status_known.clear()
        self._broker = await self._connections.acquire(self._address, lambda: MqttBroker(self._address))
        await self._broker.join(self)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETAINED_S):
                await self._status_known.wait()
        if self._is_offline:
            raise TransportFailed("the device says that it is offline")
        if self._broker.loss is not None:  # meanwhile, before it could be told
            raise TransportFailed(self._broker.loss)
        self._is_open = True

    def send(self, message: bytes) -> None:
        if self._is_open and self._broker is not None:
            self._owner.on_traffic(True, message)
            self._paid_until -= 1 / MESSAGES_PER_S  # an answer to it is due
            self._broker.publish(self.topics.down, message)

    async def close(self) -> None:
        self._is_open = False
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.unsubscribe(self)
            await self._connections.release(broker, self._address)

    def receive_untrusted(self, topic: str, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._paid_until = max(now, self._paid_until) + 1 / MESSAGES_PER_S
        if self._paid_until - now > BURST_S:
            self.lose(f"it sends more than {MESSAGES_PER_S} messages a second", FLOOD_REST_S)
        elif topic == self.topics.status:
            if (online := is_online(payload)) is None:
                self._discarded["status"] += 1
                return
            self._is_offline = not online
            self._status_known.set()
            if self._is_offline:
                self.lose("the device says that it is offline")
        elif len(payload) > MESSAGE_BYTES_MAX:
            self._discarded["too_large"] += 1
        elif self._is_open:
            self._owner.on_traffic(False, payload)
            self._owner.on_message(payload)


class BrokerAddress(NamedTuple):
    """The address of a broker, with the credentials for it. Devices with equal addresses share one connection."""

    host: str
    port: int
    username: str | None
    password: str | None
    tls: bool


class MqttBroker(SharedConnection[MqttTransport]):
    """A connection to one MQTT broker, shared by the devices with the same broker address. `stations` maps each topic
    to the transport of its device.
    """

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__()
        self._address = address
        self._client: BoundedClient | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._publishing = BackgroundTasks()

    async def open(self) -> None:
        address = self._address
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.MaximumPacketSize = PACKET_BYTES_MAX
        client = BoundedClient(
            self._take,
            address.host,
            address.port,
            username=address.username,
            password=address.password,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=True,
            properties=properties,
            keepalive=KEEPALIVE_S,
            timeout=ANSWER_S,
            tls_context=await asyncio.to_thread(ssl.create_default_context) if address.tls else None,
            socket_options=SOCKET_OPTIONS,
            logger=_LOGGER,
        )
        try:
            await client.__aenter__()
        except (aiomqtt.MqttError, OSError) as error:
            why = client.refusal or error
            raise TransportFailed(f"the broker {address.host}:{address.port} cannot be reached: {why}") from error
        self._client = client
        self._watcher = asyncio.create_task(self._watch(client))

    async def close(self) -> None:
        client, self._client = self._client, None
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        if client is not None:
            with contextlib.suppress(aiomqtt.MqttError, OSError):
                await client.__aexit__(None, None, None)
        await self._publishing.close()

    async def join(self, station: MqttTransport) -> None:
        """Subscribe to the topics of a device. Raise TransportFailed if the broker refuses."""
        topics = station.topics
        if topics.up in self.stations or self._client is None:
            raise TransportFailed(f"another device has the topic {topics.up}")
        self.stations |= {topics.up: station, topics.status: station}
        try:
            for topic in (topics.status, topics.up):  # in this order: a retained status is here when both are answered
                await self._client.subscribe(topic, qos=1)
        except aiomqtt.MqttError as error:
            raise TransportFailed(f"the broker refuses the topic {topics.up}: {error}") from error

    async def unsubscribe(self, station: MqttTransport) -> None:
        topics = station.topics
        if self.stations.get(topics.up) is station:
            self.leave(station)
            if self._client is not None and self.loss is None:
                with contextlib.suppress(aiomqtt.MqttError):
                    await self._client.unsubscribe([topics.up, topics.status], timeout=LEAVE_S)

    def publish(self, topic: str, payload: bytes) -> None:
        if self._client is not None:
            self._client.expect_answer()
            self._publishing.begin(self._publish(self._client, topic, payload), "an MQTT publication")

    async def _publish(self, client: BoundedClient, topic: str, payload: bytes) -> None:
        try:
            await client.publish(topic, payload, qos=1)
        except aiomqtt.MqttError as error:
            self._end(client, error)

    def _take(self, topic: str, payload: bytes) -> None:
        if (station := self.stations.get(topic)) is not None:
            station.receive_untrusted(topic, payload)

    async def _watch(self, client: BoundedClient) -> None:
        self._end(client, await client.ended())

    def _end(self, client: BoundedClient, error: BaseException | None) -> None:
        where = f"{self._address.host}:{self._address.port}"
        self.lose(f"the connection to the broker {where} ended: {client.refusal or error or 'it was closed'}")
