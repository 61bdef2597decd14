"""A line with a simulated device at its end, inside this process: for trying things without hardware or libraries."""

import asyncio

from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.simulation import SimulatedDevice
from interlock.devices.protocol.wire_formats import framing_of


class SimulatedLine(asyncio.Transport):
    """To its user a transport like that of any line; what is written the device hears, and answers in the next turn."""

    def __init__(self, description: DeviceDescription, user: asyncio.Protocol) -> None:
        """Raises ValueError for a device that cannot be simulated."""
        super().__init__()
        self._device = SimulatedDevice(description)
        self._framing = framing_of(description.link, description.profile)
        self._user = user
        self._is_closed = False
        self._tell(self._device.boot())

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closed:
            for message in self._framing.feed_untrusted(bytes(data), asyncio.get_running_loop().time()):
                self._tell(self._device.answer(message))

    def _tell(self, messages: list[bytes]) -> None:
        for message in messages:
            asyncio.get_running_loop().call_soon(self._deliver, self._framing.encode(message))

    def _deliver(self, data: bytes) -> None:
        if not self._is_closed:
            self._user.data_received(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes unasked."""

    def resume_reading(self) -> None:
        """Nothing was held back."""

    def abort(self) -> None:
        self._is_closed = True
