"""Bluetooth through bleak: the operating system's own."""

from collections.abc import Callable

from bleak import BleakClient
from bleak.exc import BleakError

from interlock.devices.transports.ble import MTU_LEAST, Peripheral, PeripheralError

FAILURES = (BleakError, OSError, EOFError)  # EOFError: the bus of BlueZ went away


class BleakCentral:
    async def connect(self, address: str, service: str, on_disconnected: Callable[[], None]) -> Peripheral:
        client = BleakClient(address, lambda _: on_disconnected(), services=[service])
        try:
            await client.connect()
        except FAILURES as error:
            raise PeripheralError(str(error)) from error
        return BleakPeripheral(client)


class BleakPeripheral:
    mtu = MTU_LEAST  # what bleak says of a larger one is not known before it is acquired, and differs by system

    def __init__(self, client: BleakClient) -> None:
        self._client = client

    async def subscribe(self, characteristic: str, on_data: Callable[[bytes], None]) -> None:
        try:
            await self._client.start_notify(characteristic, lambda _, data: on_data(bytes(data)))
        except FAILURES as error:
            raise PeripheralError(str(error)) from error

    async def write(self, characteristic: str, data: bytes) -> None:
        try:
            await self._client.write_gatt_char(characteristic, data, response=True)
        except FAILURES as error:
            raise PeripheralError(str(error)) from error

    async def disconnect(self) -> None:
        try:
            await self._client.disconnect()
        except FAILURES as error:
            raise PeripheralError(str(error)) from error
