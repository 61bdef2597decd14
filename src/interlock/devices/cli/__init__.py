"""Commands about devices."""

import asyncio
import contextlib
import errno
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from interlock.ax.protocol.names import is_segment
from interlock.cli.command import Invocation, verb, verb_app
from interlock.cli.completion import segments
from interlock.cli.terminal.drawing import poll
from interlock.cli.terminal.errors import BadUsage, Unreachable
from interlock.cli.terminal.text import local_time
from interlock.core.clock import rfc3339
from interlock.devices.protocol.description import SIMULATED, DeviceDescription, Event, LinkDescription
from interlock.devices.protocol.message_text import MessageTexts
from interlock.devices.protocol.messages import DeviceFault
from interlock.devices.transports.simulated_port import Faults, LineFault, SimulatedPort
from interlock.devices.transports.transport import SharedConnections, TransportFailed, TransportOwner
from interlock.devices.transports.uart import UartTransport
from interlock.links.api import GET_FRAMES, Frame, Frames
from interlock.wire.refusal import Refused

if TYPE_CHECKING:
    from interlock.cli.terminal.output import Output

MONITOR_S = 0.2
_NAME_PORT = "name one with --port; a device whose port is 'simulated' is played by the node itself"


app = verb_app(
    "Simulate a device, watch what it says, test its stub, write a new one.",
    examples="""
    interlock device simulate thermostat
    interlock device simulate thermostat --noise 0.001 --loss 0.1
    interlock device monitor thermostat
    interlock device test --profile b --port /dev/ttyUSB0
    interlock device scaffold thermostat.toml --out firmware
    """,
)


@verb(app, "simulate")
def simulate(
    invocation: Invocation,
    device: Annotated[str, typer.Argument(metavar="DEVICE")],
    port: Annotated[str | None, typer.Option("--port", metavar="PORT")] = None,
    noise: Annotated[float, typer.Option("--noise", min=0.0, max=1.0)] = 0,
    loss: Annotated[float, typer.Option("--loss", min=0.0, max=1.0)] = 0,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    event: Annotated[str | None, typer.Option("--event", metavar="NAME")] = None,
    every: Annotated[float, typer.Option("--every", min=0.05)] = 5.0,
) -> None:
    """Play a device of Profile A or B out of its description.

    Until Ctrl-C it stands at the port of the description: a name for a pty, or socket://HOST:PORT, where it listens.

    Options:
        device: A segment of .devices in the workspace, or a description file.
        port: The port, if not that of the description.
        noise: The chance of a wrong bit, per byte.
        loss: The chance that a message is lost.
        seed: A number that makes the faults the same each time.
        event: An event of the description that it sends.
        every: Seconds between two events.

    Examples:
        interlock device simulate thermostat
        interlock device simulate boards/valve.toml --port valve.pty
        interlock device simulate thermostat --noise 0.001 --loss 0.1 --seed 7
        interlock device simulate thermostat --event overheated --every 10
    """
    description = _read_description(invocation, device)
    where = port or description.link.port
    if where is None or where == SIMULATED:
        raise Refused("no_port", f"{device} has no port to stand at", hint=_NAME_PORT)
    sent_event = next((described for described in description.events if described.name == event), None)
    if event is not None and sent_event is None:
        names = ", ".join(described.name for described in description.events) or "none"
        raise BadUsage("usage", f"{device} describes no event {event!r}", hint=f"it describes: {names}")
    try:
        with _libraries_of(device):
            faults = Faults(noise=noise, loss=loss, seed=seed)
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(_play(invocation.out, description, where, faults, sent_event, every))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Refused("cannot_simulate", f"{device} cannot be simulated at {where}: {why}") from error


