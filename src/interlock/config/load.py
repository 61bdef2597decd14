"""Loading of a configuration: files, environment and flags become one Plan, or a list of every problem in them.

Theory of operation. Each source becomes a layer (`layers`). The layers are read into settings, the weakest first
(`reader`), and the settings are checked as a whole (`cross_checks`). Descriptions of devices are read from the
workspace (`read_devices`). If no problem was found, the settings become the plan; otherwise ConfigInvalid has every
problem, in the order of files and lines, so that a person can fix all of them at once.

A key is taken from the first source that has it: flag, environment, ./interlock.toml,
<config>/interlock/interlock.toml. A file that is named (by a flag or INTERLOCK_CONFIG) is read instead of those two,
and must exist. Nothing is written, started or asked of the network.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.ax.protocol.names import is_segment
from interlock.config.cross_checks import check_names, check_together
from interlock.config.folders import config_folder, data_folder, home_folder
from interlock.config.layers import environment_layer, file_layer, flags_layer
from interlock.config.plan import DevicePlan, Plan, ServerPlan, Spawn
from interlock.config.problems import At, ConfigContext, ConfigInvalid, Findings, Layer, Problem, WrongValue, nearest
from interlock.config.reader import Settings
from interlock.config.schema import full_plan, sections
from interlock.config.value_types import Segment
from interlock.devices.protocol.description import SIMULATED, DeviceDescription, LinkDescription

__all__ = ["FILE_NAME", "ConfigInvalid", "Loaded", "Problem", "load"]

FILE_NAME: Final = "interlock.toml"


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A valid configuration, with its warnings and the files it was read from."""

    plan: Plan
    paths: tuple[Path, ...]  # the files read, the strongest first
    warnings: tuple[Problem, ...]
    written: dict[tuple[str, str], At] = {}  # as `Settings.written`: where to report what is found out later
    # The paths of the strongest file, under which a start is recorded. Empty if no file decides about the data folder.
    guarded: tuple[Path, ...] = ()


def load(
    path: Path | None, env: Mapping[str, str], flags: Mapping[str, str], *, starting: bool = True, lenient: bool = False
) -> Loaded:
    """Read the configuration of a node from its files, environment variables and flags. Raise ConfigInvalid with all
    problems if the configuration cannot be used.

    `flags` maps dotted keys to text: {"data": "...", "node.listen": "..."}. If `starting` is False, the plan is not
    used to start a node, so environment variables that only a running node needs may be missing. With `lenient`, a
    wrong device description is a warning and makes only its device fail.
    """
    try:
        here = Path.cwd()
    except OSError:
        raise ConfigInvalid((Problem(message="the current folder is gone", hint="change to another"),)) from None
    around = ConfigContext(env=env, home=home_folder(env), starting=starting)
    findings = Findings()
    missing, looked_for = _find_files(path, around)
    files = [(file, layer) for file in looked_for if (layer := file_layer(file, findings, missing)) is not None]
    stronger = (flags_layer(flags, here, findings), environment_layer(env, here, findings))
    settings = Settings()
    for layer in reversed((*stronger, *(layer for _, layer in files))):
        settings.read(At(layer=layer, around=around, findings=findings))

    # Relative paths of the workspace start at the project's own file, never at the person's in <config>.
    project = next((layer.base for file, layer in files if missing or file == Path(FILE_NAME)), here)
    workspace = settings.top.get("workspace", project)
    data = settings.top.get("data", data_folder(env))
    check_together(settings, workspace, data, findings)
    check_names(settings)
    devices = read_devices(workspace, settings, around, findings, lenient=lenient)
    if not files and not settings.servers and not findings.problems():
        hint = "`interlock init` writes one"
        findings.warning(Problem(message=f"no {FILE_NAME} was found, so there are no servers", hint=hint))
    problems = findings.problems()
    if problems:
        raise ConfigInvalid(problems)

    # A section that is a table becomes a struct: the defaults of its field, replaced by what is written.
    written = {each.name: settings.tables.get(each.name, {}) for each in sections().values() if each.shape == "table"}
    written["drivers"] = written["drivers"] | {"own": config_folder(env) / "drivers"}
    written["devices"] = written["devices"] | {"described": devices}
    defaults = {field.name: field.default for field in msgspec.structs.fields(full_plan())}
    fields: dict[str, Any] = {
        name: msgspec.structs.replace(defaults[name], **values) for name, values in written.items()
    }
    fields |= {sections()[name].field: entries for name, entries in settings.lists.items()}
    servers = tuple(_with_folders(server, workspace, data) for server in settings.servers.values())
    fields["packages"] = settings.top.get("packages")
    plan = full_plan()(workspace=workspace, data=data, servers=servers, **fields)
    return Loaded(
        plan=plan,
        paths=tuple(each.absolute() for each, _ in files),
        warnings=findings.warnings(),
        written=settings.written,
        guarded=_guarded_paths(looked_for[0], settings, tuple(layer for _, layer in files)),
    )


