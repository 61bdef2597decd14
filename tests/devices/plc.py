"""A PLC for tests: pymodbus's server with coils, inputs and registers, over TCP or a serial line."""

import asyncio
import os
import struct
import sys
import tty
from types import TracebackType
from typing import Any, Self

from pymodbus.constants import ExcCodes
from pymodbus.framer import FramerType
from pymodbus.server import ModbusSerialServer, ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

TEMPERATURE = 10  # input: f32
LEVEL = 20  # holding: i16, tenths of a percent
COUNTER = 30  # holding: u32 with the low word first
BUSY = 40  # holding: every access is refused


class Plc:
    """Units 1 and 2, which are alike."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int]] = []  # function code and address
        self.delay_s = 0.0
        self._server: Any = None

    def _devices(self) -> list[SimDevice]:
        words = [*struct.unpack(">HH", struct.pack(">f", 21.5))]
        tables = (
            [SimData(0, count=16, values=False, datatype=DataType.BITS)],
            [SimData(0, count=16, values=True, datatype=DataType.BITS)],
            [SimData(0, count=64, values=0, datatype=DataType.REGISTERS)],
            [SimData(TEMPERATURE, values=words, datatype=DataType.REGISTERS)],
        )
        return [SimDevice(unit, simdata=tables, action=self._act) for unit in (1, 2)]

    async def _act(
        self, function: int, start: int, address: int, count: int, registers: list[int], values: Any
    ) -> ExcCodes | None:
        self.requests.append((function, address))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return ExcCodes.DEVICE_BUSY if address == BUSY else None

    async def listen(self, port: int = 0) -> int:
        """The TCP port."""
        self._server = ModbusTcpServer(self._devices(), address=("127.0.0.1", port))
        await self._server.serve_forever(background=True)
        found: int = self._server.transport.sockets[0].getsockname()[1]
        return found

    async def attach(self, path: str) -> None:
        self._server = ModbusSerialServer(self._devices(), framer=FramerType.RTU, port=path, baudrate=115200)
        await self._server.serve_forever(background=True)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.shutdown()


class SerialPair:
    """Two ptys of which each says what the other is told: a line with two ends."""

    def __enter__(self) -> Self:
        ends = [os.openpty() for _ in range(2)]
        for master, end in ends:
            tty.setraw(end)
            os.set_blocking(master, False)
        self.paths = [os.ttyname(end) for _, end in ends]
        self._files = [file for pair in ends for file in pair]
        self._masters = [master for master, _ in ends]
        self._loop = asyncio.get_running_loop()
        self.is_cut = False
        self.absent: int | None = None  # a unit for which nothing passes
        for here, there in (self._masters, self._masters[::-1]):
            self._loop.add_reader(here, self._pass_on, here, there)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for master in self._masters:
            self._loop.remove_reader(master)
        for file in self._files:
            os.close(file)

    def _pass_on(self, here: int, there: int) -> None:
        data = os.read(here, 4096)
        if not self.is_cut and data[0] != self.absent:
            os.write(there, data)


async def main() -> None:
    """Serve TCP on a port and say which."""
    print(await Plc().listen(), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
