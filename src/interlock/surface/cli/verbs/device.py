"""interlock device simulate | monitor"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.surface.cli.command import Invocation, verb, verb_app
from interlock.surface.cli.completion import segments
from interlock.surface.cli.terminal.errors import Refused, Unreachable

if TYPE_CHECKING:
    from interlock.net.devices.simulated_port import Faults
    from interlock.operator_api.links import Frame
    from interlock.protocol.devices.description import DeviceDescription

MONITOR_S = 0.2

app = verb_app(
    "Simulate a device, watch what a device and its node say.",
    examples="""
    interlock device simulate thermostat
    interlock device simulate thermostat --noise 0.001 --loss 0.1
    interlock device monitor thermostat
    """,
)


@verb(
    app,
    "simulate",
    examples="""
    interlock device simulate thermostat
    interlock device simulate boards/valve.toml --port valve.pty
    interlock device simulate thermostat --noise 0.001 --loss 0.1 --seed 7
    """,
)
def simulate(
    invocation: Invocation,
    device: Annotated[
        str, typer.Argument(metavar="DEVICE", help="A segment of .devices in the workspace, or a description file.")
    ],
    port: Annotated[
        str | None, typer.Option("--port", metavar="PORT", help="Instead of the port of the description.")
    ] = None,
    noise: Annotated[float, typer.Option("--noise", min=0.0, max=1.0, help="The chance of a wrong bit, per byte.")] = 0,
    loss: Annotated[float, typer.Option("--loss", min=0.0, max=1.0, help="The chance that a message is lost.")] = 0,
    seed: Annotated[int | None, typer.Option("--seed", help="The same faults each time.")] = None,
) -> None:
    """Play a device of Profile A or B out of its description.

    Until Ctrl-C it stands at the port of the description: a name for a pty, or socket://HOST:PORT, where it listens.
    """
    import asyncio

    from interlock.net.devices.simulated_port import Faults

    description = _description(invocation, device)
    where = port or description.link.port
    if where is None or where == "simulated":
        hint = "name one with --port; a device whose port is 'simulated' is played by the node itself"
        raise Refused("no_port", f"{device} has no port to stand at", hint=hint)
    faults = Faults(noise=noise, loss=loss, seed=seed)
    try:
        asyncio.run(_play(invocation, description, where, faults))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise Refused("cannot_simulate", f"{device} cannot be simulated at {where}: {why}") from error
    except KeyboardInterrupt:
        pass


async def _play(invocation: Invocation, description: "DeviceDescription", where: str, faults: "Faults") -> None:
    import asyncio
    import sys

    from interlock.net.devices.simulated_port import SimulatedPort
    from interlock.protocol.devices.message_text import message_text

    out = invocation.out
    tools = {tool.id: tool for tool in description.tools}

    def show(is_ours: bool, message: bytes) -> None:
        text = message_text(description, tools, message)
        if out.as_json:
            out.json_line({"is_sent": is_ours, "hex": message.hex(" "), "text": text})
        elif not text.startswith("heartbeat"):
            out.line(f"{'<' if is_ours else '>'} {text}")
        sys.stdout.flush()

    simulated = SimulatedPort(description, faults, show)
    reached = await simulated.open(where)
    try:
        if out.as_json:
            out.json_line({"port": where, "device": reached})
        else:
            out.line(f"it answers at {where}" + (f" ({reached})" if reached != where else "") + "; Ctrl-C ends it")
        sys.stdout.flush()
        await asyncio.Event().wait()
    finally:
        await simulated.close()


def _description(invocation: Invocation, device: str) -> "DeviceDescription":
    from interlock.config.device_files import FOLDER, read_device_file

    named = Path(device)
    path = named if named.suffix == ".toml" else invocation.loaded.plan.workspace / FOLDER / f"{device}.toml"
    read = read_device_file(path)
    if isinstance(read, tuple):
        raise Refused("description_invalid", "; ".join(str(problem) for problem in read[:3]))
    return read


@verb(
    app,
    "monitor",
    examples="""
    interlock device monitor thermostat
    interlock device monitor thermostat --json | jq -r .text
    """,
)
def monitor(
    invocation: Invocation,
    segment: Annotated[str, typer.Argument(metavar="SEGMENT", help="The device.", autocompletion=segments)],
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="End after so many messages.")] = None,
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="Show heartbeats as well.")] = False,
) -> None:
    """Show what a node and its device say to each other.

    Message by message, until Ctrl-C. Heartbeats only with --heartbeats.
    """
    import sys

    from interlock.operator_api.links import Frames
    from interlock.surface.cli.client.poll import poll

    last = invocation.node.get("links", segment, "frames", after=0).as_(Frames).last
    left = count
    if not invocation.out.as_json:
        invocation.out.remark(f"watching {segment}: > what the node says, < what the device says; Ctrl-C ends it")

    def ask() -> Frames:
        return invocation.node.get("links", segment, "frames", after=last).as_(Frames)

    try:
        for found in poll(ask, every_s=MONITOR_S):
            if isinstance(found, Unreachable):
                continue
            last = found.last
            for frame in found.frames:
                if frame.text.startswith("heartbeat") and not heartbeats and frame.discarded is None:
                    continue
                _show(invocation, frame)
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return
    except KeyboardInterrupt:
        pass


def _show(invocation: Invocation, frame: "Frame") -> None:
    import msgspec

    from interlock.surface.cli.terminal.text import local_time, one_line

    if invocation.out.as_json:
        invocation.out.json_line(msgspec.to_builtins(frame))
        return
    dropped = f"  dropped: {frame.discarded}" if frame.discarded else ""
    at = local_time(frame.at, "%H:%M:%S")
    invocation.out.line(f"{at} {'>' if frame.is_sent else '<'} {one_line(frame.text)}{dropped}")
