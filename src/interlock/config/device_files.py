"""Device descriptions: the files `.devices/SEGMENT.toml` of the workspace, read into the plan."""

from pathlib import Path
from typing import Final

from interlock.ax.protocol.names import is_segment
from interlock.config.layers import file_layer
from interlock.config.plan import DevicePlan
from interlock.config.problems import At, ConfigContext, Findings, Problem, WrongValue, nearest
from interlock.config.reader import Settings
from interlock.config.value_types import Segment
from interlock.devices.protocol.description import SIMULATED, DeviceDescription, LinkDescription

FOLDER: Final = ".devices"
DEVICES_MAX: Final = 10_000


def device_files(workspace: Path) -> list[Path]:
    """Return the description files of a workspace, sorted. Raise OSError if the folder cannot be read."""
    try:
        files = list((workspace / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(file for file in files if file.suffix == ".toml" and not file.name.startswith("."))


def read_devices(
    workspace: Path, settings: Settings, around: ConfigContext, findings: Findings, *, lenient: bool = False
) -> tuple[DevicePlan, ...]:
    """Read all device descriptions of a workspace.

    With `lenient`, a wrong description makes only its device fail. Otherwise it makes the configuration invalid.
    """
    folder = workspace / FOLDER
    try:
        files = device_files(workspace)
    except OSError as error:
        findings.problem(Problem(file=str(folder), message=f"cannot be read: {error.strerror}"))
        return ()
    if len(files) > DEVICES_MAX:
        findings.problem(Problem(file=str(folder), message=f"has more than {DEVICES_MAX} descriptions"))
        return ()
    read = _read_leniently if lenient else _read
    devices = [read(file, settings, around, findings) for file in files]
    described = tuple(device for device in devices if device is not None)
    # Nothing in a frame says which of several devices on one serial line is meant.
    seen: dict[str, str] = {}
    for device in described:
        link = device.description.link
        if link.transport != "uart_cbor" or link.port in (None, SIMULATED):
            continue
        if link.port in seen:
            message = f"its port is that of '{seen[link.port]}' already"
            findings.problem(Problem(file=str(folder / f"{device.segment}.toml"), key="link.port", message=message))
        seen.setdefault(link.port, device.segment)
    return described


def read_device_file(file: Path) -> DeviceDescription | tuple[Problem, ...]:
    """Read one description file, which may lie outside the workspace. Return all its problems if it is wrong."""
    findings = Findings()
    layer = file_layer(file, findings, Problem(file=str(file), message="there is no such file"))
    if layer is None:
        return findings.problems()
    return (
        _describe(At(layer=layer, around=ConfigContext(env={}, home=Path()), findings=findings)) or findings.problems()
    )


def _describe(at: At) -> DeviceDescription | None:
    """Return the description in the layer of `at`, or None after reporting every fault in it."""
    # Imported when there is a description: a node without devices does not load what checks them.
    from interlock.devices.protocol.description_check import read_description

    description = read_description(at.layer.tree)
    if not isinstance(description, tuple):
        return description
    for fault in description:
        place = at
        for step in fault.path:
            place = place.inside(step)
        like = nearest(fault.unknown, fault.existing) if fault.unknown is not None else None
        fallback = f"known here: {', '.join(fault.existing)}" if fault.existing else fault.hint
        place.wrong(fault.message, f"did you mean '{like}'?" if like is not None else fallback)
    return None


def _read(file: Path, settings: Settings, around: ConfigContext, findings: Findings) -> DevicePlan | None:
    layer = file_layer(file, findings, None)
    if layer is None:
        return None
    at = At(layer=layer, around=around, findings=findings)
    segment = Segment().read(file.stem, at)
    if isinstance(segment, WrongValue):
        return None
    if segment in settings.servers:
        at.wrong(f"'{segment}' is the segment of a server already", "give the file another name")
    description = _describe(at)
    return None if description is None else DevicePlan(segment=segment, description=description)


def _read_leniently(file: Path, settings: Settings, around: ConfigContext, findings: Findings) -> DevicePlan | None:
    """Read a description file. A mistake in it becomes a fault of this device and stops no other device."""
    own = Findings()
    read = _read(file, settings, around, own)
    problems = own.problems()
    for problem in problems:
        findings.warning(problem)
    if not problems:
        return read
    if not is_segment(file.stem) or file.stem in settings.servers:
        return None
    nothing = DeviceDescription(profile="a", link=LinkDescription(transport="uart_cbor"))
    return DevicePlan(segment=file.stem, description=nothing, fault=str(problems[0]))
