"""The topology C.3: global over us and eu, each over east and west, a counting leaf below each of the four.

Seven nodes and four leaves, each a process of its own, TLS 1.3 on every link. Any of them can be killed and started
again at the same address. The regions of eu have us for their backup.
"""

import contextlib
import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.ax.tree import ACCESS, parents, wait_parent
from tests.support.certificates import Authority
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

LEAF = Path(__file__).parent / "region_leaf.py"
PLACES = ("us.east", "us.west", "eu.west", "eu.east")
NODES = ("global", "us", "eu", *PLACES)
GRACE_S = 1  # how long a lost subtree stays listed as degraded


class SecureWire(Wire):
    def __init__(self, node: RunningNode, trust: ssl.SSLContext, path: str = "/mcp") -> None:
        super().__init__(node, path)
        self.connection = http.client.HTTPSConnection(node.host, node.port, timeout=30, context=trust)


class Site:
    """One node that comes back where it was."""

    def __init__(self, folder: Path, said: str, authority: Authority) -> None:
        self._folder, self._said, self._authority = folder, said, authority
        self._port = 0
        self._running: Any = None
        self.node: RunningNode
        self.start()

    @property
    def ax(self) -> str:
        return f"wss://127.0.0.1:{self._port}/ax"

    def start(self) -> None:
        tls = f'tls_cert = "{self._authority.certificate}"\ntls_key = "{self._authority.key}"\n'
        listen = f'[node]\nlisten = "127.0.0.1:{self._port}"\noperator_listen = "127.0.0.1:0"\n{tls}'
        env = {"SSL_CERT_FILE": str(self._authority.trusted)}
        self._running = running_node(self._folder, {}, self._said + listen, env)
        self.node = self._running.__enter__()
        self._port = self.node.port

    def kill(self) -> None:
        self.node.process.kill()
        self.node.process.wait()

    def close(self) -> None:
        self._running.__exit__(None, None, None)

    def again(self) -> None:
        self.close()
        self.start()


class Till:
    """One leaf, likewise."""

    def __init__(self, place: str, above: Site, folder: Path, authority: Authority) -> None:
        self.place, self.log = place, folder / f"{place}.log"
        self._command = [sys.executable, str(LEAF), place, above.ax, str(folder / place), str(self.log)]
        self._env = {**os.environ, "SSL_CERT_FILE": str(authority.trusted)}
        self._errors = (folder / f"{place}.err").open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=self._errors, env=self._env)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.kill()
        self._errors.close()


class Regions:
    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self.authority = Authority(folder)
        self.trust = ssl.create_default_context(cafile=str(self.authority.trusted))
        self.sites: dict[str, Site] = {}
        self.tills: dict[str, Till] = {}
        self._stack = stack
        common = f"[degraded]\ngrace_s = {GRACE_S}\n" + ACCESS
        self._start({"global": '[ax]\nroot_segment = "global"\n' + common})
        self._start({name: parents((self.sites["global"].ax, name)) + common for name in ("us", "eu")})
        us, eu = self.sites["us"].ax, self.sites["eu"].ax
        self._start(
            {
                "us.east": parents((us, "east")) + common,
                "us.west": parents((us, "west")) + common,
                "eu.west": parents((eu, "west"), (us, "eu-west")) + common,
                "eu.east": parents((eu, "east"), (us, "eu-east")) + common,
            }
        )
        for place in PLACES:
            till = Till(place, self.sites[place], folder, self.authority)
            self.tills[place] = stack.enter_context(contextlib.closing(till))
        self.wait_whole()

    def _start(self, said: dict[str, str]) -> None:
        with ThreadPoolExecutor() as pool:
            begun = {
                name: pool.submit(Site, self._folder / name, words, self.authority) for name, words in said.items()
            }
        for name, site in begun.items():
            self.sites[name] = self._stack.enter_context(contextlib.closing(site.result()))

    @property
    def root(self) -> RunningNode:
        return self.sites["global"].node

    def wire(self, path: str = "/mcp") -> SecureWire:
        return SecureWire(self.root, self.trust, path)

    def names(self) -> set[str]:
        """Qualified, as the root lists them now."""
        with self.wire("/mcp?names=qualified") as wire:
            return {one["name"] for one in wire.modern("tools/list").message["result"]["tools"]}

    def wait_names(self, present: set[str], absent: set[str], seconds: float = 20.0) -> set[str]:
        """Until the root lists all of these and none of those."""

        def shows() -> set[str] | None:
            names = self.names()
            return names if present <= names and not absent & names else None

        found: set[str] = wait_for(shows, seconds)
        return found

    def wait_whole(self) -> None:
        self.wait_names({f"global.{place}.till.count" for place in PLACES}, set())

    def done(self) -> Counter[tuple[str, str]]:
        """What the leaves did, by place and token."""
        return Counter(
            (place, token)
            for place, till in self.tills.items()
            if till.log.exists()
            for token in till.log.read_text().split()
        )

    def home(self, *places: str) -> None:
        """Send them back to their first parent, by starting them anew."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda place: self.sites[place].again(), places))
        for place in places:
            wait_parent(self.sites[place].node, {"state": "registered"})
        self.wait_whole()


@contextlib.contextmanager
def regions(folder: Path) -> Iterator[Regions]:
    with contextlib.ExitStack() as stack:
        yield Regions(folder, stack)


class Load:
    """Clients that call all places in turn through the root, each call with a token of its own."""

    def __init__(self, tree: Regions, label: str, clients: int = 4) -> None:
        self._tree, self._label = tree, label
        self._stopping = threading.Event()
        self.results: dict[tuple[str, str], dict[str, Any]] = {}
        self.errors: dict[tuple[str, str], dict[str, Any]] = {}
        self.unanswered: list[tuple[str, str]] = []  # the root itself was gone
        self.wrong: list[Any] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a call was never answered"

    def count(self, place: str) -> int:
        return sum(where == place for where, _ in list(self.results))

    def wait_more(self, *places: str, more: int = 10) -> None:
        """Until each of these places has answered so many further calls."""
        goals = {place: self.count(place) + more for place in places}
        wait_for(lambda: all(self.count(place) >= goal for place, goal in goals.items()), 30)

    def _run(self, client: int) -> None:
        number, wire = 0, None
        while not self._stopping.is_set():
            number += 1
            place = PLACES[(number + client) % len(PLACES)]
            key = (place, f"{self._label}-{client}-{number}")
            name = f"global__{place.replace('.', '__')}__till__count"
            try:
                wire = wire or self._tree.wire()
                said = wire.modern("tools/call", {"name": name, "arguments": {"token": key[1]}}).message
            except (OSError, http.client.HTTPException):
                self.unanswered.append(key)
                if wire is not None:
                    wire.close()
                wire = None
                self._stopping.wait(0.05)
                continue
            self._note(key, wire.next_id, said)
        if wire is not None:
            wire.close()

    def _note(self, key: tuple[str, str], asked: int, said: dict[str, Any]) -> None:
        if said.get("id") != asked:
            self.wrong.append((key, said))
        elif "error" in said:
            self.errors[key] = said["error"]
        else:
            answer = json.loads(said["result"]["content"][0]["text"])
            if said["result"].get("isError") or (answer["place"], answer["token"]) != key or not answer["fresh"]:
                self.wrong.append((key, said))
            self.results[key] = answer
