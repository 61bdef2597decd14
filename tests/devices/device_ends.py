"""The other ends of all transports: devices in the process of the test, told what to say and what to lose.

Each `End` keeps every message that reached it, byte for byte, and hands it to the same little stub, which is written
with cbor2 and json alone. `Ends` makes one of each, with their descriptions in a workspace.
"""

import asyncio
import contextlib
import json
import os
import select
import socket
import threading
import time
import tty
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, Self

import aiomqtt
import can
import cbor2
import isotp
import pytest
from bumble.link import LocalLink
from cobs import cobs
from tests import preloaded
from tests.devices.bluetooth import ServedController, Stub, make_device
from tests.devices.broker import Broker

TOOLS = """
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
latency_class = "realtime"
response = [{ name = "celsius", type = "u8" }]
[[tool]]
id = 2
name = "set_level"
mutable = true
reversible = true
request = [{ name = "level", type = "u8", maximum = 100 }]
[[tool]]
id = 3
name = "press"
mutable = true
reversible = true
"""
ANNOUNCED = [{0: 1, 1: [], 2: 5}, {0: 2, 1: [0], 2: 5}, {0: 3, 1: [], 2: 5}]
NAMES = {1: "read", 2: "set_level", 3: "press"}
QUICK = "heartbeat_ms = 200\ntimeout_ms = 160"
Run = Callable[[Coroutine[Any, Any, Any]], Any]
DRIP_S = 0.002  # between two pieces
LOST_ONE_IN = 5  # frames, of those that a test lets be lost


class End:
    """One device. `heard` has the calls; heartbeats and registrations are not among them."""

    profile = "b"
    transport: ClassVar[str]

    def __init__(self, segment: str) -> None:
        self.segment = segment
        self.heard: list[bytes] = []
        self.is_silent = False
        self.loses = False
        self.ignores = False  # hears calls and answers none
        self.result: Any = {0: 21}  # of `read`
        self.tools = TOOLS
        self.lie: Callable[[bytes], list[bytes]] | None = None  # what calls are answered with instead
        self._frames = 0

    def link(self) -> str:
        raise NotImplementedError

    def describe(self, workspace: Path) -> None:
        file = workspace / ".devices" / f"{self.segment}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        text = (
            f'profile = "{self.profile}"\n[link]\ntransport = "{self.transport}"\n{QUICK}\n{self.link()}\n{self.tools}'
        )
        file.write_text(text)

    def say(self, message: bytes) -> None:
        """Unasked."""
        raise NotImplementedError

    def say_garbage(self, data: bytes) -> None:
        """Bytes below the framing, where the transport has one."""
        self.say(data)

    def pour(self, message: bytes, over: threading.Event) -> None:
        """Says it as fast as the transport takes it."""
        while not over.is_set():
            self.say(message)

    def drip(self, message: bytes) -> None:
        """Says it in the smallest pieces that the transport has."""
        raise NotImplementedError

    def stop(self) -> None:
        pass

    def replies(self, message: bytes) -> list[bytes]:
        calls = len(self.heard)
        answer = self.answer(message)
        if self.lie is not None and len(self.heard) > calls:
            return self.lie(message)
        return [] if answer is None else [answer]

    def answer(self, message: bytes) -> bytes | None:
        if self.is_silent:
            return None
        asked = cbor2.loads(message)
        if asked[1] == "r":
            return None if self._is_lost() else cbor2.dumps({1: "r", 3: ANNOUNCED})
        if asked[1] == "h":
            return cbor2.dumps({2: asked[2], 4: {}})
        if self._is_lost():
            return None
        self.heard.append(message)
        if self.ignores or self._is_lost():
            return None
        return cbor2.dumps({2: asked[2], 4: self.result if asked[1] == 1 else {}})

    def _is_lost(self) -> bool:
        """Once for each frame of a call or an answer."""
        if not self.loses:
            return False
        self._frames += 1
        return self._frames % LOST_ONE_IN == 0

    def call_of(self, message: bytes) -> tuple[object, int]:
        """What a call says without its id, and its length without that."""
        asked = cbor2.loads(message)
        request_id = asked.pop(2)
        return asked, len(message) - len(cbor2.dumps(request_id))

    def id_of(self, message: bytes) -> int:
        found: int = cbor2.loads(message)[2]
        return found

    def reading(self, request_id: int, celsius: int) -> bytes:
        """The answer to a `read` with that id."""
        return cbor2.dumps({2: request_id, 4: {0: celsius}})


