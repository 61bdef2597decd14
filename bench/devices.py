"""What a gateway adds to a device's line, and what a thousand devices take: `python -m bench.devices [--quick]`.

The lines are ptys whose other end keeps the times of a wire of 9,600 or 115,200 baud. A round trip is that of an MCP
client: HTTP, the node's guard and record, the line, and back. A relay that only copies bytes between a socket and such
a line stands beside the node: what it adds to the wire is the machine's, not the gateway's.
"""

import argparse
import contextlib
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench.contestants import LOGS, PATHS, Ready, node, wait_for_tool
from bench.load import META
from bench.measure import Spread, spread
from bench.processes import ROOT, cores, cpu_seconds, first_line, python, resident_mb, running
from interlock.devices.protocol.description import DeviceDescription, Field, LinkDescription, Profile, ToolDescription
from interlock.devices.protocol.framing import framing_of
from interlock.devices.protocol.messages import codec_of

BAUDS = (9600, 115200)
ROUNDS, QUICK_ROUNDS = 5, 2
CALLS, QUICK_CALLS = 150, 30  # of each round
WARMUP = 10
CROWD, QUICK_CROWD = 1000, 100
CROWD_CALLS, QUICK_CROWD_CALLS = 2000, 200
REST_S, QUICK_REST_S = 20.0, 5.0
ADDED_MAX = 0.05  # of the wire's own time, at 9,600 baud
FIRMWARE_PAGE = ROOT / "docs" / "devices-firmware.md"
COLUMNS = ("what", "figure")
ABOUT = (
    "A round trip is a read of one number by an MCP client over HTTP, against the time that its bytes take on the wire "
    "at 10 bits each. The line is a pty; the device counts that time from the moment at which it has read the call, so "
    "that waking it is counted to the gateway. The relay is a program that copies bytes between a socket and such a "
    "line and does nothing else: what it adds is what two sockets, a pty and four changes of process take on this "
    "machine.",
    "Devices at rest are asked for a sign of life every 2.5 s. The calls beside a flood go to one of these devices, "
    "one after the other, while one more device sends random bytes as fast as they are taken.",
    "Sizes of firmware are those of [devices-firmware.md](devices-firmware.md).",
)
TOOL = """
[[tool]]
id = 1
name = "read"
mutable = false
reversible = true
response = [{{ name = "celsius", type = "u8" }}]
"""
LINE = 'profile = "b"\n[link]\ntransport = "uart_cbor"\nport = "{port}"\nbaud = {baud}\n' + TOOL
ONE_OF_MANY = 'profile = "a"\n[link]\ntransport = "uart_cbor"\nport = "socket://127.1.{high}.{low}:{port}"\n' + TOOL
FLOODING = 'profile = "a"\n[link]\ntransport = "uart_cbor"\nport = "socket://127.0.0.1:{port}"\n' + TOOL


class RoundTrips(msgspec.Struct, frozen=True, kw_only=True):
    baud: int
    wire_ms: float
    relay_ms: list[float]  # more than the wire takes for the same call: the median of each round
    node_ms: list[float]
    slowest_ms: list[float]  # of 99 in 100

    @property
    def unsteadiness(self) -> float:
        """How far what the rounds added lies apart, of its median."""
        found = spread(self.node_ms)
        return (found.high - found.low) / found.median


class CrowdFigures(msgspec.Struct, frozen=True, kw_only=True):
    devices: int
    each_kb: float
    idle_share: float  # of one core
    quiet_ms: tuple[float, float]  # of a call: half of them, 99 of 100
    flooded_ms: tuple[float, float]
    flood_share: float  # of one core, while one device floods and nobody calls
    flood_kb: float  # by which the node grew meanwhile


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    trips: list[RoundTrips]
    crowd: CrowdFigures
    wire_bytes: dict[str, tuple[int, int]]  # of a call and its answer
    firmware: dict[str, tuple[str, str]]  # flash and RAM

    @property
    def unsteadiness(self) -> float:
        return max(trip.unsteadiness for trip in self.trips)


def measure(quick: bool, say: Callable[[str], None]) -> DeviceFigures:
    trips = []
    for baud in BAUDS:
        say(f"devices at {baud:,} baud")
        trips.append(_round_trips(baud, *((QUICK_ROUNDS, QUICK_CALLS) if quick else (ROUNDS, CALLS))))
    count = QUICK_CROWD if quick else CROWD
    say(f"{count:,} devices")
    crowd = _crowd(count, *((QUICK_REST_S, QUICK_CROWD_CALLS) if quick else (REST_S, CROWD_CALLS)))
    return DeviceFigures(trips=trips, crowd=crowd, wire_bytes=dict(_wire_bytes()), firmware=_firmware())


