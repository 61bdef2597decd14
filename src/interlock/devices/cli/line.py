"""One serial line, read and written directly: a device file, a pty, or socket://HOST:PORT."""

import os
import select
import socket
import time
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.devices.protocol.description import DeviceDescription
from interlock.devices.protocol.wire_formats import framing_of

READ_BYTES: Final = 4096
DRAIN_S: Final = 2.0  # beyond the silence that is waited for: some devices never end
_SOCKET: Final = "socket://"
_PARITIES: Final = {"none": "N", "even": "E", "odd": "O"}


class Line:
    def __init__(self, description: DeviceDescription) -> None:
        """Raises OSError, and ValueError for a port that is none."""
        self.framing = framing_of(description.link, description.profile)
        self._messages: list[bytes] = []
        self._opened: Any = _opened(description)
        self._descriptor: int = self._opened.fileno()

    def send(self, message: bytes) -> None:
        self.send_bytes(self.framing.encode(message))

    def send_bytes(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]

    def maybe_receive(self, within_s: float) -> bytes | None:
        """The next whole message, or None if none came. Raises ConnectionError."""
        ends = time.monotonic() + within_s
        while not self._messages:
            left = ends - time.monotonic()
            if left <= 0:
                return None
            readable, _, _ = select.select([self._descriptor], [], [], left)
            data = os.read(self._descriptor, READ_BYTES) if readable else b""
            if readable and not data:
                raise ConnectionError("the line is gone")
            self._messages += self.framing.feed_untrusted(data, time.monotonic())
        return self._messages.pop(0)

    def drain(self, silence_s: float) -> None:
        """Drops what it still says, for a while."""
        ends = time.monotonic() + silence_s + DRAIN_S
        while time.monotonic() < ends and self.maybe_receive(silence_s) is not None:
            pass

    def close(self) -> None:
        self._opened.close()


def _opened(description: DeviceDescription) -> Any:
    link = description.link
    port = link.port or ""
    if port.startswith(_SOCKET):
        place = urlsplit(port)
        if place.hostname is None or place.port is None:
            raise ValueError(f"{port} is not socket://HOST:PORT")
        connected = socket.create_connection((place.hostname, place.port), timeout=5.0)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    import serialx

    opened = serialx.serial_for_url(port, baudrate=link.baud, parity=serialx.Parity(_PARITIES[link.parity]))
    opened.open()
    return opened