@contextlib.contextmanager
def _libraries_of(device: str) -> Iterator[None]:
    """Run the commands of a `with` block. If one of them needs a library of the extra `devices` that is not installed,
    refuse the command with a hint.
    """
    try:
        yield
    except ImportError as missing:
        hint = "pip install 'interlock[devices]'"
        why = f"{device} needs the library {missing.name}: install the extra interlock[devices]"
        raise Refused("library_missing", why, hint=hint) from missing


async def _play(
    out: "Output", description: DeviceDescription, where: str, faults: Faults, event: Event | None, every_s: float
) -> None:
    """Simulate the device at the port `where` until the process is ended. Send `event` every `every_s` seconds."""
    texts = MessageTexts(description, {tool.id: tool for tool in description.tools})

    def show(is_ours: bool, message: bytes, happened: LineFault | None) -> None:
        is_unread = happened == "spoiled" and not is_ours  # bytes that came, no message yet
        text = message.hex(" ") if is_unread else texts.text(message)
        if out.as_json:
            out.json_line({"is_sent": is_ours, "hex": message.hex(" "), "text": text, "happened": happened})
        elif happened is not None or not text.startswith("heartbeat"):
            out.line(f"{'<' if is_ours else '>'} {text}" + (f"  {happened}" if happened is not None else ""))
        sys.stdout.flush()

    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):  # its port goes with it
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    simulated = SimulatedPort(description, faults, show)
    try:
        reached = await simulated.open(where)
        if out.as_json:
            out.json_line({"port": where, "device": reached})
        else:
            out.line(f"it answers at {where}" + (f" ({reached})" if reached != where else "") + "; Ctrl-C ends it")
        sys.stdout.flush()
        if event is None:
            await ended.wait()
        while not ended.is_set() and event is not None:
            try:
                await asyncio.wait_for(ended.wait(), every_s)
            except TimeoutError:
                try:
                    simulated.say(event)
                except DeviceFault as fault:
                    raise ValueError(f"the event {event.name}: {fault.detail}") from fault
    finally:
        await simulated.close()


def _read_description(invocation: Invocation, device: str) -> DeviceDescription:

    from interlock.config.load import DEVICE_FOLDER, read_device_file

    named = Path(device)
    path = named if named.suffix == ".toml" else invocation.loaded.plan.workspace / DEVICE_FOLDER / f"{device}.toml"
    read = read_device_file(path)
    if isinstance(read, tuple):
        raise Refused("description_invalid", "; ".join(str(problem) for problem in read[:3]))
    return read


@verb(app, "monitor")
def monitor(
    invocation: Invocation,
    segment: Annotated[str, typer.Argument(metavar="DEVICE", autocompletion=segments)],
    count: Annotated[int | None, typer.Option("-n", "--count", min=1)] = None,
    heartbeats: Annotated[bool, typer.Option("--heartbeats")] = False,
) -> None:
    """Show what a node and its device say to each other.

    Message by message, until Ctrl-C, with the arguments and results of everybody's calls: it takes the role of an
    admin. Heartbeats only with --heartbeats.

    Where no node runs, and for a description file, the serial port itself is opened and read; nothing is sent.

    Options:
        segment: Its segment, or a description file.
        count: End after this many messages.
        heartbeats: Show heartbeats as well.

    Examples:
        interlock device monitor thermostat
        interlock device monitor thermostat --json | jq -r .text
        interlock device monitor boards/valve.toml
    """
    if segment.endswith(".toml"):
        _watch_port(invocation, segment, count, heartbeats)
        return
    try:
        last = invocation.node.call(GET_FRAMES, segment=segment, after=0).as_(Frames).last
    except Unreachable as unreachable:
        _watch_port(invocation, segment, count, heartbeats, unreachable)
        return
    shown = 0
    if not invocation.out.as_json:
        invocation.out.remark(f"watching {segment}: > what the node says, < what the device says; Ctrl-C ends it")

    def ask() -> Frames:
        return invocation.node.call(GET_FRAMES, segment=segment, after=last).as_(Frames)

    with contextlib.suppress(KeyboardInterrupt):
        for reply in poll(ask, every_s=MONITOR_S):
            if isinstance(reply, Unreachable):
                continue
            last = reply.last
            for frame in reply.frames:
                if heartbeats or not frame.text.startswith("heartbeat") or frame.discarded is not None:
                    _show(invocation, frame)
                    shown += 1
                    if shown == count:
                        return


