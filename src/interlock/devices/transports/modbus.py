"""Modbus: the requests of a message, one after the other, over TCP or a serial line (RTU), through pymodbus.

Units of one address or line share it, with one request in flight. A message has a time. If its requests have no turn,
or not all their answers, within that time, the message is given up in silence: its sender knows the same time, and
nothing is sent after it.

On a serial line answers have no number, and a late answer must not be taken for the next one. A unit whose answer did
not come is therefore left alone until one and a half times the time after the request, and is then asked to echo two
random bytes. Units answer in the order in which they are asked. So after the echo, or after the exception of a unit
without this function, no late answer can arrive. Until then the unit is asked nothing else; other units are.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from pymodbus import FramerType, ModbusException
from pymodbus.client import AsyncModbusSerialClient, AsyncModbusTcpClient
from pymodbus.pdu import DecodePDU, ModbusPDU

from interlock.core.background import BackgroundTasks
from interlock.devices.protocol.description import PARITIES, LinkDescription
from interlock.devices.protocol.modbus_codec import EXCEPTION, is_answer, split_untrusted
from interlock.devices.transports.transport import SharedConnection, Transport, TransportFailed

PORT = 502
CONNECT_S = 5.0
DRAIN_S = 0.05  # for what was asked before to arrive and be dropped
REST = 1.5  # times the time of a message: how long after a request a late answer may come
ECHO = b"\x08\0\0"  # diagnostics, return query data
_REQUESTS = DecodePDU(True)

logging.getLogger("pymodbus.logging").setLevel(logging.CRITICAL)  # what it says is an answer, a time or a loss here


class ModbusTransport(Transport):
    """A transport to one Modbus unit at an address or on a serial line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        link = self._link
        self.unit, self.on_traffic = link.unit, self._owner.on_traffic
        self.timeout_s = link.timeout_ms / 1000
        is_tcp = link.transport == "modbus_tcp"
        address = (link.host, link.tcp_port) if is_tcp else (link.port, link.baud, link.parity)
        self._key = (link.transport, *address)
        self._line: ModbusLine | None = None
        self._executing = BackgroundTasks()

    async def open(self) -> None:
        self._line = await self._connections.acquire(self._key, lambda: ModbusLine(self._link))
        self._line.stations[self] = self
        self._is_open = True

    def send(self, message: bytes) -> None:
        if self._is_open and self._line is not None:
            ends = asyncio.get_running_loop().time() + self.timeout_s
            self._executing.begin(self._execute(self._line, message, ends), "a Modbus message")

    async def close(self) -> None:
        self._is_open = False
        await self._executing.close()
        line, self._line = self._line, None
        if line is not None:
            line.leave(self)
            await self._connections.release(line, self._key)

    async def _execute(self, line: "ModbusLine", message: bytes, ends: float) -> None:
        _, units = split_untrusted(message)
        answer = message[:2]
        for unit in units:
            answered = await line.answer(self, unit, ends)
            if answered is None or not is_answer(unit, answered):
                self._discarded["no_answer" if answered is None else "wrong_answer"] += 1
                return
            answer += bytes((len(answered),)) + answered
            if answered[0] & EXCEPTION:
                break
        if self._is_open:
            self._owner.on_message(answer)


