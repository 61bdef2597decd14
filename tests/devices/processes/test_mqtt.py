"""MQTT against a real mosquitto: topics, statuses, limits, and a broker that goes away."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiomqtt
import pytest
from tests.devices.broker import Broker
from tests.devices.device_owner import Owner, description

from interlock.devices.protocol.description_check import read_description
from interlock.devices.transports.mqtt import MqttTransport
from interlock.devices.transports.transport import SharedConnections, TransportFailed

NAMES = (f"pump{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.stop()


class Pair:
    def __init__(self, broker: Broker, device: aiomqtt.Client) -> None:
        self.name = next(NAMES)
        self.owner, self.connections, self.device = Owner(), SharedConnections(), device
        self.description = description(transport="mqtt_json", host="127.0.0.1", tcp_port=broker.port)
        self.transport = MqttTransport(self.name, self.description, self.owner, self.connections)

    async def take(self) -> bytes:
        async with asyncio.timeout(5):
            payload = (await anext(self.device.messages)).payload
        assert isinstance(payload, bytes)
        return payload

    async def say(self, topic: str, payload: bytes, retain: bool = False) -> None:
        await self.device.publish(f"mcpax/{self.name}/{topic}", payload, qos=1, retain=retain)


@pytest.fixture
async def pair(broker: Broker) -> AsyncIterator[Pair]:
    async with aiomqtt.Client("127.0.0.1", broker.port) as device:
        pair = Pair(broker, device)
        await device.subscribe(f"mcpax/{pair.name}/down", qos=1)
        await pair.transport.open()
        try:
            yield pair
        finally:
            await pair.transport.close()


async def test_messages_pass_in_both_directions_at_once(pair: Pair) -> None:
    pair.transport.send(b'{"id":1}')
    assert await pair.take() == b'{"id":1}'
    began = asyncio.get_running_loop().time()
    for number in range(10):
        await pair.say("up", b"%d" % number)
        assert await pair.owner.next_message(number) == b"%d" % number
    assert asyncio.get_running_loop().time() - began < 0.4  # 40 ms each, where small packets are held back
    assert pair.owner.traffic[0] == (True, b'{"id":1}')


async def test_a_message_above_64_kib_is_dropped_and_counted(pair: Pair) -> None:
    await pair.say("up", b'"%s"' % (b"x" * 65535))
    await pair.say("up", b'"%s"' % (b"x" * 65534))
    assert len(await pair.owner.next_message()) == 65536
    assert pair.transport.discarded == {"too_large": 1}
    await pair.say("up", b"x" * 1_000_000)  # never sent to us: the broker knows our limit
    await pair.say("up", b"{}")
    assert await pair.owner.next_message(1) == b"{}"


async def test_offline_is_lost_and_cannot_be_opened_until_the_device_is_online(pair: Pair) -> None:
    await pair.say("status", b"nonsense")
    await pair.say("status", b"offline", retain=True)
    await pair.owner.until(lambda owner: owner.lost)
    assert pair.owner.lost == ["the device says that it is offline"]
    assert pair.transport.discarded == {"status": 1}
    await pair.transport.close()
    with pytest.raises(TransportFailed, match="offline"):
        await pair.transport.open()
    await pair.transport.close()
    await pair.say("status", b"online", retain=True)
    await pair.transport.open()
    await pair.say("up", b"1")
    assert await pair.owner.next_message() == b"1"


async def test_the_last_will_of_a_device_loses_it(pair: Pair, broker: Broker) -> None:
    will = aiomqtt.Will(f"mcpax/{pair.name}/status", b"offline", qos=1, retain=True)
    async with aiomqtt.Client("127.0.0.1", broker.port, will=will) as device:
        connected = device._client.socket()
        assert isinstance(connected, socket.socket)
        connected.shutdown(socket.SHUT_RDWR)  # without a word
        await pair.owner.until(lambda owner: owner.lost)
        with pytest.raises(aiomqtt.MqttError):
            await anext(device.messages)


async def test_devices_of_one_broker_share_a_connection_and_have_separate_topics(pair: Pair, broker: Broker) -> None:
    owner = Owner()
    other = MqttTransport(f"{pair.name}b", pair.description, owner, pair.connections)
    same = MqttTransport(pair.name, pair.description, Owner(), pair.connections)
    await other.open()
    try:
        assert len(pair.connections._held) == 1
        with pytest.raises(TransportFailed, match=f"mcpax/{pair.name}/up"):
            await same.open()
        await same.close()
        await pair.device.publish(f"mcpax/{pair.name}b/up", b"2", qos=1)
        await pair.say("up", b"1")
        assert await owner.next_message() == b"2"
        assert await pair.owner.next_message() == b"1"
        assert len(owner.messages) == 1
    finally:
        await other.close()


async def test_a_broker_that_goes_away_loses_the_link_which_can_be_opened_when_it_returns(
    pair: Pair, broker: Broker
) -> None:
    broker.stop()
    try:
        await pair.owner.until(lambda owner: owner.lost)
        assert "broker" in pair.owner.lost[0]
        pair.transport.send(b"1")
        await pair.transport.close()
        with pytest.raises(TransportFailed, match=f"127.0.0.1:{broker.port}"):
            await pair.transport.open()
        await pair.transport.close()
    finally:
        broker.start()
    await pair.transport.open()
    async with aiomqtt.Client("127.0.0.1", broker.port) as device:
        await device.publish(f"mcpax/{pair.name}/up", b"3", qos=1)
        assert await pair.owner.next_message() == b"3"
    assert len(pair.owner.lost) == 1


def test_a_topic_has_no_wildcards() -> None:
    for topic in ("a/b", "+", "#"):
        with pytest.raises(TransportFailed, match="topic"):
            MqttTransport(
                "pump", description(transport="mqtt_json", host="localhost", topic=topic), Owner(), SharedConnections()
            )


@pytest.mark.req("AX-10.4-2")
async def test_a_broker_beyond_this_machine_is_reached_without_tls_only_where_that_is_written(
    tmp_path: Path,
) -> None:
    """Links that are wires or radio have no TLS at all."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host = asked.getsockname()[0]
    link: dict[str, object] = {"transport": "mqtt_json", "host": host}
    tool = {"id": 1, "name": "read", "mutable": False, "reversible": True}
    faults = read_description({"profile": "json", "link": link, "tool": [tool]})
    assert isinstance(faults, tuple)
    assert "TLS" in faults[0].message
    elsewhere = Broker(tmp_path, host="0.0.0.0")
    elsewhere.start()
    try:
        link |= {"tcp_port": elsewhere.port, "tls": False}
        described = read_description({"profile": "json", "link": link, "tool": [tool]})
        assert not isinstance(described, tuple)
        transport = MqttTransport("pump", described, Owner(), SharedConnections())
        await transport.open()
        await transport.close()
    finally:
        elsewhere.stop()
    for link in (
        {"transport": "uart_cbor", "port": "/dev/ttyUSB0"},
        {"transport": "spi_cbor"},
        {"transport": "can_cbor", "channel": "can0", "rx_id": 1, "tx_id": 2},
        {"transport": "ble_cbor", "address": "F1:F1:F1:F1:F1:F1"},
    ):
        assert not isinstance(read_description({"profile": "b", "link": link}), tuple)
