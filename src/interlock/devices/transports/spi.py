"""SPI: messages behind their length, clocked by the gateway as master, in mode 0 (AX-8.1-4).

Three kinds of transfers, each with its own chip select:

    request   length, message                what the device shifts out meanwhile says nothing
    poll      two zeros                      it shifts out the length of its next message; 0: nothing yet
    fetch     as many zeros as it said       it shifts out that message

A transfer blocks, so each device has a thread, which polls it every `poll_ms`, or looks at its ready line (a file) and
polls only while that reads 1.
"""

import asyncio
import queue
import threading
from pathlib import Path
from typing import Any

from interlock.devices.protocol.framing import PREFIX_BYTES, framing_of
from interlock.devices.transports.transport import Transport, TransportFailed, call_in_loop

# An open `spidev.SpiDev`; the library has no types. `xfer2` exchanges as many bytes as are sent, with the chip selected
# throughout, and raises OSError.
SpiDevice = Any

STUCK = 0xFFFF  # a data line that no device drives


class SpiTransport(Transport):
    """A transport to the device at one chip select line of an SPI bus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        link = self._link
        self._framing = framing_of(link, self._description.profile)
        self._name = f"{link.bus}.{link.chip}"
        self._poll_s = link.poll_ms / 1000
        self._ready = None if link.gpio is None else Path(link.gpio)
        self._to_send: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        link = self._link
        self._loop = asyncio.get_running_loop()
        self._to_send = queue.SimpleQueue()
        try:
            device = await asyncio.to_thread(open_device, link.bus, link.chip, link.speed_hz)
        except OSError as error:
            raise TransportFailed(f"the SPI device {self._name} cannot be opened: {error}") from error
        self._is_open = True
        arguments = (device, self._to_send)
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"spi {self._name}", daemon=True)
        self._thread.start()

    def send(self, message: bytes) -> None:
        if self._is_open:
            data = self._framing.encode(message)
            self._owner.on_traffic(True, data)
            self._to_send.put(data)

    async def close(self) -> None:
        self._is_open = False
        thread, self._thread = self._thread, None
        if thread is not None:
            self._to_send.put(None)
            await asyncio.to_thread(thread.join)

    def _run(self, device: SpiDevice, to_send: "queue.SimpleQueue[bytes | None]") -> None:
        """Exchange messages in a separate thread until the transport is closed or lost."""
        try:
            while True:
                try:
                    data = to_send.get(timeout=self._poll_s)
                except queue.Empty:
                    data = b""
                if data is None:
                    return
                if data:
                    device.xfer2(list(data))
                elif self._ready is None or self._ready.read_text().strip() == "1":
                    self._poll(device)
        except OSError as error:
            call_in_loop(self._loop, self.lose, f"the SPI device {self._name} failed: {error}")
        finally:
            device.close()

    def _poll(self, device: SpiDevice) -> None:
        """Fetch the next message of the device, if it has one. Raise OSError if the device sends an impossible length,
        because the start of its next message is then unknown.
        """
        prefix = bytes(device.xfer2([0] * PREFIX_BYTES))
        length = int.from_bytes(prefix, "big")
        if length == 0:
            return
        if length == STUCK:
            self._discarded["stuck"] += 1
            raise OSError("its data line is stuck at 0xFF")
        if length > self._framing.max_message:
            self._discarded["too_large"] += 1
            raise OSError(f"it announced {length} bytes, and max_frame is {self._framing.max_message}")
        message = bytes(device.xfer2([0] * length))
        call_in_loop(self._loop, self._receive_untrusted, prefix, message)

    def _receive_untrusted(self, prefix: bytes, message: bytes) -> None:
        if self._is_open:
            self._owner.on_traffic(False, prefix + message)
            self._owner.on_message(message)


def open_device(bus: int, chip: int, speed_hz: int) -> SpiDevice:
    """Open an SPI device. Raise OSError if that fails, or TransportFailed if the library spidev is not installed."""
    try:
        import spidev  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise TransportFailed("spi_cbor needs the library spidev: install it beside interlock") from None
    device = spidev.SpiDev(bus, chip)
    device.mode = 0
    device.max_speed_hz = speed_hz
    return device
