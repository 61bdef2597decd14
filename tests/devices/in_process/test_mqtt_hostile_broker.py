"""A broker that lies, over a real socket: is what it can make the node keep and do bounded, and the reason named?"""

import asyncio
import contextlib
import socket
import ssl
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.devices.device_owner import Owner, description
from tests.support.certificates import Authority

from interlock.devices.transports import mqtt
from interlock.devices.transports.mqtt import PACKET_BYTES_MAX, MqttTransport
from interlock.devices.transports.transport import SharedConnections, TransportFailed

CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK = 0x20, 0x30, 0x40, 0x90, 0xB0
ACCEPTED = bytes((CONNACK, 3, 0, 0, 0))
LARGEST = b"\xff\xff\xff\x7f"  # a remaining length of 268,435,455
POURED_MAX = 32 * 1024 * 1024
TOPIC, FOREIGN = b"mcpax/pump/up", b"mcpax/nobody/up"
MEMORY_MAX = 4 * 1024 * 1024  # of all that is allocated meanwhile; the broker's own part of it is a few blocks

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def publish(qos: int, number: int, payload: bytes, topic: bytes = TOPIC) -> bytes:
    body = struct.pack(">H", len(topic)) + topic + (struct.pack(">H", number) if qos else b"") + b"\0" + payload
    length, left = b"", len(body)
    while True:
        left, low = left >> 7, left & 0x7F
        length += bytes((low | (0x80 if left else 0),))
        if not left:
            return bytes((PUBLISH | qos << 1,)) + length + body


async def packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Of a client whose packets are short."""
    head = await reader.readexactly(2)
    return head[0], await reader.readexactly(head[1])


async def subscribe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts the client and both of its topics."""
    await packet(reader)
    writer.write(ACCEPTED)
    for _ in range(2):
        _, body = await packet(reader)
        writer.write(bytes((SUBACK, 4)) + body[:2] + b"\0\x01")


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Behaves until the client says something to its device."""
    await subscribe(reader, writer)
    await packet(reader)


class Broker:
    def __init__(self, port: int) -> None:
        self.port = port
        self.poured = 0
        self.has_poured = asyncio.Event()
        self.ended = asyncio.Event()  # the client has closed its end


@contextlib.asynccontextmanager
async def broker(
    begin: Behaviour, block: bytes | Callable[[int], bytes], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Broker]:
    """After `begin` it pours blocks until the client closes its end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await begin(reader, writer)
            number = 0
            while block and made.poured < POURED_MAX:
                number += 1
                data = block(number) if callable(block) else block
                writer.write(data)
                await writer.drain()
                made.poured += len(data)
                made.has_poured.set()
                await asyncio.sleep(0)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        made.ended.set()

    listening = socket.create_server(("127.0.0.1", 0))
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listening.setsockopt(socket.SOL_SOCKET, option, 4096)  # what is not read is soon not taken
    async with await asyncio.start_server(serve, sock=listening, ssl=tls) as server:
        made = Broker(server.sockets[0].getsockname()[1])
        yield made


def transport(port: int, owner: Owner, *, tls: bool = False) -> MqttTransport:
    described = description(transport="mqtt_json", host="127.0.0.1", tcp_port=port, tls=tls)
    return MqttTransport("pump", described, owner, SharedConnections())


async def announces_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await accept(reader, writer)
    writer.write(bytes((PUBLISH,)) + LARGEST)


async def reads_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await accept(reader, writer)
    assert isinstance(writer.transport, asyncio.ReadTransport)
    writer.transport.pause_reading()


@pytest.mark.parametrize(
    ("begin", "block", "reason"),
    [
        (announces_all, b"x" * 65536, "announced a packet of 268435455 bytes"),
        (accept, lambda number: publish(2, number, b"x" * 60000), "released none of 16 messages with QoS 2"),
        (reads_no_more, b"".join(publish(1, 1, b"", FOREIGN) for _ in range(2000)), "left 1024 packets unread"),
    ],
    ids=["a packet of 256 MB", "QoS 2 without end", "nothing is read"],
)
async def test_announced_or_unfinished_packets_of_a_broker_take_no_memory_and_the_reason_is_named(
    begin: Behaviour, block: bytes | Callable[[int], bytes], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [*mqtt.SOCKET_OPTIONS, (socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)]  # the kernel keeps less beside us
    monkeypatch.setattr(mqtt, "SOCKET_OPTIONS", small)
    owner = Owner()
    async with broker(begin, block) as hostile:
        pump = transport(hostile.port, owner)
        tracemalloc.start()
        try:
            await pump.open()
            pump.send(b"{}")
            await owner.until(lambda owner: owner.lost)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await pump.close()
        assert reason in owner.lost[0]
        assert peak < MEMORY_MAX
        async with asyncio.timeout(5):
            await hostile.ended.wait()
        assert hostile.poured < POURED_MAX


async def test_a_broker_that_announces_too_much_as_its_first_word_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt, "ANSWER_S", 0.5)  # after which the library gives up

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(bytes((CONNACK,)) + LARGEST)

    async with broker(begin, b"x" * 65536) as hostile:
        pump = transport(hostile.port, Owner())
        with pytest.raises(TransportFailed, match=f"and {PACKET_BYTES_MAX} are taken"):
            await pump.open()
        await pump.close()
        assert hostile.poured < POURED_MAX


