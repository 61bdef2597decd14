"""The stubs of firmware/, built once, run on chips that qemu and ucsim emulate, their serial port on a TCP socket."""

import contextlib
import ctypes
import fcntl
import functools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.reserved_ports import reserve_port

from interlock.devices.protocol.framing import Framing

ROOT = Path(__file__).resolve().parents[2]
FIRMWARE = ROOT / "firmware"
BUILD = ROOT / ".cache" / "firmware"
GAP_MS = 400  # an emulator on a busy machine delivers no byte for longer than a wire would
COMPILERS = {"avr": "avr-gcc", "arm": "arm-none-eabi-gcc", "mcs51": "sdcc", "simulated": "simavr"}
EMULATORS = {
    "avr": ("qemu-system-avr", "-machine", "uno", "-bios"),
    "arm": ("qemu-system-arm", "-machine", "microbit", "-kernel"),
    "mcs51": ("s51", "-t", "52", "-X", "11.0592M"),
}
# ucsim takes a byte 24 for a word to itself, and looks for input about once a second of the chip, unless told otherwise
UCSIM_INPUT = ("-e", "expr uart0_esc_char=-1", "-e", "expr uart0_check_often=1")
BOUND_S = 10.0
BOOT_S = 0.3  # qemu's AVR never takes what arrived before its UART was switched on


def need(*programs: str) -> None:
    """Skips, and says what is missing, on a machine without them: `make .venv/.devices` installs them."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(
            f"NO CHIPS: {', '.join(missing)} not here; the firmware is not built and not run", allow_module_level=True
        )


@functools.cache
def built(kind: str) -> Path:
    """The folder with all stubs for `avr`, `arm`, `mcs51`, or the `simulated` SPI bus; made where sources changed."""
    need(COMPILERS[kind])
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of other workers
        made = subprocess.run(
            ["make", "-s", "-C", str(FIRMWARE), f"BUILD={BUILD}", f"GAP_MS={GAP_MS}", kind],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert made.returncode == 0, made.stdout + made.stderr
    assert "warning" not in made.stderr, made.stderr
    return BUILD


def program_of(kind: str, stub: str) -> Path:
    return built(kind) / f"{kind}_{stub}.{'ihx' if kind == 'mcs51' else 'elf'}"


class SimulatedSpi:
    """An AVR under libsimavr, with the one method of spidev that a gateway uses."""

    def __init__(self, stub: str = "spi") -> None:
        elf = built("avr") / f"avr_{stub}.elf"
        self._library = ctypes.CDLL(str(built("simulated") / "simulated_spi.so"))
        self._library.chip_start.restype = ctypes.c_void_p
        self._chip = ctypes.c_void_p(self._library.chip_start(str(elf).encode()))
        assert self._chip, "libsimavr did not start"

    def xfer2(self, data: list[int]) -> list[int]:
        out = (ctypes.c_uint8 * len(data))(*data)
        taken = (ctypes.c_uint8 * len(data))()
        self._library.chip_xfer(self._chip, out, taken, len(data))
        return list(taken)

    def reset(self) -> None:
        self._library.chip_reset(self._chip)

    def close(self) -> None:
        if self._chip:
            self._library.chip_stop(self._chip)
            self._chip = ctypes.c_void_p(None)


class Monitor:
    """Of one emulator."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def reset(self) -> None:
        """Of the micro:bit alone: qemu's AVR goes on as if nothing was."""
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(str(self._path))
        self._socket.sendall(b"system_reset\n")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class Chip:
    """One running chip, seen from the other end of its serial line."""

    def __init__(self, line: socket.socket, monitor: Monitor, framing: Framing) -> None:
        self.line = line
        self.framing = framing
        self._monitor = monitor
        self._found: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.line.sendall(self.framing.encode(message))

    def receive(self, bound_s: float = BOUND_S) -> bytes:
        """The next message; TimeoutError after `bound_s`."""
        ends = time.monotonic() + bound_s
        while not self._found:
            self.line.settimeout(max(0.001, ends - time.monotonic()))
            data = self.line.recv(4096)
            if not data:
                raise ConnectionError("the emulator has ended")
            self._found += self.framing.feed_untrusted(data, 0.0)
        return self._found.pop(0)

    def is_silent(self, for_s: float = 2 * GAP_MS / 1000) -> bool:
        with contextlib.suppress(TimeoutError):
            self._found.insert(0, self.receive(for_s))
        return not self._found

    def ask(self, message: bytes) -> bytes:
        self.send(message)
        return self.receive()

    def reset(self) -> None:
        self._monitor.reset()


@contextlib.contextmanager
def emulator(kind: str, elf: Path, port: int, folder: Path) -> Iterator[Monitor]:
    """Starts the chip once somebody connects to `port`; an 8051 at once, and it has one connection alone."""
    program, *machine = EMULATORS[kind]
    if kind == "mcs51":
        with _ucsim(program, *machine, program_file=elf, port=port, folder=folder):
            yield Monitor(folder / "none")
        return
    need(program)
    path = folder / f"m{port}"
    serial = (
        "-serial",
        "chardev:line",
        "-chardev",
        f"socket,id=line,host=127.0.0.1,port={port},server=on,wait=on,nodelay=on",
    )
    monitoring = ("-mon", "chardev=monitor", "-chardev", f"socket,id=monitor,path={path},server=on,wait=off")
    process = subprocess.Popen(
        [program, *machine, str(elf), "-display", "none", *serial, *monitoring],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with _killed(process), contextlib.closing(Monitor(path)) as monitor:
        yield monitor


@contextlib.contextmanager
def _ucsim(*command: str, program_file: Path, port: int, folder: Path) -> Iterator[None]:
    """Its own sockets speak telnet, so that the UART is a pty, and socat carries its bytes to the port."""
    need(command[0], "socat")
    line = folder / f"uart{port}"
    carried = (f"PTY,raw,echo=0,link={line}", f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,nodelay")
    carrying = subprocess.Popen(["socat", *carried], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with _killed(carrying):
        _wait(line.exists, "socat makes no pty")
        serial = ("-S", f"uart=0,in={line},out={line}")
        simulator = [*command, *serial, *UCSIM_INPUT, "-g", str(program_file)]
        with (folder / f"said{port}").open("w+b") as said:
            running = subprocess.Popen(simulator, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT)
            with _killed(running):
                # It throws away what came before its own input was open, and answers the command after that.
                _wait(lambda: b"\n1\n" in Path(said.name).read_bytes(), "ucsim does not start")
                yield


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    ends = time.monotonic() + BOUND_S
    while not is_so():
        assert time.monotonic() < ends, otherwise
        time.sleep(0.01)


@contextlib.contextmanager
def _killed(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


@contextlib.contextmanager
def chip(kind: str, stub: str, framing: Framing) -> Iterator[Chip]:
    elf = program_of(kind, stub)
    port = reserve_port()
    with tempfile.TemporaryDirectory() as folder, emulator(kind, elf, port, Path(folder)) as monitor:
        line = connected(port)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Chip(line, monitor, framing)
        finally:
            line.close()


def connected(port: int) -> socket.socket:
    ends = time.monotonic() + BOUND_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < ends, "the emulator does not listen"
            time.sleep(0.01)


def boot(port: int) -> None:
    """The chip begins with the first connection; the next one finds it running."""
    with connected(port):
        time.sleep(BOOT_S)