class ModbusLine(SharedConnection[ModbusTransport]):
    """A connection to one address or serial line, which its units share. Only one request is in flight at a time."""

    def __init__(self, link: LinkDescription) -> None:
        super().__init__()
        self._link = link
        is_tcp = link.transport == "modbus_tcp"
        self._name = f"{link.host}:{link.tcp_port or PORT}" if is_tcp else str(link.port)
        self._client: AsyncModbusTcpClient | AsyncModbusSerialClient | None = None
        self._turn = asyncio.Lock()
        self._rests: dict[int, float] = {}  # by unit of which a late answer may come: until when it is not asked
        self._on_traffic: Callable[[bool, bytes], None] | None = None

    async def open(self) -> None:
        try:
            # The library neither repeats a request nor reconnects: the session of the device decides both.
            link, times = self._link, {"timeout": CONNECT_S, "retries": 0, "reconnect_delay": 0}
            options: dict[str, Any] = {**times, "trace_packet": self._trace, "trace_connect": self._note_connection}
            client: AsyncModbusTcpClient | AsyncModbusSerialClient
            if link.transport == "modbus_tcp":
                client = AsyncModbusTcpClient(link.host or "localhost", port=link.tcp_port or PORT, **options)
            else:
                options |= {"framer": FramerType.RTU, "baudrate": link.baud, "parity": PARITIES[link.parity]}
                client = AsyncModbusSerialClient(link.port or "", **options)
            self._client = client
            is_connected = await client.connect()
        except (ModbusException, OSError, ValueError) as error:
            raise TransportFailed(f"{self._name} cannot be opened: {error}") from error
        if not is_connected:
            raise TransportFailed(f"{self._name} cannot be opened")
        client.ctx.comm_params.timeout_connect = 3600.0  # of its answers too; each request has its own time

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self.loss = self.loss or "closed"  # before it says so itself
            client.close()

    async def answer(self, station: ModbusTransport, request: bytes, ends: float) -> bytes | None:
        """Send a request to a unit and return its answer, or None if no usable answer arrives before the time
        `ends`.
        """
        unit = station.unit
        try:
            async with asyncio.timeout_at(ends):
                await self._take_turn(unit)
                try:
                    if unit in self._rests and self._link.echo and not await self._has_echoed(station, ends):
                        return None
                    answered = await self._exchange(station, request, ends, REST * station.timeout_s)
                finally:
                    self._turn.release()
        except (TimeoutError, ModbusException, OSError):
            return None
        if answered is not None and is_answer(request, answered):
            self._rests.pop(unit, None)
        return answered

    async def _take_turn(self, unit: int) -> None:
        """Wait until this unit may use the line. A unit whose late answer may still arrive waits longer, without
        delaying the others.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._turn.acquire()
            rest_s = self._rests.get(unit, 0.0) - loop.time()
            if rest_s <= 0:
                return
            self._turn.release()
            await asyncio.sleep(rest_s)

    async def _has_echoed(self, station: ModbusTransport, ends: float) -> bool:
        """Send echo requests to a unit until it answers one, and drop late answers to other requests. Return
        whether it answered one. Raise TimeoutError at the time `ends`.
        """
        while True:
            wanted = ECHO + secrets.token_bytes(2)
            if (answered := await self._exchange(station, wanted, ends, 0.0)) is None:
                return False
            if answered == wanted or answered[0] == ECHO[0] | EXCEPTION:
                return True
            await asyncio.sleep(DRAIN_S)  # the echo itself is still to come

    async def _exchange(self, station: ModbusTransport, request: bytes, ends: float, rest_s: float) -> bytes | None:
        """Send a request, and return the next message of the unit, or None if that is not possible."""
        client, pdu = self._client, _REQUESTS.decode(request)
        begun = asyncio.get_running_loop().time()
        if client is None or pdu is None or self.loss is not None or begun >= ends:
            return None
        pdu.dev_id, self._on_traffic = station.unit, station.on_traffic
        if self._link.transport == "modbus_rtu" and rest_s:
            self._rests[station.unit] = begun + rest_s  # before another has the turn
        try:
            response: ModbusPDU = await client.execute(False, pdu)
        finally:
            self._on_traffic = None
        if response.transaction_id != pdu.transaction_id:
            return None
        return bytes((response.function_code,)) + bytes(response.encode())

    def _trace(self, sent: bool, data: bytes) -> bytes:
        if self._on_traffic is not None:
            self._on_traffic(sent, data)
        return data

    def _note_connection(self, is_connected: bool) -> None:
        if not is_connected:
            self.lose(f"the connection to {self._name} ended")
