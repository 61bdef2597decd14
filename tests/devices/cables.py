"""A serial cable that a test can watch, disturb and pull out: between the socket of a node and that of an emulator."""

import contextlib
import random
import socket
import threading
import time

from tests.devices.emulated_chips import BOOT_S, connected

from interlock.devices.protocol.framing import Framing

CALM_BYTES = 20  # after a wrong one: noise of one byte in 1,000 meets a frame once


class Cable:
    def __init__(self, chip_port: int, to_chip: Framing) -> None:
        self._chip_port = chip_port
        self._framing = to_chip
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[bytes] = []  # messages of the gateway, as they left it
        self.noise = 0.0  # the chance of each byte, in both directions, outside of calm
        self.changed = 0
        self.pull_after: int | None = None  # so many more bytes of the chip
        self._plugged = threading.Event()
        self._plugged.set()
        self._chances = {True: random.Random(1), False: random.Random(2)}
        self._calm = {True: 0, False: 0}
        self._ends: tuple[socket.socket, ...] = ()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def address(self) -> str:
        return f"socket://127.0.0.1:{self.port}"

    def plug(self) -> None:
        self._plugged.set()

    def close(self) -> None:
        self._listener.close()
        self._pull()

    def _pull(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _run(self) -> None:
        while True:
            try:
                node, _ = self._listener.accept()
            except OSError:
                return
            if not self._plugged.is_set():
                node.close()
                continue
            chip = connected(self._chip_port)
            if not self._ends:
                time.sleep(BOOT_S)
            for end in (node, chip):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends = (node, chip)
            back = threading.Thread(target=self._carry, args=(chip, node, False), daemon=True)
            back.start()
            self._carry(node, chip, True)
            back.join()

    def _carry(self, source: socket.socket, to: socket.socket, is_ours: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if is_ours:
                    self.heard += self._framing.feed_untrusted(data, 0.0)
                elif self.pull_after is not None:
                    data, self.pull_after = data[: self.pull_after], max(0, self.pull_after - len(data))
                to.sendall(self._disturbed(data, is_ours))
                if self.pull_after == 0 and not is_ours:
                    self.pull_after = None
                    self._plugged.clear()
                    break
        self._pull()

    def _disturbed(self, data: bytes, is_ours: bool) -> bytes:
        if not self.noise:
            return data
        line = bytearray(data)
        for at in range(len(line)):
            self._calm[is_ours] -= 1
            if self._calm[is_ours] < 0 and self._chances[is_ours].random() < self.noise:
                line[at] ^= self._chances[is_ours].randrange(1, 256)
                self.changed += 1
                self._calm[is_ours] = CALM_BYTES
        return bytes(line)