async def test_a_broker_that_is_lost_while_a_device_joins_does_not_count_as_open() -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await subscribe(reader, writer)
        writer.write(bytes((PUBLISH,)) + LARGEST)

    async with broker(begin, b"x" * 65536) as hostile:
        pump = transport(hostile.port, Owner())
        with pytest.raises(TransportFailed, match="announced a packet"):
            await pump.open()
        await pump.close()


async def acknowledge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes = b"") -> None:
    """All that the client says to its device, also while the broker pours, and its leave."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            kind, body = await packet(reader)
            if kind & 0xF0 == PUBLISH:
                at = 2 + int.from_bytes(body[:2], "big")
                writer.write(bytes((PUBACK, 2)) + body[at : at + 2] + answer)
            else:
                writer.write(bytes((UNSUBACK, 5)) + body[:2] + b"\0\0\0")


@contextlib.asynccontextmanager
async def flooded(
    block: bytes, owner: Owner, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Broker, MqttTransport]]:
    tasks = []

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await subscribe(reader, writer)
        tasks.append(asyncio.create_task(acknowledge(reader, writer)))

    async with broker(begin, block, tls) as hostile:
        pump = transport(hostile.port, owner, tls=tls is not None)
        await pump.open()
        yield hostile, pump
        await pump.close()
        async with asyncio.timeout(5):
            await hostile.ended.wait()
    await asyncio.wait(tasks)


async def test_a_device_that_publishes_without_end_is_left_for_a_while() -> None:
    owner = Owner()
    async with flooded(publish(0, 0, b"{}") * 50, owner):
        await owner.until(lambda owner: owner.lost)
    assert owner.lost == [f"it sends more than {mqtt.MESSAGES_PER_S} messages a second"]
    assert owner.rest_s == mqtt.FLOOD_REST_S
    assert len(owner.messages) <= 1.5 * mqtt.MESSAGES_PER_S * mqtt.BURST_S


async def test_answers_may_come_as_fast_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "READS_PER_S", 300)  # or this takes many seconds

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await subscribe(reader, writer)
        await acknowledge(reader, writer, publish(0, 0, b"{}"))

    owner = Owner()
    asked = int(3 * mqtt.MESSAGES_PER_S * mqtt.BURST_S)
    async with broker(begin, b"") as honest:
        pump = transport(honest.port, owner)
        await pump.open()
        async with asyncio.timeout(5):
            for number in range(asked):
                pump.send(b"{}")
                await owner.next_message(number)
        await pump.close()
        async with asyncio.timeout(5):
            await honest.ended.wait()
    assert len(owner.messages) == asked
    assert owner.lost == []


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.trusted))
    return authority.context()


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_a_broker_that_pours_is_read_no_faster_than_is_due(
    monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext, is_encrypted: bool
) -> None:
    small = [*mqtt.SOCKET_OPTIONS, (socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)]
    monkeypatch.setattr(mqtt, "SOCKET_OPTIONS", small)
    owner, loop = Owner(), asyncio.get_running_loop()
    poured = publish(0, 0, b"x" * 1000, FOREIGN)
    packets = 3000
    due_s = packets * mqtt.READS_PER_PACKET / mqtt.READS_PER_S - mqtt.CLIENT_BURST_S
    began = loop.time()
    async with flooded(poured, owner, tls if is_encrypted else None) as (hostile, pump):
        async with asyncio.timeout(10 * due_s):
            while hostile.poured < packets * len(poured):
                await hostile.has_poured.wait()
                hostile.has_poured.clear()
        elapsed_s = loop.time() - began
        pump.send(b"{}")  # it is heard beside the flood
    assert elapsed_s > due_s / 2  # some of it waits to be read
    assert owner.lost == []


async def test_all_messages_of_one_tls_record_are_received(tls: ssl.SSLContext) -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await subscribe(reader, writer)
        await acknowledge(reader, writer, publish(0, 0, b"{}") * 150)

    owner = Owner()
    async with broker(begin, b"", tls) as honest:
        pump = transport(honest.port, owner, tls=True)
        await pump.open()
        pump.send(b"{}")
        await owner.next_message(149)
        await pump.close()
        async with asyncio.timeout(5):
            await honest.ended.wait()