class PtyEnd(End):
    transport = "uart_cbor"

    def __init__(self, segment: str, folder: Path) -> None:
        super().__init__(segment)
        self.port = folder / f"{segment}.pty"
        self.plug()

    def link(self) -> str:
        return f'port = "{self.port}"'

    def plug(self) -> None:
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self.port.symlink_to(os.ttyname(self._slave))
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        os.close(self._end)
        self._thread.join()
        self.port.unlink()
        for file in (self._master, self._slave, self._ended):
            os.close(file)

    def say(self, message: bytes) -> None:
        self.say_garbage(self.encode(message))

    def say_garbage(self, data: bytes) -> None:
        os.write(self._master, data)

    def drip(self, message: bytes) -> None:
        for byte in self.encode(message):
            self.say_garbage(bytes((byte,)))
            time.sleep(DRIP_S)

    def encode(self, message: bytes) -> bytes:
        return cobs.encode(message) + b"\0"

    def decode(self, begun: bytes) -> tuple[list[bytes], bytes]:
        *whole, rest = begun.split(b"\0")
        return [cobs.decode(frame) for frame in whole if frame], rest

    def _run(self) -> None:
        begun = b""
        while True:
            ready, _, _ = select.select([self._master, self._ended], [], [])
            if self._ended in ready:
                return
            messages, begun = self.decode(begun + os.read(self._master, 4096))
            for message in messages:
                for answer in self.replies(message):
                    self.say(answer)


class CheckedPtyEnd(PtyEnd):
    """With CRC-16 within the COBS frame, as a tool that cannot be undone needs it."""

    def link(self) -> str:
        return super().link() + '\ncrc = "crc16"'

    def encode(self, message: bytes) -> bytes:
        return super().encode(message + crc16(message))

    def decode(self, begun: bytes) -> tuple[list[bytes], bytes]:
        messages, rest = super().decode(begun)
        assert all(crc16(message[:-2]) == message[-2:] for message in messages)
        return [message[:-2] for message in messages], rest


class FrameEnd(PtyEnd):
    """Profile A: SOF, LEN, TYPE, TOOL_ID, SEQ, PAYLOAD, CRC-8."""

    profile = "a"

    def encode(self, message: bytes) -> bytes:
        body = bytes((len(message),)) + message
        return b"\x7e" + body + bytes((crc8(body),))

    def decode(self, begun: bytes) -> tuple[list[bytes], bytes]:
        messages = []
        while len(begun) >= 2 and len(begun) >= 3 + begun[1]:
            messages.append(begun[2 : 2 + begun[1]])
            begun = begun[3 + begun[1] :]
        return messages, begun

    def answer(self, message: bytes) -> bytes | None:
        if self.is_silent:
            return None
        if message[0] == 4:
            return message
        self.heard.append(message)
        result = bytes(self.result.values()) if message[1] == 1 else b""
        return b"\x02" + message[1:3] + result + b"\0"

    def call_of(self, message: bytes) -> tuple[object, int]:
        return message[:2] + message[3:], len(message)

    def id_of(self, message: bytes) -> int:
        return message[2]

    def reading(self, request_id: int, celsius: int) -> bytes:
        return bytes((2, 1, request_id, celsius, 0))


