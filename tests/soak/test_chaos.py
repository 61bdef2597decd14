"""Does a node answer every call, and keep its size, while its servers are killed under it for minutes?"""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.servers.start import raw
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
CLIENTS = 4
SEGMENTS = ("one", "two", "three")
KILLS = {"any of them each second": (1.0, SEGMENTS), "one of them each 28 s": (28.0, SEGMENTS[:1])}
ANSWERS_PER_LOSS_MIN = 100  # a server that was killed is back within a second or two
GROWTH_MAX_KIB = 20 * 1024  # between the first fifth of the time and its end
DESCRIPTORS_MORE_MAX = 20

pytestmark = pytest.mark.timeout(SECONDS * 3 + 120)


class Client(threading.Thread):
    """Calls one tool after the other, in the era it was made for, and counts what it is told."""

    def __init__(self, node: RunningNode, era: str, until: float) -> None:
        super().__init__()
        self.node, self.era, self.until = node, era, until
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        with Wire(self.node) as wire:
            if self.era == "legacy":
                wire.initialize()
            number = 0
            while time.monotonic() < self.until:
                number += 1
                self.call(wire, f"{random.choice(SEGMENTS)}__echo", f"{self.name} {number}")

    def call(self, wire: Wire, name: str, text: str) -> None:
        params: dict[str, Any] = {"name": name, "arguments": {"text": text}}
        message = (wire.modern if self.era == "modern" else wire.legacy)("tools/call", params).message
        if "error" in message:
            self.outcomes[message["error"]["message"]] += 1
        elif text in str(message["result"]):
            self.outcomes["answered"] += 1
        else:
            self.faults.append(f"{text!r} was answered with {message!r}"[:500])


def resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("which", KILLS)
def test_a_node_whose_servers_are_killed_answers_every_call_and_keeps_its_size(
    tmp_path: Path, record_property: Any, which: str
) -> None:
    every_s, among = KILLS[which]
    servers = {segment: {"command": raw("echo")} for segment in SEGMENTS}
    with running_node(tmp_path, servers) as node:
        for segment in SEGMENTS:
            node.wait_link(segment, {"state": "ready"})
        pid, began = node.process.pid, time.monotonic()
        clients = [Client(node, ("legacy", "modern")[n % 2], began + SECONDS) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        kills, early, killed_at = 0, (0, 0), began
        while time.monotonic() < began + SECONDS:
            time.sleep(1)
            victim = node.link(random.choice(among))["pid"]
            if victim is not None and time.monotonic() >= killed_at + every_s:
                os.kill(victim, signal.SIGKILL)
                kills, killed_at = kills + 1, time.monotonic()
            if not early[0] and time.monotonic() > began + SECONDS / 5:
                early = (resident_kib(pid), descriptors(pid))
        for client in clients:
            client.join(60)
        for segment in SEGMENTS:
            wait_for(lambda segment=segment: node.link(segment)["state"] == "ready", 90)
        late = (resident_kib(pid), descriptors(pid))
        outcomes = sum((client.outcomes for client in clients), Counter())
        said = f"{which} killed, {kills} times in {SECONDS:g} s with {CLIENTS} clients: {dict(outcomes)}"
        record_property("soak", said)
        record_property("soak", f"resident {early[0]} KiB, at the end {late[0]}; descriptors {early[1]}, {late[1]}")
        assert [fault for client in clients for fault in client.faults] == []
        assert not any(client.is_alive() for client in clients)
        assert outcomes["answered"] > ANSWERS_PER_LOSS_MIN * (outcomes["tool_degraded"] + 1)
        assert set(outcomes) <= {"answered", "tool_degraded", "call_timeout"}
        assert late[0] - early[0] < GROWTH_MAX_KIB
        assert late[1] - early[1] <= DESCRIPTORS_MORE_MAX
