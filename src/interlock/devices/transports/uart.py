"""Serial lines: a device file, a pty, or the TCP socket of an emulator.

Received bytes are handled in slices of 1 KiB, one slice in each turn of the event loop. A device that sends without end
is read more slowly than it sends (`BYTES_PER_S`): reading is paused until the bytes are paid for, so that the rest of
the node has its turn. A line that takes nothing is lost once 16 KiB wait to be sent.

Frames of Profile A end by silence if they are incomplete. After the last bytes, a timer feeds the framing with nothing
once the gap has passed, so that a good frame inside an incomplete one is found (MCP-AX B.1).
"""

import asyncio
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from interlock.devices.protocol.description import PARITIES, SIMULATED
from interlock.devices.protocol.framing import framing_of
from interlock.devices.transports.simulated_port import SimulatedLine
from interlock.devices.transports.transport import Transport, TransportFailed

OPEN_S: Final = 5.0
SLICE_BYTES: Final = 1024  # handled at once; some milliseconds of work where every byte is noise
BYTES_PER_S: Final = 100_000  # more than a line of 921600 baud carries; what pours more is read more slowly
BURST_S: Final = 0.1  # of that rate may come at once
SENT_BYTES_MAX: Final = 16 * 1024  # waiting to be sent: a line that takes nothing is lost
_SOCKET: Final = "socket://"


class UartTransport(Transport, asyncio.Protocol):
    """A transport over a serial line to one device. Frames with errors are dropped and counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._framing = framing_of(self._link, self._description.profile)
        self._discarded = self._framing.discarded
        self._transport: asyncio.Transport | None = None
        self._unread = b""  # what is not handled yet; nothing more is read meanwhile
        self._turn: asyncio.TimerHandle | None = None
        self._gap: asyncio.TimerHandle | None = None
        self._paid_until = 0.0  # the time that what was read takes at BYTES_PER_S

    async def open(self) -> None:
        port = self._link.port or ""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(OPEN_S):
                if port == SIMULATED:
                    self.connection_made(SimulatedLine(self._description, self))
                elif port.startswith(_SOCKET):
                    place = urlsplit(port)
                    if place.hostname is None or place.port is None:
                        raise TransportFailed(f"{port} is not socket://HOST:PORT")
                    await loop.create_connection(lambda: self, place.hostname, place.port)
                else:
                    await self._open_line(loop, port)
        except TimeoutError:
            raise TransportFailed(f"{port} did not open within {OPEN_S:g} s") from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise TransportFailed(f"{port}: {why}") from error

    async def _open_line(self, loop: asyncio.AbstractEventLoop, port: str) -> None:
        try:
            import serialx
        except ImportError as missing:
            why = "a serial port needs the library serialx: install the extra interlock[devices]"
            raise TransportFailed(why) from missing
        closed = serialx.PinState.LOW if self._link.reset_on_open else serialx.PinState.UNDEFINED
        try:
            baud, parity = self._link.baud, serialx.Parity(PARITIES[self._link.parity])
            # With HUPCL the next opening raises DTR, which resets many boards.
            ends: dict[str, Any] = {"dtr_on_close": closed, "rts_on_close": closed}
            await serialx.create_serial_connection(loop, lambda: self, port, baud, parity, **ends)
        except serialx.SerialException as error:
            raise TransportFailed(f"{port}: {error}") from error

    def send(self, message: bytes) -> None:
        if (transport := self._transport) is None:
            return
        data = self._framing.encode(message)
        if transport.get_write_buffer_size() > SENT_BYTES_MAX:
            self.lose("it does not read what is sent")
            return
        self._owner.on_traffic(True, data)
        try:
            transport.write(data)
        except OSError as error:
            self.lose(error.strerror or str(error))

    async def is_signalled(self) -> bool:
        """Return whether the presence line (CTS, or the GPIO in the description) says that the device is there. Raise
        OSError if the line cannot be read.
        """
        if self._link.presence == "gpio" and self._link.gpio is not None:
            return (await asyncio.to_thread(Path(self._link.gpio).read_bytes))[:1] == b"1"
        pins = getattr(self._transport, "get_modem_pins", None)
        return pins is not None and (await pins()).cts.to_bool() is True  # None: the line has none (AX-B.3-1)

    async def close(self) -> None:
        self._is_open = False
        for timer in (self._turn, self._gap):
            if timer is not None:
                timer.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # What the line says (asyncio.Protocol)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop are of no class of asyncio
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            return
        self._owner.on_traffic(False, data)
        self._unread += data
        if self._turn is None:
            self._take_turn()

    def connection_lost(self, error: Exception | None) -> None:
        why = getattr(error, "strerror", None) or (str(error) if error is not None else "")
        self.lose(f"the line is gone: {why}" if why else "the line is gone")

    def _take_turn(self) -> None:
        """Handle the next slice of the received bytes. Reading is paused while bytes are left, or if the device sends
        too fast.
        """
        self._turn = None
        some, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
        loop, transport = asyncio.get_running_loop(), self._transport
        now = loop.time()
        self._paid_until = max(now, self._paid_until) + len(some) / BYTES_PER_S
        rest_s = self._paid_until - now - BURST_S
        if self._unread or rest_s > 0:
            if transport is not None:
                transport.pause_reading()
            self._turn = loop.call_later(max(rest_s, 0.0), self._take_turn)
        elif transport is not None:
            transport.resume_reading()
        self._feed(some)
        # Give up an incomplete frame after the gap, so that a good frame inside it is found.
        if self._framing.gap_s is not None:
            if self._gap is not None:
                self._gap.cancel()
            self._gap = loop.call_later(self._framing.gap_s * 1.01, self._feed, b"")

    def _feed(self, data: bytes) -> None:
        for message in self._framing.feed_untrusted(data, asyncio.get_running_loop().time()):
            if self._is_open:
                self._owner.on_message(message)