class CanEnd(End):
    """ISO-TP by can-isotp's own threads, on a bus that both processes reach by multicast."""

    transport = "can_cbor"

    def __init__(self, segment: str) -> None:
        super().__init__(segment)
        # Linux hands what is said in any group to all that listen at the port: ids are those of this process alone.
        self._group = f"239.74.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
        self._tx_id = 0x10000000 | (os.getpid() & 0xFFFFFF) << 1
        self._rx_id = self._tx_id | 1
        try:
            self._bus = can.Bus(interface="udp_multicast", channel=self._group)
        except (can.CanError, OSError) as error:
            pytest.skip(f"this machine has no route for multicast: no test of all transports is run ({error})")
        self._notifier = can.Notifier(self._bus, [], timeout=0.05)
        address = isotp.Address(isotp.AddressingMode.Normal_29bits, rxid=self._rx_id, txid=self._tx_id)
        self._stack = isotp.NotifierBasedCanStack(self._bus, self._notifier, address=address, read_timeout=0.02)
        self._stack.start()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def link(self) -> str:
        place = f'interface = "udp_multicast"\nchannel = "{self._group}"'
        return f"{place}\nrx_id = {self._tx_id}\ntx_id = {self._rx_id}"

    def say(self, message: bytes) -> None:
        self._stack.send(message)

    def say_garbage(self, data: bytes) -> None:
        for at in range(0, len(data), 8):
            self._bus.send(can.Message(arbitration_id=self._tx_id, data=data[at : at + 8]))

    def pour(self, message: bytes, over: threading.Event) -> None:
        """A message of one frame, as often as a bus of 1 Mbit/s carries it."""
        while not over.wait(0.01):
            for _ in range(80):
                self.say_garbage(bytes((len(message),)) + message)

    def drip(self, message: bytes) -> None:
        """A message of several frames, before anybody says that they may come."""
        self.say_garbage(bytes((0x10, len(message))) + message[:6])
        for number, at in enumerate(range(6, len(message), 7), 1):
            time.sleep(DRIP_S)
            self.say_garbage(bytes((0x20 | number,)) + message[at : at + 7])

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()
        self._stack.stop()
        self._notifier.stop()
        self._bus.shutdown()

    def _run(self) -> None:
        while not self._is_over:
            message = self._stack.recv(block=True, timeout=0.05)
            for answer in [] if message is None else self.replies(bytes(message)):
                self._stack.send(answer)


