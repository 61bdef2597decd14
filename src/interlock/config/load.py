"""Loading of a configuration: files, environment and flags become one Plan, or a list of every problem in them.

Theory of operation. Each source becomes a layer (`layers`). The layers are read into settings, the weakest first
(`reader`), and the settings are checked as a whole (`cross_checks`). Descriptions of devices are read from the
workspace (`device_files`). If no problem was found, the settings become the plan; otherwise ConfigInvalid has every
problem, in the order of files and lines, so that a person can fix all of them at once.

A key is taken from the first source that has it: flag, environment, ./interlock.toml,
<config>/interlock/interlock.toml. A file that is named (by a flag or INTERLOCK_CONFIG) is read instead of those two,
and must exist. Nothing is written, started or asked of the network.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.config.cross_checks import check_names, check_together
from interlock.config.device_files import read_devices
from interlock.config.folders import config_folder, data_folder, home_folder
from interlock.config.layers import environment_layer, file_layer, flags_layer
from interlock.config.plan import Plan, ServerPlan, Spawn
from interlock.config.problems import At, ConfigContext, ConfigInvalid, Findings, Problem
from interlock.config.reader import Settings
from interlock.config.schema import full_plan, sections

__all__ = ["FILE_NAME", "ConfigInvalid", "Loaded", "Problem", "load"]

FILE_NAME: Final = "interlock.toml"


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A valid configuration, with its warnings and the files it was read from."""

    plan: Plan
    paths: tuple[Path, ...]  # the files read, the strongest first
    warnings: tuple[Problem, ...]
    written: dict[tuple[str, str], At] = {}  # as `Settings.written`: where to report what is found out later


def load(
    path: Path | None,
    env: Mapping[str, str],
    flags: Mapping[str, str],
    *,
    starting: bool = True,
    lenient: bool = False,
) -> Loaded:
    """Read the configuration. Raise ConfigInvalid, which lists every problem, if it cannot be used.

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
    plan = full_plan()(workspace=workspace, data=data, servers=servers, **fields)
    return Loaded(
        plan=plan,
        paths=tuple(each.absolute() for each, _ in files),
        warnings=findings.warnings(),
        written=settings.written,
    )


def _find_files(path: Path | None, around: ConfigContext) -> tuple[Problem | None, list[Path]]:
    """Return the files to read, and the problem to report if a file that was named explicitly is missing.

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
    """Return the server with absolute folders. A program without a configured folder starts in the workspace."""
    reach, replace = server.reach, msgspec.structs.replace
    if not isinstance(reach, Spawn):
        return server
    sandbox = None if reach.sandbox is None else replace(reach.sandbox, home=data / reach.sandbox.home)
    return replace(server, reach=replace(reach, cwd=reach.cwd or workspace, sandbox=sandbox))