def _watch_port(
    invocation: Invocation, device: str, count: int | None, heartbeats: bool, unreachable: Unreachable | None = None
) -> None:
    """Show the messages that a device sends by itself, read from its port, until Ctrl-C."""
    description = _read_description(invocation, device)
    port = description.link.port
    if description.link.transport != "uart_cbor" or port is None or port == SIMULATED:
        if unreachable is not None:
            raise unreachable
        through = "watch it through its node: interlock device monitor SEGMENT"
        raise Refused("no_port", f"{device} has no serial port that could be read", hint=through)
    if not invocation.out.as_json:
        invocation.out.remark(f"no node is asked: reading {port} itself; nothing is sent, Ctrl-C ends it")
    try:
        with _libraries_of(device), contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(invocation, description, count, heartbeats))
    except TransportFailed as failed:
        is_held = isinstance(failed.__cause__, OSError) and failed.__cause__.errno == errno.EBUSY
        hint = "a node that holds the port shows it: interlock device monitor SEGMENT" if is_held else None
        raise Refused("port_closed", f"the port of {device} cannot be read: {failed}", hint=hint) from failed


async def _watch(invocation: Invocation, description: DeviceDescription, count: int | None, heartbeats: bool) -> None:
    """Show the messages from the port of a device. Raise TransportFailed if the port cannot be opened, or when the line
    is lost.
    """
    texts = MessageTexts(description, {tool.id: tool for tool in description.tools})
    shown = 0
    ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    class Watcher(TransportOwner):
        def on_message(self, message: bytes) -> None:
            nonlocal shown
            text = texts.text(message)
            if ended.done() or (text.startswith("heartbeat") and not heartbeats):
                return
            shown += 1
            at, shown_bytes = rfc3339(time.time()), message.hex(" ")
            _show(invocation, Frame(number=shown, at=at, is_sent=False, hex=shown_bytes, text=text, discarded=None))
            if shown == count:
                ended.set_result(None)

        def on_transport_lost(self, reason: str, rest_s: float = 0.0) -> None:
            if not ended.done():
                ended.set_result(reason)

    transport = UartTransport("monitor", description, Watcher(), SharedConnections())
    try:
        await transport.open()
        lost = await ended
    finally:
        await transport.close()
    if lost is not None:
        raise TransportFailed(lost)


def _show(invocation: Invocation, frame: Frame) -> None:

    if invocation.out.as_json:
        invocation.out.json_line(msgspec.to_builtins(frame))
    else:
        dropped = f"  dropped: {frame.discarded}" if frame.discarded else ""
        at = local_time(frame.at, "%H:%M:%S")
        invocation.out.line(f"{at} {'>' if frame.is_sent else '<'} {frame.text}{dropped}")
    sys.stdout.flush()