def _guarded_paths(file: Path, settings: Settings, layers: tuple[Layer, ...]) -> tuple[Path, ...]:
    """Return the path of the configuration file with the highest precedence, as it is written and with symbolic links
    resolved, even if there is no such file. Return nothing if the data folder was not set by a configuration file.
    """
    at = settings.written.get(("", "data"))
    if at is not None and not any(at.layer is layer for layer in layers):
        return ()
    file = file.absolute()
    written = Path(os.path.realpath(file.parent)) / file.name
    return tuple(dict.fromkeys((written, Path(os.path.realpath(file)))))


def _find_files(path: Path | None, around: ConfigContext) -> tuple[Problem | None, list[Path]]:
    """Return the configuration files to look for, and the problem to report if a file that was named on the command
    line is missing.

    The problem is None if no file was named.
    """
    by = ""
    variable = around.env.get("INTERLOCK_CONFIG", "")
    if path is None and variable:
        path = around.home / variable[2:] if variable.startswith("~/") else Path(variable)
        by = " (named by INTERLOCK_CONFIG)"
    if path is None:
        usual = config_folder(around.env) / FILE_NAME
        return None, [Path(FILE_NAME)] + ([usual] if usual != Path(FILE_NAME).absolute() else [])
    missing = Problem(file=str(path), message=f"there is no such file{by}", hint="`interlock init` writes one")
    return missing, [path]


def _with_folders(server: ServerPlan, workspace: Path, data: Path) -> ServerPlan:
    """Return a server with absolute folders. A program starts in the workspace unless another folder is set."""
    reach, replace = server.reach, msgspec.structs.replace
    if not isinstance(reach, Spawn):
        return server
    sandbox, container = (
        None if each is None else replace(each, home=data / each.home) for each in (reach.sandbox, reach.container)
    )
    return replace(server, reach=replace(reach, cwd=reach.cwd or workspace, sandbox=sandbox, container=container))


# Device descriptions: the files `.devices/SEGMENT.toml` of the workspace, read into the plan.

DEVICE_FOLDER: Final = ".devices"
DEVICES_MAX: Final = 10_000


def device_files(workspace: Path) -> list[Path]:
    """Return the description files of a workspace, sorted. Raise OSError if the folder cannot be read."""
    try:
        files = list((workspace / DEVICE_FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(file for file in files if file.suffix == ".toml" and not file.name.startswith("."))


def read_devices(
    workspace: Path, settings: Settings, around: ConfigContext, findings: Findings, *, lenient: bool = False
) -> tuple[DevicePlan, ...]:
    """Read the descriptions of all devices in a workspace.

    With `lenient`, a wrong description makes only its device fail. Otherwise it makes the configuration invalid.
    """
    folder = workspace / DEVICE_FOLDER
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
    """Read one description of a device. Return all problems if it is wrong."""
    findings = Findings()
    layer = file_layer(file, findings, Problem(file=str(file), message="there is no such file"))
    if layer is None:
        return findings.problems()
    return (
        _describe(At(layer=layer, around=ConfigContext(env={}, home=Path()), findings=findings)) or findings.problems()
    )


def _describe(at: At) -> DeviceDescription | None:
    """Read the description of a device at the place `at`. Report every fault and return None if there are any."""
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
    """Read the description of a device. Report its problems only as warnings, and return a device that is marked as
    faulty. Return None if the name of the file cannot be used for a device.
    """
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