def _round_trips(baud: int, rounds: int, count: int) -> RoundTrips:
    load, contestant = cores()
    log, relay_log, of_relay = LOGS / "device_lines.log", LOGS / "device_relay.log", LOGS / "device_lines_relay.log"
    wires: list[float] = []
    relay_ms, node_ms, slowest_ms = [], [], []
    with (
        running(python("-m", "bench.device_lines", "wire", str(baud)), load, log, PATHS) as line,
        running(python("-m", "bench.device_lines", "wire", str(baud)), load, of_relay, PATHS) as relayed,
        running(
            python("-m", "bench.device_lines", "relay", first_line(relayed, of_relay)), contestant, relay_log, PATHS
        ) as relay,
        node({}, contestant, files={".devices/line.toml": LINE.format(port=first_line(line, log), baud=baud)}) as ready,
    ):
        wait_for_tool(ready, "line.read")
        with (
            contextlib.closing(_Client(ready.port, _mcp_call(ready, "line.read"), b"}")) as client,
            contextlib.closing(_Client(int(first_line(relay, relay_log)), RELAYED, b"\0")) as bare,
        ):
            for number in range(rounds + 1):
                copied, taken = [], []
                for _ in range(count if number else WARMUP):
                    elapsed = bare.call()
                    copied.append(elapsed - float(first_line(relayed, of_relay)))
                for _ in range(count if number else WARMUP):
                    elapsed = client.call(READ)
                    wires.append(float(first_line(line, log)))  # numbers of calls are of one byte or two
                    taken.append(elapsed - wires[-1])
                if number:
                    relay_ms.append(statistics.median(copied) * 1000)
                    node_ms.append(statistics.median(taken) * 1000)
                    slowest_ms.append(_of_100(taken, 99) * 1000)
    return RoundTrips(
        baud=baud,
        wire_ms=statistics.median(wires) * 1000,
        relay_ms=relay_ms,
        node_ms=node_ms,
        slowest_ms=slowest_ms,
    )


def _of_100(values: list[float], share: int) -> float:
    return sorted(values)[len(values) * share // 100]


RELAYED = bytes.fromhex("09a30101021864 03a000")  # the bytes that the node sends for such a call: {1: 1, 2: 100, 3: {}}
READ = b'"structuredContent":{"celsius":21}'


def _mcp_call(ready: Ready, tool: str) -> bytes:
    params = b'"name":"%b","arguments":{},%b' % (tool.encode(), META)
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%b}}' % params
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{ready.port}\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\nauthorization: Bearer {ready.token}\r\n"
        f"mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: {tool}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Client:
    """One connection; the request is made once."""

    def __init__(self, port: int, request: bytes, end: bytes) -> None:
        self._request, self._end = request, end
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, wanted: bytes = b"") -> float:
        begun = time.perf_counter()
        self._socket.sendall(self._request)
        answer = b""
        while not answer.endswith(self._end):
            answer += self._socket.recv(65536)
        elapsed = time.perf_counter() - begun
        if wanted not in answer:
            raise RuntimeError(answer.decode(errors="replace")[-400:])
        return elapsed

    def close(self) -> None:
        self._socket.close()


def _crowd(count: int, rest_s: float, calls: int) -> CrowdFigures:
    load, contestant = cores()
    with node({}, contestant) as ready:
        before_mb = resident_mb(ready.pid)
    log = LOGS / "device_lines.log"
    with running(python("-m", "bench.device_lines", "crowd"), load, log, PATHS) as crowd:
        port, flooding = first_line(crowd, log).split()
        files = {
            f".devices/d{number:04}.toml": ONE_OF_MANY.format(high=number >> 8, low=number & 0xFF, port=port)
            for number in range(count)
        }
        called = f"d{count - 1:04}.read"
        with node({}, contestant, files=files) as ready:
            wait_for_tool(ready, called)
            time.sleep(rest_s / 4)  # what starting took is done with
            idle_share = _share(ready, rest_s)
            each_kb = (resident_mb(ready.pid) - before_mb) * 1024 / count
            with contextlib.closing(_Client(ready.port, _mcp_call(ready, called), b"}")) as client:
                quiet = [client.call(READ) for _ in range(calls)]
                full_mb = resident_mb(ready.pid)
                config = Path(ready.where[1])
                (config.parent / ".devices" / "flood.toml").write_text(FLOODING.format(port=flooding))
                if first_line(crowd, log) != "flooding":
                    raise RuntimeError("the flood did not begin")
                time.sleep(rest_s / 4)  # it is throttled by now
                flooded = [client.call(READ) for _ in range(calls)]
                flood_share = _share(ready, rest_s)
                flood_kb = (resident_mb(ready.pid) - full_mb) * 1024
    return CrowdFigures(
        devices=count,
        each_kb=each_kb,
        idle_share=idle_share,
        quiet_ms=_half_and_99(quiet),
        flooded_ms=_half_and_99(flooded),
        flood_share=flood_share,
        flood_kb=flood_kb,
    )


