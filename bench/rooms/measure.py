"""What a delivery in a room costs, against a bare broadcast; what a participant takes; what others notice of it.

A room judges each envelope, stores it, and gives it its place in one order before it is delivered; the bare broadcast
does none of this. Both have the same participants, who speak the same words; they take turns, round after round.
"""

import contextlib
import socket
import statistics
from collections.abc import Iterator
from typing import Any

import msgspec

from bench import contestants
from bench.contestants import LOGS, Ready
from bench.crowds import _Operator
from bench.load import Job as Calls
from bench.measure import Spread, fast_server, sample, spread
from bench.processes import (
    Commanded,
    NotStarted,
    commanded,
    cores,
    cpu_seconds,
    free_port,
    python,
    resident_mb,
    running,
    wait_for_port,
)
from bench.rooms.audience import Heard, Job

SHAPES = ((1, 10), (1, 100), (1, 1000), (100, 10))  # rooms, and participants of each
AHEAD = 32  # messages under way of one speaker
BUSY_PARTICIPANTS = 50  # of the busy room: as many as a room takes by default
BUSY_PER_SECOND = 50  # messages: five participants at the limit of 600 a minute
RATE_MIN = 0.5  # deliveries per second, of the bare broadcast's
EACH_KB_MAX = 60.0
DEAF_PARTICIPANTS = 10  # and one more, who reads nothing
DEAF_MESSAGES = 5_000  # X-5.2-6
DEAF_PAD = 2_000  # so that they are more than the machine keeps for one who does not read
DEAF_P99_MS_MAX = 100.0  # X-5.2-6
BESIDE_MAX = 1.5  # p50 of tools/call beside a busy room, of that without
ROOMS = """
[rooms]
max_participants = 10000
per_min = { proposals = 10, chat = 1000000, envelopes = 1000000 }
"""


class Round(msgspec.Struct, kw_only=True):
    per_second: float
    cpu_us: float  # of the contestant, for each delivery
    p50_us: float  # of one message at a time
    p99_us: float


class Fanned(msgspec.Struct, kw_only=True):
    """One shape; without rounds where it could not be measured."""

    rooms: int
    participants: int
    node: list[Round] = []
    bare: list[Round] = []
    each_kb: float | None = None

    @property
    def title(self) -> str:
        many = (
            f"{self.rooms} rooms with {self.participants}" if self.rooms > 1 else f"a room with {self.participants:,}"
        )
        return f"{many} participants"

    def ratio(self, field: str) -> Spread | None:
        pairs = list(zip(self.node, self.bare, strict=False))
        return spread([getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs]) if pairs else None


class Beside(msgspec.Struct, kw_only=True):
    """tools/call of another client, in turns without and with a busy room."""

    quiet_p50: list[float] = []
    busy_p50: list[float] = []
    quiet_p99: list[float] = []
    busy_p99: list[float] = []
    deliveries_per_second: float = 0.0

    def ratio(self, quiet: list[float], busy: list[float]) -> Spread | None:
        return spread([one / other for one, other in zip(busy, quiet, strict=True)]) if quiet else None


class RoomFigures(msgspec.Struct, kw_only=True):
    shapes: list[Fanned] = []
    beside: Beside | None = None
    deaf_p99_ms: list[float] = []  # from sending to hearing, while one of them reads nothing


class _Audience:
    def __init__(self, process: Commanded) -> None:
        self._process = process

    def tell(self, command: str) -> Heard:
        return msgspec.json.decode(self._process.tell(command), type=Heard)


@contextlib.contextmanager
def audience(job: Job, name: str) -> Iterator[_Audience]:
    log = LOGS / f"audience-{name}.log"
    with commanded("bench.rooms.audience", msgspec.json.encode(job), log, contestants.PATHS) as process:
        yield _Audience(process)


