"""Does a node keep its size under everything at once: reads, gated calls, contracts, cancellations and crashes?"""

import contextlib
import itertools
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.contracts import CONTRACT, DRIVER, TRUSTED
from bench.measure import fast_server
from tests.gate.held_calls import ANCHORED, ActuatorLog, Client, actuator_table, approve, deny
from tests.servers.start import raw
from tests.soak.test_chaos import resident_kib
from tests.support.node_process import RunningNode, Wire, running_node, wait_for
from tests.support.raw_client import modern

SECONDS = float(os.environ.get("SOAK_MIXED_SECONDS", "1800"))
# From the end of the warm-up to the end. Approvals that are not used are kept for minutes, and the latest 2,000 that
# ended for longer: in the warm-up they are made without a pause, so that a long run reaches that bound within it.
GROWTH_MAX = 0.05 if SECONDS >= 1800 else 0.2
WARM_UP = 0.3  # of the time
KILL_EVERY_S = 5.0
PAUSE_S = 0.02  # between two calls of one client: a machine that is busy is not what is looked at
PATIENCE_S = 300.0  # for one answer: a node that is slow beside other work is no fault, one that hangs is

pytestmark = pytest.mark.timeout(SECONDS * 2 + 2 * PATIENCE_S)
numbers = itertools.count()


class Load:
    """Threads that do one thing each, again and again, until it is over."""

    def __init__(self, node: RunningNode, until: float) -> None:
        self.node, self.until = node, until
        self._warm_at = time.monotonic() + (until - time.monotonic()) * WARM_UP
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []
        self._threads: list[threading.Thread] = []

    def begin(self, act: Callable[["Load", Client], str], era: str = "modern") -> None:
        thread = threading.Thread(target=self._repeat, args=(act, era))
        self._threads.append(thread)
        thread.start()

    def _repeat(self, act: Callable[["Load", Client], str], era: str) -> None:
        with Client(self.node, era) as client:
            client.wire.connection.timeout = PATIENCE_S
            if client.wire.connection.sock is not None:
                client.wire.connection.sock.settimeout(PATIENCE_S)
            while time.monotonic() < self.until:
                try:
                    self.done[act(self, client)] += 1
                except Exception as fault:
                    self.faults.append(f"{act.__name__}: {fault!r}"[:300])
                if act is not decide or time.monotonic() > self._warm_at:
                    time.sleep(PAUSE_S)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S + 60)
        assert not any(thread.is_alive() for thread in self._threads)


def read(load: Load, client: Client) -> str:
    answer = client.ask("tools/call", {"name": "one__echo", "arguments": {"text": f"word {next(numbers)}"}})
    return "read" if "result" in answer else f"read: {answer['error']['message']}"


def read_much(load: Load, client: Client) -> str:
    client.call("two__echo", {"text": "x" * random.choice((1_000, 100_000, 1_000_000))})
    return "read much"


def decide(load: Load, client: Client) -> str:
    arguments = {"what": f"thing {next(numbers)}"}
    demand = client.held("plant__fire", arguments)
    match next(numbers) % 3:
        case 0:
            approve(load.node, demand)
            client.call("plant__fire", arguments)
            return "approved"
        case 1:
            deny(load.node, demand)
            return "denied"
        case _:
            approve(load.node, demand)
            return "approved and forgotten"


def use_contract(load: Load, client: Client) -> str:
    client.call("bound__echo", {"text": "hello"})
    return "contract"


def leave(load: Load, client: Client) -> str:
    """A client that goes away in the middle of its call."""
    with socket.create_connection((load.node.host, load.node.port), PATIENCE_S) as leaving:
        leaving.sendall(modern("tools/call", {"name": "two__wait", "arguments": {}}))
        time.sleep(0.05)
    return "left"


def test_a_node_under_mixed_load_keeps_its_size(tmp_path: Path, record_property: Any) -> None:
    servers = {
        "one": {"command": raw("echo")},
        "two": {"command": raw("all")},
        "plant": actuator_table(ActuatorLog(tmp_path / "did")),
    }
    drivers = tmp_path / "workspace" / ".drivers" / "bound-mcp"
    (drivers / "tools" / "echo").mkdir(parents=True)
    with fast_server("modern") as port:
        (drivers / "DRIVER.md").write_text(DRIVER.format(port=port))
        (drivers / "tools" / "echo" / "TOOL.md").write_text(CONTRACT)
        gate = ANCHORED.replace('mode = "gated"', 'mode = "gated"\nunannotated = "allow"')
        with running_node(tmp_path, servers, TRUSTED + gate) as node:
            for segment in servers:
                node.wait_link(segment, {"state": "ready"})
            with Wire(node) as wire:
                wait_for(lambda: b"bound__echo" in wire.modern("tools/list").body)
            node.patience_s = PATIENCE_S
            pid, began = node.process.pid, time.monotonic()
            load = Load(node, began + SECONDS)
            for act, era in ((read, "modern"), (read, "legacy"), (read_much, "modern"), (decide, "legacy")):
                load.begin(act, era)
            for act in (use_contract, leave):
                load.begin(act)
            sizes, killed_at = [], began
            while time.monotonic() < began + SECONDS:
                time.sleep(1)
                sizes.append(resident_kib(pid))
                victim = node.link("one")["pid"]
                if victim is not None and time.monotonic() >= killed_at + KILL_EVERY_S:
                    with contextlib.suppress(ProcessLookupError):  # it ended while we asked
                        os.kill(victim, signal.SIGKILL)
                        load.done["killed"] += 1
                        killed_at = time.monotonic()
            load.join()
    tenth = len(sizes) // 10
    warm, late = max(sizes[int(WARM_UP * 10) * tenth :][:tenth]), max(sizes[-tenth:])
    record_property("soak", f"mixed load for {SECONDS:g} s: {dict(sorted(load.done.items()))}")
    record_property("soak", f"resident after the warm-up {warm} KiB, at the end {late}: {late / warm - 1:+.1%}")
    print([sizes[index * tenth] for index in range(10)], dict(load.done))
    assert load.faults == []
    assert late <= warm * (1 + GROWTH_MAX)