def _half_and_99(seconds: list[float]) -> tuple[float, float]:
    return statistics.median(seconds) * 1000, _of_100(seconds, 99) * 1000


def _share(ready: Ready, seconds: float) -> float:
    """Of one core, that the node takes in that time."""
    begun, cpu = time.monotonic(), cpu_seconds(ready.pid)
    time.sleep(seconds)
    return (cpu_seconds(ready.pid) - cpu) / (time.monotonic() - begun)


def _firmware() -> dict[str, tuple[str, str]]:
    """As tools/firmware_sizes.py wrote them, with each compiler that is here."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\d+) \| (\d+) \|", FIRMWARE_PAGE.read_text(), re.MULTILINE)
    return {f"{stub}, {chip}": (flash, ram) for stub, chip, flash, ram in rows}


def _wire_bytes() -> Iterator[tuple[str, tuple[int, int]]]:
    """A call with one argument, and its answer with one number."""
    tool = ToolDescription(id=2, name="set_level", request=(Field(name="level"),), response=(Field(name="level"),))
    kinds: tuple[tuple[str, Profile, bytes], ...] = (
        ("Profile A, frame with CRC-8", "a", bytes((2, 2, 7, 50, 0))),
        ("Profile B, CBOR in COBS", "b", bytes.fromhex("a2020704a1001832")),
        ("JSON", "json", b'{"jsonrpc":"2.0","id":7,"result":{"level":50}}'),
    )
    for what, profile, answer in kinds:
        link = LinkDescription(transport="mqtt_json" if profile == "json" else "uart_cbor")
        described = DeviceDescription(profile=profile, link=link, tools=(tool,))
        message = codec_of(described).encode_call(7, tool, {"level": 50})
        if profile == "json":
            yield what, (len(message), len(answer))
        else:
            framing = framing_of(link, profile)
            yield what, (len(framing.encode(message)), len(framing.encode(answer)))


def words(figures: DeviceFigures) -> list[str]:
    return list(ABOUT)


def rows(figures: DeviceFigures) -> Iterator[list[str]]:
    for trip in figures.trips:
        yield [f"{trip.baud:,} baud: the wire alone", f"{trip.wire_ms:.2f} ms"]
        yield [f"{trip.baud:,} baud: a relay", _trip(trip, trip.relay_ms)]
        yield [f"{trip.baud:,} baud: a round trip", _trip(trip, trip.node_ms)]
        yield [f"{trip.baud:,} baud: 99 of 100 within", f"{trip.wire_ms + statistics.median(trip.slowest_ms):.2f} ms"]
    crowd = figures.crowd
    yield [f"{crowd.devices:,} devices: memory of each", f"{crowd.each_kb:.0f} KiB"]
    yield [f"{crowd.devices:,} devices at rest", f"{crowd.idle_share:.1%} of a core"]
    yield [f"{crowd.devices:,} devices: a call of one", _half(crowd.quiet_ms)]
    yield [f"{crowd.devices:,} devices: the same beside one that floods", _half(crowd.flooded_ms)]
    yield ["the flood", f"{crowd.flood_share:.1%} of a core, {crowd.flood_kb:+.0f} KiB"]
    for what, (call, answer) in figures.wire_bytes.items():
        yield [f"bytes of a call and its answer: {what}", f"{call} + {answer}"]
    for what, (flash, ram) in figures.firmware.items():
        yield [f"firmware, {what}", f"{int(flash):,} B of flash, {ram} B of RAM"]


def _trip(trip: RoundTrips, added_ms: list[float]) -> str:
    added = spread(added_ms)
    share = f"{added.median / trip.wire_ms:+.1%}"
    return (
        f"{trip.wire_ms + added.median:.2f} ms: {share} or {added.median:.2f} ms ({added.low:.2f} to {added.high:.2f})"
    )


def _half(times: tuple[float, float]) -> str:
    half, slowest = times
    return f"{half:.2f} ms, 99 of 100 within {slowest:.2f} ms"


def promises(figures: DeviceFigures) -> Iterator[tuple[str, Spread, bool, str]]:
    slow = figures.trips[0]
    promise = f"at {slow.baud:,} baud a round trip is at most {ADDED_MAX:.0%} above the wire's own time"
    added = spread([one / slow.wire_ms for one in slow.node_ms])
    yield promise, Spread(100 * added.median, 100 * added.low, 100 * added.high), added.median <= ADDED_MAX, "%"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls and devices")
    figures = measure(parser.parse_args().quick, print)
    for row in rows(figures):
        print(f"{row[0]:60} {row[1]}")
    kept = list(promises(figures))
    for promise, _, is_kept, _ in kept:
        print(f"{'kept' if is_kept else 'MISSED'}: {promise}")
    return 0 if all(is_kept for _, _, is_kept, _ in kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
