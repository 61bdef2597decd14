"""A node with a thousand subservers: how fast they register, what they take, and when a change below is seen above.

Two trees: one node with all of them, and a root above that node. The time of a change is that from the subserver's
word (`notifications/tools/list_changed`, `mcpax/deregister`) to the first list of the root that shows it; a client asks
for that list again and again.
"""

import contextlib
import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bench import contestants, hops
from bench.contestants import LOGS, Ready
from bench.load import META, next_cursor
from bench.measure import Spread, spread
from bench.processes import Commanded, NotStarted, commanded, cores, cpu_seconds, resident_mb
from bench.registrants import CHANGING, INTERVAL_S, Job

ABOVE = "edge"
OWN_TOOL = "notifications_dropped"  # of each node
APART_S = 1.5  # between two changes, so that each is the first for a while
LOOK_S = 0.002
LISTED_S = 120.0
REST_S = 5.0  # how long the nodes are watched while nothing happens
ONE = 1


class Planted(msgspec.Struct, kw_only=True):
    """One tree; everything but its size is empty when it could not be measured."""

    title: str
    subservers: int
    tools: int  # of each
    before_mb: float = 0.0
    all_mb: float = 0.0  # of the node that has the subservers, with all of them and nothing listed yet
    root_mb: float = 0.0  # of the root above it, when its list was read; 0 where it is the same node
    gathered: list[float] = []  # seconds until the root listed all, cycle by cycle
    answered: list[float] = []  # seconds until the last was registered and had its list read
    changed: list[float] = []  # seconds
    left: list[float] = []
    idle_share: float = 0.0  # of one core, of all nodes, while they only beat

    @property
    def per_second(self) -> Spread | None:
        return spread([self.subservers / seconds for seconds in self.answered]) if self.answered else None

    @property
    def each_kb(self) -> float:
        return (self.all_mb - self.before_mb) * 1024 / self.subservers

    @property
    def interval_s(self) -> float:
        return INTERVAL_S


class _Crowd:
    def __init__(self, process: Commanded) -> None:
        self._process = process

    def tell(self, command: str) -> float:
        """When it was carried out."""
        return float(self._process.tell(command))


@contextlib.contextmanager
def crowd(job: Job) -> Iterator[_Crowd]:
    log = LOGS / "registrants.log"
    with commanded("bench.registrants", msgspec.json.encode(job), log, contestants.PATHS) as process:
        yield _Crowd(process)


class _Client:
    """Reads the list of one node, with dotted names."""

    def __init__(self, node: Ready) -> None:
        self._node = node
        self._connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)

    def page(self, cursor: bytes = b"") -> bytes:
        params = b'"cursor":"%b",%b' % (cursor, META) if cursor else META
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{%b}}' % params
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self._node.token}",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/list",
        }
        self._connection.request("POST", "/mcp?names=qualified", body, headers)
        return self._connection.getresponse().read()

    def count(self) -> int:
        """Of the subservers' tools."""
        found, cursor = 0, b""
        while True:
            page = self.page(cursor)
            found += sum(not tool["name"].endswith(OWN_TOOL) for tool in json.loads(page)["result"]["tools"])
            cursor = next_cursor(page)
            if not cursor:
                return found

    def until(self, true: Callable[[bytes], bool]) -> float:
        """When the first page was so."""
        deadline = time.monotonic() + LISTED_S
        while not true(self.page()):
            if time.monotonic() > deadline:
                raise NotStarted("a change was not listed")
            time.sleep(LOOK_S)
        return time.monotonic()

    def until_all(self, count: int) -> float:
        deadline = time.monotonic() + LISTED_S
        while (found := self.count()) != count:
            if time.monotonic() > deadline:
                raise NotStarted(f"of {count:,} tools only {found:,} were listed")
            time.sleep(LOOK_S * 10)
        return time.monotonic()


@contextlib.contextmanager
def tree(*, above: bool) -> Iterator[tuple[Ready, Ready]]:
    """The root, and the node with the subservers, which may be the same."""
    with contextlib.ExitStack() as stack:
        root = node = stack.enter_context(contestants.node({}, cores()[1], extra=hops.ADMITS))
        if above:
            extra = hops.ADMITS + hops.below(root, ABOVE)
            node = stack.enter_context(contestants.node({}, cores()[1], extra=extra))
        yield root, node


def grow(found: Planted, cycles: int, changes: int, say: Any, *, above: bool) -> None:
    total = found.subservers * found.tools
    with tree(above=above) as (root, node):
        assert root.pid is not None and node.pid is not None
        token = contestants.issue_token(node.where, "subserver")
        job = Job(port=node.port, token=token, count=found.subservers, tools=found.tools)
        client = _Client(root)
        with crowd(msgspec.structs.replace(job, count=ONE)) as few:  # what is loaded with the first is nobody's share
            few.tell("gather")
            few.tell("part")
        found.before_mb = resident_mb(node.pid)
        with crowd(job) as everybody:
            for cycle in range(1, cycles + 1):
                began = time.monotonic()
                found.answered.append(everybody.tell("gather") - began)
                if cycle == 1 and not above:
                    found.all_mb = resident_mb(node.pid)
                found.gathered.append(client.until_all(total) - began)
                say(f"  cycle {cycle}: registered in {found.answered[-1]:.2f} s, listed in {found.gathered[-1]:.2f} s")
                if cycle < cycles:
                    everybody.tell("part")
                    client.until_all(0)
            if above:
                found.all_mb, found.root_mb = resident_mb(node.pid), resident_mb(root.pid)
            change(found, everybody, client, changes, say)
            pids = {root.pid, node.pid}
            before, began = sum(map(cpu_seconds, pids)), time.monotonic()
            time.sleep(REST_S)
            found.idle_share = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - began)
            everybody.tell("part")


def change(found: Planted, everybody: _Crowd, client: _Client, changes: int, say: Any) -> None:
    changing = b"%b.tool_" % CHANGING.encode()
    for number in range(changes):
        time.sleep(APART_S)
        sprung = b"sprung_%d" % number
        said = everybody.tell(f"change {number}")
        found.changed.append(client.until(lambda page, sprung=sprung: sprung in page) - said)  # type: ignore[misc]
        time.sleep(APART_S)
        said = everybody.tell("leave")
        found.left.append(client.until(lambda page: changing not in page) - said)
        everybody.tell("return")
        client.until(lambda page: changing in page)
        say(f"  change {number + 1}: listed after {found.changed[-1] * 1e3:.0f} ms, gone {found.left[-1] * 1e3:.0f} ms")


def measure(quick: bool, say: Any) -> list[Planted]:
    subservers, cycles, changes = (200, 2, 3) if quick else (1000, 3, 7)
    one = Planted(title="one node", subservers=subservers, tools=20)
    two = Planted(title="a root above that node", subservers=subservers, tools=20)
    for found in (one, two):
        say(f"{found.title}: {subservers:,} subservers with {found.tools} tools each")
        try:
            grow(found, cycles, changes, say, above=found is two)
        except (NotStarted, OSError) as reason:
            for field in ("gathered", "answered", "changed", "left"):
                getattr(found, field).clear()
            say(f"  failed: {reason}")
    return [one, two]


def median_ms(seconds: list[float]) -> Spread:
    return Spread(*(1000 * value for value in (statistics.median(seconds), min(seconds), max(seconds))))
