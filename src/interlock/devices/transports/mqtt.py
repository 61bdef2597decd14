"""MQTT: whole messages as the payloads of a device's topics, QoS 1, over one connection for each broker.

The status topic is retained: a device that says `offline`, or whose last will says it, is lost until it says `online`.

Neither is believed. What a broker can do is bounded by `mqtt_client`. A device that publishes without end is left: its
topics are given up for a while, so that the others of its broker are heard.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from typing import NamedTuple

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interlock.core.background import BackgroundTasks
from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.json_codec import MESSAGE_BYTES_MAX
from interlock.devices.protocol.mqtt_topics import is_online, topics_of
from interlock.devices.transports.connections import Connections
from interlock.devices.transports.mqtt_client import PACKET_BYTES_MAX, BoundedClient
from interlock.devices.transports.transport import TransportFailed, TransportOwner
from interlock.net.protocol.address_scope import is_loopback

PORT, PORT_TLS = 1883, 8883
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


class MqttTransport:
    is_reliable = True

    def __init__(
        self, segment: str, description: DeviceDescription, owner: TransportOwner, connections: Connections
    ) -> None:
        link = description.link
        try:
            self.topics = topics_of(link.topic or segment)
        except ValueError as error:
            raise TransportFailed(str(error)) from error
        self._owner = owner
        self._connections = connections
        host = link.host or "localhost"
        tls = link.tls if link.tls is not None else not is_loopback(host)
        port = link.tcp_port or (PORT_TLS if tls else PORT)
        self._address = Address(host, port, link.username, link.password, tls)
        self._broker: MqttBroker | None = None
        self._is_open = False
        self._is_offline = False
        self._status_known = asyncio.Event()
        self._discarded: Counter[str] = Counter()
        self._paid_until = 0.0

    @property
    def discarded(self) -> dict[str, int]:
        return dict(self._discarded)

    async def open(self) -> None:
        self._is_offline = False
        self._status_known.clear()
        self._broker = await self._connections.acquire(self._address, lambda: MqttBroker(self._address))
        try:
            await self._broker.join(self)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETAINED_S):
                    await self._status_known.wait()
            if self._is_offline:
                raise TransportFailed("the device says that it is offline")
            if self._broker.loss is not None:  # meanwhile, before it could be told
                raise TransportFailed(self._broker.loss)
        except BaseException:
            await self.close()
            raise
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
            await broker.leave(self)
            await self._connections.release(broker, self._address)

    def receive_untrusted(self, topic: str, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        self._paid_until = max(now, self._paid_until) + 1 / MESSAGES_PER_S
        if self._paid_until - now > BURST_S:
            self.lose(f"it sends more than {MESSAGES_PER_S} messages a second", FLOOD_REST_S)
        elif topic == self.topics.status:
            self._receive_status(payload)
        elif len(payload) > MESSAGE_BYTES_MAX:
            self._discarded["too_large"] += 1
        elif self._is_open:
            self._owner.on_traffic(False, payload)
            self._owner.on_message(payload)

    def lose(self, reason: str, rest_s: float = 0.0) -> None:
        if self._is_open:
            self._is_open = False
            self._owner.on_transport_lost(reason, rest_s)

    def _receive_status(self, payload: bytes) -> None:
        online = is_online(payload)
        if online is None:
            self._discarded["status"] += 1
            return
        self._is_offline = not online
        self._status_known.set()
        if self._is_offline:
            self.lose("the device says that it is offline")


class Address(NamedTuple):
    """Of a broker, and as whom; devices for which it is the same share one connection."""

    host: str
    port: int
    username: str | None
    password: str | None
    tls: bool


class MqttBroker:
    def __init__(self, address: Address) -> None:
        self.loss: str | None = None
        self._address = address
        self._stations: dict[str, MqttTransport] = {}  # by each topic
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
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.wait([watcher])
        if client is not None:
            with contextlib.suppress(aiomqtt.MqttError, OSError):
                await client.__aexit__(None, None, None)
        await self._publishing.close()

    async def join(self, station: MqttTransport) -> None:
        """Raises TransportFailed."""
        topics = station.topics
        if topics.up in self._stations or self._client is None:
            raise TransportFailed(f"another device has the topic {topics.up}")
        self._stations |= {topics.up: station, topics.status: station}
        try:
            for topic in (topics.status, topics.up):  # in this order: a retained status is here when both are answered
                await self._client.subscribe(topic, qos=1)
        except aiomqtt.MqttError as error:
            raise TransportFailed(f"the broker refuses the topic {topics.up}: {error}") from error

    async def leave(self, station: MqttTransport) -> None:
        topics = station.topics
        if self._stations.get(topics.up) is station:
            del self._stations[topics.up], self._stations[topics.status]
            if self._client is not None and not self.is_lost:
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
            self._lose(client, error)

    def _take(self, topic: str, payload: bytes) -> None:
        station = self._stations.get(topic)
        if station is not None:
            station.receive_untrusted(topic, payload)

    async def _watch(self, client: BoundedClient) -> None:
        self._lose(client, await client.ended())

    def _lose(self, client: BoundedClient, error: BaseException | None) -> None:
        if self.loss is None:
            where = f"{self._address.host}:{self._address.port}"
            self.loss = f"the connection to the broker {where} ended: {client.refusal or error or 'it was closed'}"
            for station in set(self._stations.values()):
                station.lose(self.loss)

    @property
    def is_lost(self) -> bool:
        return self.loss is not None
