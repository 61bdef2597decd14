"""Serial lines with a device at the other end, on ptys: told what to say, and what to do wrong.

A `Line` is a device in a thread of the test, made of the same description as the node reads. By default it answers as
`interlock device simulate` would; a test replaces `reply`, which makes of each message what is written, byte for byte.
"""

import os
import select
import threading
import time
import tty
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.devices.device_descriptions import described
from tests.support.node_process import RunningNode, Wire

from interlock.devices.protocol.framing import framing_of
from interlock.devices.protocol.simulation import SimulatedDevice

THERMOMETER = """
[[tool]]
id = 1
name = "temperature"
mutable = false
reversible = true
response = [{ name = "celsius", type = "i16" }]
[[tool]]
id = 7
name = "never_announced"
mutable = false
reversible = true
"""

Reply = Callable[[bytes], Iterable[bytes]]


class Line:
    def __init__(self, workspace: Path, segment: str, description: str, link: str = "") -> None:
        """`description`: what the file says beside [link], and `link` what that says beside its port."""
        self.segment = segment
        self.port = workspace / f"{segment}.pty"
        self.file = workspace / ".devices" / f"{segment}.toml"
        head, _, tools = description.partition("[[")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(
            f'{head}\n[link]\ntransport = "uart_cbor"\nport = "{self.port}"\n{link}\n' + (f"[[{tools}" if tools else "")
        )
        read = described(self.file.read_text())
        self.device = SimulatedDevice(read)
        self.framing = framing_of(read.link, read.profile)
        self.heard: list[bytes] = []  # messages of the gateway
        self.read = bytearray()  # all bytes of the gateway
        self.written = bytearray()  # and all of the device
        self.reply: Reply = self.answers
        self.character_s = 0.0  # that each byte takes, in both directions
        self._thread: threading.Thread | None = None
        self.plug()

    def answers(self, message: bytes) -> list[bytes]:
        return [self.framing.encode(answer) for answer in self.device.answer(message)]

    def calls(self) -> list[bytes]:
        """Of the messages heard, those of Profile A that are calls."""
        return [message for message in self.heard if message[0] == 0x01]

    def plug(self) -> None:
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)
        self.framing.reset()
        self.port.unlink(missing_ok=True)
        self.port.symlink_to(os.ttyname(self.slave))
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def unplug(self) -> None:
        if self._thread is None:
            return
        os.close(self._stopped)
        self._thread.join()
        self._thread = None
        self.port.unlink(missing_ok=True)
        for descriptor in (self.master, self.slave, self._stop):
            os.close(descriptor)

    def write(self, *data: bytes) -> None:
        for some in data:
            self.written += some
            if not self.character_s:
                os.write(self.master, some)
            for at in range(len(some) if self.character_s else 0):
                time.sleep(self.character_s)
                os.write(self.master, some[at : at + 1])

    def say(self, *messages: bytes) -> None:
        self.write(*(self.framing.encode(message) for message in messages))

    def boot(self) -> None:
        self.say(*self.device.boot())

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self.master, self._stop], [], [])
            if self._stop in ready:
                return
            data = os.read(self.master, 4096)
            self.read += data
            time.sleep(len(data) * self.character_s)
            for message in self.framing.feed_untrusted(data, time.monotonic()):
                self.heard.append(message)
                self.write(*self.reply(message))


def call(node: RunningNode, tool: str, arguments: dict[str, Any] | None = None, **meta: Any) -> Any:
    """The result or the error."""
    with Wire(node) as wire:
        answer = wire.modern("tools/call", {"name": tool, "arguments": arguments or {}}, meta=meta).message
    return answer.get("result", answer.get("error"))


def content(node: RunningNode, tool: str, arguments: dict[str, Any] | None = None) -> Any:
    return call(node, tool, arguments)["structuredContent"]


def listed(node: RunningNode, segment: str) -> dict[str, Any]:
    from tests.support.node_process import KNOWS_AX

    with Wire(node) as wire:
        tools = wire.modern("tools/list", capabilities=KNOWS_AX).message["result"]["tools"]
    return {tool["name"]: tool for tool in tools if tool["name"].startswith(f"{segment}.")}