@contextlib.contextmanager
def broadcast() -> Iterator[Ready]:
    port, log = free_port(), LOGS / "broadcast.log"
    command = python("-m", "bench.rooms.broadcast_server", str(port))
    with running(command, cores()[1], log, contestants.PATHS) as process:
        wait_for_port(port, process, log)
        yield Ready(port, process.pid)


def bare_job(port: int, rooms: int, participants: int) -> Job:
    return Job(urls=[[f"ws://127.0.0.1:{port}/{room}"] * participants for room in range(rooms)])


def node_job(node: Ready, rooms: int, participants: int) -> Job:
    """A room and a token for each; rooms are made by the operator."""
    tokens: list[list[str]] = []
    with contextlib.closing(_Operator(node)) as operator:
        for room in range(rooms):
            topic = f"bench-{rooms}-{participants}-{room}"
            _ask(operator, "/admin/rooms", {"topic": topic})
            tokens.append(
                [
                    str(
                        _ask(
                            operator,
                            "/admin/tokens",
                            {
                                "name": f"{topic}-{number}",
                                "for": "room",
                                "room": {"topic": topic, "participant": f"p{number}", "privilege": "restricted"},
                            },
                        )["token"]
                    )
                    for number in range(participants)
                ]
            )
    urls = [
        [f"ws://127.0.0.1:{node.port}/v0/ws?topic=bench-{rooms}-{participants}-{room}"] * participants
        for room in range(rooms)
    ]
    return Job(urls=urls, tokens=tokens)


def _ask(operator: _Operator, path: str, body: dict[str, Any]) -> dict[str, Any]:
    operator.request("POST", path, msgspec.json.encode(body), {"content-type": "application/json"})
    answer: dict[str, Any] = msgspec.json.decode(operator.getresponse().read())
    if "error" in answer:
        raise NotStarted(str(answer)[:300])
    return answer


def one_round(contestant: Ready, heard_by: _Audience, messages: int) -> Round:
    assert contestant.pid is not None
    before = cpu_seconds(contestant.pid)
    pumped = heard_by.tell(f"pump {messages} {AHEAD}")
    spent = cpu_seconds(contestant.pid) - before
    alone = heard_by.tell(f"pump {max(messages // 10, 10)} 1")
    return Round(
        per_second=pumped.deliveries / pumped.seconds,
        cpu_us=spent / pumped.deliveries * 1e6,
        p50_us=alone.p50_us,
        p99_us=alone.p99_us,
    )