class SpiEnd(End):
    """A slave behind a socket: a request, a poll and a fetch are one transfer each."""

    transport = "spi_cbor"

    def __init__(self, segment: str) -> None:
        super().__init__(segment)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.tcp_port: int = self._server.getsockname()[1]
        self._waiting: list[bytes] = []
        self._fetched = b""
        self.lengths: list[bytes] = []  # that the next polls read, whatever waits
        threading.Thread(target=self._serve, daemon=True).start()

    def link(self) -> str:
        return "poll_ms = 5"

    def say(self, message: bytes) -> None:
        self._waiting.append(message)

    def pour(self, message: bytes, over: threading.Event) -> None:
        while not over.wait(0.001):
            self._waiting += [message] * (50 - len(self._waiting))
        self._waiting.clear()

    def stop(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._fetched = b""
                with connection, connection.makefile("rb") as file, contextlib.suppress(OSError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    while length := int.from_bytes(file.read(2), "big"):
                        connection.sendall(self._transfer(file.read(length)))

    def _transfer(self, data: bytes) -> bytes:
        if any(data):
            self._waiting += self.replies(data[2:])
            return bytes(len(data))
        if self.lengths and not self._fetched:
            return self.lengths.pop(0)
        if self._fetched:
            message, self._fetched = self._fetched, b""
            return message
        if not self._waiting or self.is_silent:
            return b"\0\0"
        self._fetched = self._waiting.pop(0)
        return len(self._fetched).to_bytes(2, "big")


class BleEnd(End):
    transport = "ble_cbor"

    def __init__(self, segment: str, run: Run) -> None:
        super().__init__(segment)
        self._run_in_loop = run
        self.address = "F1:F1:F1:F1:F1:F1"
        run(self._start(LocalLink()))

    async def _start(self, link: LocalLink) -> None:
        self._controller = ServedController()
        self.hci_port = await self._controller.start(link)
        self.stub = Stub(make_device(link, self.address), self.replies)
        await self.stub.start()

    def link(self) -> str:
        return f'address = "{self.address}"'

    def say(self, message: bytes) -> None:
        self._run_in_loop(self.stub.send(message))

    def say_garbage(self, data: bytes) -> None:
        if self.stub.is_connected:
            self._run_in_loop(self.stub.say(data))

    def pour(self, message: bytes, over: threading.Event) -> None:
        """As many as a radio carries."""
        while not over.wait(0.01):
            for _ in range(10):
                self.say(message)

    def drip(self, message: bytes) -> None:
        for byte in len(message).to_bytes(2, "big") + message:
            self.say_garbage(bytes((byte,)))

    def disconnect(self) -> None:
        assert self.stub.connection is not None
        self._run_in_loop(self.stub.connection.disconnect())

    def stop(self) -> None:
        self._run_in_loop(self._controller.stop())


class MqttEnd(End):
    transport = "mqtt_json"
    profile = "json"

    def __init__(self, segment: str, run: Run, broker: Broker) -> None:
        super().__init__(segment)
        self._run_in_loop = run
        self._broker = broker
        self.result = {"celsius": 21}
        self.repeats = False  # each answer to a call, as QoS 1 may
        self.start()

    def start(self) -> None:
        self._run_in_loop(self._start())

    async def _start(self) -> None:
        self._client = aiomqtt.Client("127.0.0.1", self._broker.port)
        await self._client.__aenter__()
        await self._client.subscribe(f"mcpax/{self.segment}/down", qos=1)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._client.messages:
            assert isinstance(message.payload, bytes)
            for answer in self.replies(message.payload):
                for _ in range(2 if self.repeats else 1):
                    await self._publish("up", answer)

    async def _publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        await self._client.publish(f"mcpax/{self.segment}/{topic}", payload, qos=1, retain=retain)

    def link(self) -> str:
        return f'host = "127.0.0.1"\ntcp_port = {self._broker.port}'

    def say(self, message: bytes) -> None:
        self._run_in_loop(self._publish("up", message))

    def pour(self, message: bytes, over: threading.Event) -> None:
        self._run_in_loop(self._pour(message, over))

    async def _pour(self, message: bytes, over: threading.Event) -> None:
        while not over.is_set():
            for _ in range(100):
                await self._client.publish(f"mcpax/{self.segment}/up", message)
            await asyncio.sleep(0.01)  # other devices are in this loop

    def say_status(self, status: bytes) -> None:
        self._run_in_loop(self._publish("status", status, retain=True))

    def stop(self) -> None:
        self._run_in_loop(self._stop())

    async def _stop(self) -> None:
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._client.__aexit__(None, None, None)

    def answer(self, message: bytes) -> bytes | None:
        if self.is_silent:
            return None
        asked = json.loads(message)
        if asked["method"] == "ping":
            return _json({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
        self.heard.append(message)
        result = self.result if asked["params"]["name"] == "read" else {}
        return _json({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    def call_of(self, message: bytes) -> tuple[object, int]:
        asked = json.loads(message)
        return asked, len(message) - len(str(asked.pop("id")))

    def id_of(self, message: bytes) -> int:
        found: int = json.loads(message)["id"]
        return found

    def reading(self, request_id: int, celsius: int) -> bytes:
        return _json({"jsonrpc": "2.0", "id": request_id, "result": {"celsius": celsius}})


class Hosts:
    """The event loop of devices that need one, in a thread of its own."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


def environment(ble: BleEnd, spi: SpiEnd | None = None) -> dict[str, str]:
    """Of a node that reaches them."""
    ports = {"TESTS_HCI": str(ble.hci_port), "TESTS_SPI": str(spi.tcp_port if spi is not None else 0)}
    return {**ports, preloaded.FIRST: str(Path(__file__).with_name("simulated_buses.py"))}


class Ends:
    """One of each, by its segment."""

    def __init__(self, folder: Path, broker: Broker, hosts: Hosts, *more: End) -> None:
        spi, ble = SpiEnd("panel"), BleEnd("array", hosts.run)
        self.all: dict[str, End] = {
            end.segment: end
            for end in (
                FrameEnd("vent", folder),
                PtyEnd("valve", folder),
                ble,
                spi,
                CanEnd("motor"),
                MqttEnd("pump", hosts.run, broker),
                *more,
            )
        }
        for end in self.all.values():
            end.describe(folder / "workspace")
        self.environment = environment(ble, spi)

    def stop(self) -> None:
        for end in self.all.values():
            end.stop()


class Uplink:
    """A TCP connection that can be cut: what dials `port` reaches the target."""

    def __init__(self, hosts: Hosts, host: str, port: int) -> None:
        self._hosts = hosts
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.mend()

    def mend(self) -> None:
        self._hosts.run(self._open())

    def cut(self) -> None:
        self._hosts.run(self._close())

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, below: asyncio.StreamReader, to_below: asyncio.StreamWriter) -> None:
        above, to_above = await asyncio.open_connection(*self._target)
        self._writers |= {to_below, to_above}
        await asyncio.wait(
            [asyncio.create_task(_pass_on(below, to_above)), asyncio.create_task(_pass_on(above, to_below))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for writer in (to_below, to_above):
            self._writers.discard(writer)
            writer.close()


async def _pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            to.write(data)
            await to.drain()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1 ^ 0x07 if crc & 0x80 else crc << 1) & 0xFF
    return crc


def crc16(data: bytes) -> bytes:
    crc = 0xFFFF
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc.to_bytes(2, "big")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
