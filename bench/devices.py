"""What a gateway adds to a device's line, and what a thousand devices take: `python -m bench.devices [--quick]`.

The lines are ptys whose other end keeps the times of a wire of 9,600 or 115,200 baud. A round trip is that of an MCP
client: HTTP, the node's guard and record, the line, and back.
"""

import argparse
import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Iterator

import msgspec

from bench.contestants import LOGS, PATHS, Ready, node, wait_for_tool
from bench.load import META
from bench.processes import cores, cpu_seconds, first_line, python, resident_mb, running
from interlock.protocol.devices.description import DeviceDescription, Field, LinkDescription, Profile, Tool
from interlock.protocol.devices.wire_formats import codec_of, framing_of

BAUDS = (9600, 115200)
CALLS, QUICK_CALLS = 400, 40
CROWD, QUICK_CROWD = 1000, 100
REST_S, QUICK_REST_S = 20.0, 5.0
ADDED_MAX = 0.05  # of the wire's own time, at 9,600 baud
COLUMNS = ("what", "figure")
ABOUT = (
    "A round trip is a read of one number by an MCP client, against the time that its bytes take on the wire. Devices "
    "at rest are asked for a sign of life every 2.5 s."
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


class RoundTrips(msgspec.Struct, frozen=True, kw_only=True):
    baud: int
    wire_ms: float
    median_ms: float
    slowest_ms: float  # of 99 in 100

    @property
    def added(self) -> float:
        return self.median_ms / self.wire_ms - 1


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    trips: list[RoundTrips]
    devices: int
    each_kb: float
    idle_share: float  # of one core
    wire_bytes: dict[str, tuple[int, int]]  # of a call and its answer


def measure(quick: bool, say: Callable[[str], None]) -> DeviceFigures:
    trips = []
    for baud in BAUDS:
        say(f"devices at {baud:,} baud")
        trips.append(_round_trips(baud, QUICK_CALLS if quick else CALLS))
    count = QUICK_CROWD if quick else CROWD
    say(f"{count:,} devices")
    each_kb, idle_share = _crowd(count, QUICK_REST_S if quick else REST_S)
    return DeviceFigures(
        trips=trips, devices=count, each_kb=each_kb, idle_share=idle_share, wire_bytes=dict(_wire_bytes())
    )


def _round_trips(baud: int, count: int) -> RoundTrips:
    load, contestant = cores()
    log = LOGS / "device_lines.log"
    with running(python("-m", "bench.device_lines", "wire", str(baud)), load, log, PATHS) as device:
        port = first_line(device, log)
        with node({}, contestant, files={".devices/line.toml": LINE.format(port=port, baud=baud)}) as ready:
            wait_for_tool(ready, "line.read")
            elapsed, wires = [], []
            with contextlib.closing(_Client(ready)) as client:
                for _ in range(count):
                    elapsed.append(client.call())
                    wires.append(float(first_line(device, log)))
    ordered = sorted(elapsed)
    return RoundTrips(
        baud=baud,
        wire_ms=statistics.median(wires) * 1000,
        median_ms=statistics.median(ordered) * 1000,
        slowest_ms=ordered[len(ordered) * 99 // 100] * 1000,
    )


class _Client:
    """One connection; the request is made once."""

    def __init__(self, ready: Ready) -> None:
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"line.read","arguments":{},%b}}' % META
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{ready.port}\r\ncontent-type: application/json\r\n"
            f"accept: application/json, text/event-stream\r\nauthorization: Bearer {ready.token}\r\n"
            "mcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: line.read\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._socket = socket.create_connection(("127.0.0.1", ready.port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self) -> float:
        begun = time.perf_counter()
        self._socket.sendall(self._request)
        answer = b""
        while not answer.endswith(b"}"):
            answer += self._socket.recv(65536)
        elapsed = time.perf_counter() - begun
        if b'"structuredContent":{"celsius":21}' not in answer:
            raise RuntimeError(answer.decode(errors="replace")[-400:])
        return elapsed

    def close(self) -> None:
        self._socket.close()


def _crowd(count: int, rest_s: float) -> tuple[float, float]:
    """Kilobytes of each, and the share of a core that all of them take at rest."""
    load, contestant = cores()
    with node({}, contestant) as ready:
        before_mb = resident_mb(ready.pid)
    log = LOGS / "device_lines.log"
    with running(python("-m", "bench.device_lines", "crowd"), load, log, PATHS) as crowd:
        port = first_line(crowd, log)
        files = {
            f".devices/d{number:04}.toml": ONE_OF_MANY.format(high=number >> 8, low=number & 0xFF, port=port)
            for number in range(count)
        }
        with node({}, contestant, files=files) as ready:
            wait_for_tool(ready, f"d{count - 1:04}.read")
            time.sleep(rest_s / 4)  # what starting took is done with
            begun, cpu = time.monotonic(), cpu_seconds(ready.pid)
            time.sleep(rest_s)
            idle_share = (cpu_seconds(ready.pid) - cpu) / (time.monotonic() - begun)
            each_kb = (resident_mb(ready.pid) - before_mb) * 1024 / count
    return each_kb, idle_share


def _wire_bytes() -> Iterator[tuple[str, tuple[int, int]]]:
    """A call with one argument, and its answer with one number."""
    tool = Tool(id=2, name="set_level", request=(Field(name="level"),), response=(Field(name="level"),))
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
    return [ABOUT]


def rows(figures: DeviceFigures) -> Iterator[list[str]]:
    for trip in figures.trips:
        yield [f"{trip.baud:,} baud: the wire alone", f"{trip.wire_ms:.2f} ms"]
        yield [f"{trip.baud:,} baud: a round trip", f"{trip.median_ms:.2f} ms ({trip.added:+.1%})"]
        yield [f"{trip.baud:,} baud: 99 of 100 within", f"{trip.slowest_ms:.2f} ms"]
    yield [f"{figures.devices:,} devices: memory of each", f"{figures.each_kb:.0f} KiB"]
    yield [f"{figures.devices:,} devices at rest", f"{figures.idle_share:.1%} of a core"]
    for what, (call, answer) in figures.wire_bytes.items():
        yield [f"bytes of a call and its answer: {what}", f"{call} + {answer}"]


def promises(figures: DeviceFigures) -> Iterator[tuple[str, float, bool, str]]:
    slow = figures.trips[0]
    promise = f"at {slow.baud:,} baud a round trip is at most {ADDED_MAX:.0%} above the wire's own time"
    yield promise, slow.added * 100, slow.added <= ADDED_MAX, "%"


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