def fan_out(found: Fanned, rounds: int, deliveries: int, say: Any) -> None:
    everybody = found.rooms * found.participants
    messages = max(deliveries // everybody, AHEAD)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(contestants.node({}, cores()[1], extra=ROOMS))
        bare = stack.enter_context(broadcast())
        assert node.pid is not None
        few = stack.enter_context(audience(node_job(node, 1, 2), "few"))  # what is loaded once is nobody's share
        few.tell("join")
        few.tell(f"pump 100 {AHEAD}")
        ours = stack.enter_context(audience(node_job(node, found.rooms, found.participants), "node"))
        before = resident_mb(node.pid)
        ours.tell("join")
        found.each_kb = (resident_mb(node.pid) - before) * 1024 / everybody
        theirs = stack.enter_context(audience(bare_job(bare.port, found.rooms, found.participants), "bare"))
        theirs.tell("join")
        for contestant, heard_by in ((node, ours), (bare, theirs)):
            one_round(contestant, heard_by, max(messages // 5, AHEAD))  # to warm up
        for number in range(1, rounds + 1):
            found.node.append(one_round(node, ours, messages))
            found.bare.append(one_round(bare, theirs, messages))
            for name, taken in (("interlock", found.node[-1]), ("broadcast", found.bare[-1])):
                said = f"{taken.per_second:9,.0f} deliveries/s  {taken.cpu_us:6.2f} us CPU"
                say(f"  round {number}: {name:10} {said}  p50 {taken.p50_us:7.0f} us  p99 {taken.p99_us:7.0f} us")


def beside(rounds: int, calls: int, say: Any) -> Beside:
    found = Beside()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(fast_server("modern"))
        node = stack.enter_context(contestants.node({"fast": contestants.dialled(server)}, cores()[1], extra=ROOMS))
        node.tool = "fast__echo"
        room = stack.enter_context(audience(node_job(node, 1, BUSY_PARTICIPANTS), "busy"))
        room.tell("join")
        job = Calls(port=0, connections=1, warmup=calls // 5, count=calls)
        for number in range(1, rounds + 1):
            quiet = sample(node, job)
            room.tell(f"pace {BUSY_PER_SECOND}")
            busy = sample(node, job)
            rested = room.tell("rest")
            found.quiet_p50.append(quiet.p50_us)
            found.busy_p50.append(busy.p50_us)
            found.quiet_p99.append(quiet.p99_us)
            found.busy_p99.append(busy.p99_us)
            found.deliveries_per_second = BUSY_PER_SECOND * BUSY_PARTICIPANTS
            halves = f"p50 {quiet.p50_us:.0f} us and {busy.p50_us:.0f} us"
            slowest = f"p99 {quiet.p99_us:.0f} us and {busy.p99_us:.0f} us"
            say(
                f"  round {number}: without and with a busy room: {halves}, {slowest}; {rested.deliveries:,} deliveries"
            )
    return found


def beside_a_deaf_one(rounds: int, say: Any) -> list[float]:
    found = []
    for number in range(1, rounds + 1):
        with contextlib.ExitStack() as stack:
            node = stack.enter_context(contestants.node({}, cores()[1], extra=ROOMS))
            job = node_job(node, 1, DEAF_PARTICIPANTS + 1)
            (urls,), (tokens,) = job.urls, job.tokens
            stack.enter_context(contextlib.closing(_deaf(node, urls.pop(), tokens.pop())))
            job.pad = DEAF_PAD
            room = stack.enter_context(audience(job, "deaf"))
            room.tell("join")
            heard = room.tell(f"pump {DEAF_MESSAGES} {AHEAD}")
            found.append(heard.p99_us / 1e3)
            say(f"  round {number}: {heard.deliveries:,} deliveries, p99 {found[-1]:.1f} ms")
    return found


def _deaf(node: Ready, url: str, token: str) -> socket.socket:
    """A participant that reads no more than the beginning of the answer."""
    deaf = socket.create_connection(("127.0.0.1", node.port), timeout=10)
    path = url.removeprefix(f"ws://127.0.0.1:{node.port}")
    deaf.sendall(
        f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        f"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
        f"authorization: Bearer {token}\r\n\r\n".encode()
    )
    if deaf.recv(12) != b"HTTP/1.1 101":
        raise NotStarted("a participant was refused")
    return deaf


def measure(quick: bool, say: Any) -> RoomFigures:
    rounds, deliveries, calls = (2, 20_000, 1_000) if quick else (5, 100_000, 5_000)
    figures = RoomFigures()
    for rooms, participants in SHAPES:
        found = Fanned(rooms=rooms, participants=participants)
        figures.shapes.append(found)
        say(found.title)
        try:
            fan_out(found, rounds, deliveries, say)
        except (NotStarted, OSError) as reason:
            found.node.clear()
            found.bare.clear()
            found.each_kb = None
            say(f"  failed: {reason}")
    say("tools/call beside a busy room")
    try:
        figures.beside = beside(rounds, calls, say)
    except (NotStarted, OSError) as reason:
        figures.beside = Beside()
        say(f"  failed: {reason}")
    say("a room with one who reads nothing")
    try:
        figures.deaf_p99_ms = beside_a_deaf_one(rounds, say)
    except (NotStarted, OSError) as reason:
        say(f"  failed: {reason}")
    return figures


def median(rounds: list[Round], field: str) -> float:
    return statistics.median(getattr(one, field) for one in rounds)