@verb(app, "test")
def test(
    invocation: Invocation,
    device: Annotated[str | None, typer.Argument(metavar="DEVICE")] = None,
    profile: Annotated[Literal["a", "b"] | None, typer.Option("--profile")] = None,
    port: Annotated[str | None, typer.Option("--port", metavar="PORT")] = None,
    within: Annotated[float, typer.Option("--within", min=0.05, max=60)] = 1.0,
    gap: Annotated[float, typer.Option("--gap", min=0.05, max=60)] = 0.5,
    unknown_ids: Annotated[bool, typer.Option("--unknown-ids")] = False,
) -> None:
    """Check a device's stub against Profile A or B of MCP-AX.

    Tools are called only where the description says mutable = false, and other ids only with --unknown-ids. The node
    must not hold the port meanwhile.

    Options:
        device: A segment of .devices in the workspace, or a description file.
        profile: Without a description: the profile that the device has.
        port: A device file, or socket://HOST:PORT.
        within: Seconds for each answer.
        gap: Seconds of silence that end a frame.
        unknown_ids: Also call an id that is not described: it must be refused.

    Examples:
        interlock device test thermostat
        interlock device test --profile b --port /dev/ttyUSB0
        interlock device test boards/valve.toml --port socket://localhost:5555 --json
    """
    if (device is None) == (profile is None):
        raise BadUsage("usage", "name a DEVICE or a --profile", hint="a device without a description has a --profile")
    if device is not None:
        description = _read_description(invocation, device)
    else:
        link = LinkDescription(transport="uart_cbor", max_frame=96)
        description = DeviceDescription(profile=profile or "b", link=link)
    if port is not None:
        description = msgspec.structs.replace(description, link=msgspec.structs.replace(description.link, port=port))
    if description.profile not in ("a", "b") or description.link.transport != "uart_cbor":
        raise Refused("cannot_test", "only stubs of profiles a and b on a serial line can be tested")
    if description.link.port is None:
        raise BadUsage("usage", "there is no port", hint="name one with --port")
    if description.link.port == SIMULATED:
        raise Refused("no_port", f"{device} has no port that can be tested", hint=_NAME_PORT)
    with _libraries_of(device or "the device"):
        from interlock.devices.cli.stub_check import check_stub

        check_stub(invocation, description, within_s=within, gap_s=gap, may_call_unknown=unknown_ids)


@verb(app, "scaffold")
def write_scaffold(
    invocation: Invocation,
    source: Annotated[Path, typer.Argument(metavar="FILE")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER")],
) -> None:
    """Write the C table and the description of a device.

    The C is for the stub in firmware/ and compiles as it is; its handlers are yours to fill in. The description goes
    into FOLDER/.devices, for the workspace of the gateway.

    Options:
        source: A description; its name is the segment.
        out: Where the files are written; none is replaced.

    Examples:
        interlock device scaffold thermostat.toml --out firmware
    """
    from interlock.devices.protocol.scaffold import CannotScaffold, scaffold

    if not is_segment(source.stem):
        hint = "name the file after the device: a-z, 0-9, _ and -"
        raise BadUsage("usage", f"{source.stem!r} is no segment", hint=hint)
    description = _read_description(invocation, str(source))
    try:
        files = scaffold(source.stem, description)
    except CannotScaffold as error:
        raise Refused("cannot_scaffold", f"{source}: {error}") from error
    texts = {out / name: text for name, text in files.items()}
    if (there := next((path for path in texts if path.exists()), None)) is not None:
        raise Refused("not_written", f"{there} is there already", hint="name another folder, or remove it")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise Refused("not_written", f"{out} cannot be written: {error.strerror or error}") from None
    if invocation.out.as_json:
        invocation.out.json({"files": list(map(str, texts))})
        return
    for path in texts:
        invocation.out.line(str(path))
    code = next(path for path in texts if path.suffix == ".c")
    crc = {"crc8": ["-DMCPAX_B_CRC=8"], "crc16": ["-DMCPAX_B_CRC=16"]}.get(description.link.crc, [])
    stub = [f"firmware/{name}" for name in (f"mcpax_{description.profile}.c", "mcpax_next.c", "ports/atmega328p.c")]
    words = ["avr-gcc", "-mmcu=atmega328p", "-Os", "-std=c99", "-ffreestanding", "-DMCPAX_TICKS_PER_MS=16"]
    words += [*(crc if description.profile == "b" else []), "-Ifirmware", str(code), *stub]
    build = shlex.join([*words, "-o", str(code.with_suffix(".elf"))])
    invocation.out.remark(f"build it beside firmware/ of Interlock, for instance: {build}")
