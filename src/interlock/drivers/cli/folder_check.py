"""interlock check of driver files: every driver of the workspace, or one file or folder that is named.

Nothing is installed, started or asked of the network. Of the data folder only the registry of names is read: what was
registered of a driver is compared with by --against alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from interlock.cli.client.offline_names import StoredNames
from interlock.cli.terminal.errors import BadUsage
from interlock.config.plan import Plan
from interlock.config.problems import Problem
from interlock.drivers.protocol.binding.match import qualified_name
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE, check_published, read_driver
from interlock.drivers.protocol.files.inventory import SECRETS_FILE, read_secrets
from interlock.drivers.protocol.files.server_json import SERVER_JSON
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import Problem as Found
from interlock.drivers.protocol.selection.requirements import changes_of_identity, manifest_of
from interlock.drivers.workspace.declaration import Declaration, Declared, Remembered
from interlock.drivers.workspace.folder import FolderUnreadable, read_file
from interlock.drivers.workspace.scan import FoundFolder as Folder
from interlock.drivers.workspace.scan import Root, mark_of, scan_workspace
from interlock.drivers.workspace.survey import Surveyor, this_machine, ungranted_secrets
from interlock.names.protocol.entry import Entry
from interlock.wire.refusal import Refused


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    drivers: int
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def check_drivers(plan: Plan, named: str | None, *, against: str | None, upstream: bool) -> Checked:
    """`named`: only this folder or file. `against`: an older one of the same driver. `upstream`: also as a host
    without our extensions would read it."""
    if named is not None and Path(named).name in (TOOL_FILE, SECRETS_FILE):
        return _result(0, _one_file(Path(named).absolute()))
    only = _folder(named) if named is not None else None
    sight = scan_workspace(plan)
    if only is not None and only not in {found.path for found in sight.folders}:
        root = Root(kind="configured", rank=len(plan.drivers.paths) + 2, path=only.parent)
        sight = msgspec.structs.replace(
            sight, folders=(*sight.folders, Folder(root=root, path=only, mark=mark_of(only)))
        )
    declaration = Surveyor(plan, this_machine(plan.data)).survey(sight, Remembered())
    drivers = [one for one in declaration.drivers if only is None or one.folder == only]
    problems = [problem for one in drivers for problem in _raised_problems(one, declaration)]
    problems += declaration.problems if only is None else ()
    contracts = dict.fromkeys(one.folder / file for one in drivers for file in one.files if file.endswith(TOOL_FILE))
    contracts |= dict.fromkeys(path for path, _ in sight.contracts) if only is None else {}
    for path in contracts:  # also those that no driver binds
        problems += _one_file(path)
    entries = StoredNames(plan, plan.data).entries() if drivers else {}
    for one in drivers:
        problems += _deprecated_names(one, entries)
        if upstream:
            problems += _refused_elsewhere(one, problems)
        if against is not None and one.driver is not None:
            problems += changes_of_identity(manifest_of(_older(Path(against))), one.driver)
    return _result(len(drivers), dict.fromkeys(problems))


def ungranted_problems(plan: Plan, slug: str) -> tuple[Problem, ...]:
    """Why drivers that name this secret would not be given it, although the store has it."""
    declaration = Surveyor(plan, this_machine(plan.data)).survey(scan_workspace(plan), Remembered())
    found = (
        each.problem
        for one in declaration.drivers
        for each in ungranted_secrets(one)
        if slug in (each.slug, f"{one.id}/{each.slug}") and not _is_described_elsewhere(each.slug, one, declaration)
    )
    return tuple(_as_shown(found, "warning"))


def _raised_problems(one: Declared, declaration: Declaration) -> Iterator[Found]:
    """A server that would never be started is a mistake in its files; the node only waits."""
    fatal = {
        each.problem for each in ungranted_secrets(one) if not _is_described_elsewhere(each.slug, one, declaration)
    }
    for problem in one.problems:
        yield msgspec.structs.replace(problem, severity="error") if problem in fatal else problem


def _deprecated_names(one: Declared, entries: Mapping[str, Entry]) -> Iterator[Found]:
    """A driver is a new implementation of the names that its server's tools have and that they are listed under."""
    for binding in one.driver.implements if one.driver is not None else ():
        contract = one.contracts.get(binding.index)
        listed = qualified_name(contract) if contract is not None else None
        names = (binding.tool_name, *(() if listed is None or isinstance(listed, Found) else listed[1:]))
        for entry in filter(None, map(entries.get, dict.fromkeys(names))):
            if one.driver is not None and entry.deprecation is not None:  # REG-7.3-2
                hint = f"offer {entry.successor}" if entry.successor else "offer a tool of another name"
                yield one.driver.places.problem(
                    binding.pointer, "deprecated", entry.deprecation, hint, severity="warning"
                )


def _refused_elsewhere(one: Declared, known: list[Found]) -> Iterator[Found]:
    """What uses our extensions serves here all the same; hosts that go by the published schemas refuse it."""
    said = {each.field for each in known if each.file == str(one.folder / DRIVER_FILE)}
    for each in check_published(_bytes(one.folder / DRIVER_FILE), str(one.folder / DRIVER_FILE)):
        if each.field in said:
            yield each
        else:
            hint = (
                f"it is an extension of Interlock: interlock export driver {one.segment} --upstream writes it without"
            )
            told = f"other hosts refuse this: {each.message}"
            yield msgspec.structs.replace(each, severity="warning", message=told, hint=hint)


def _is_described_elsewhere(slug: str, one: Declared, declaration: Declaration) -> bool:
    """By another driver's inventory, which counts once that driver is trusted; who is, is not known here."""
    others = (each.own_secrets for each in declaration.drivers if each.folder != one.folder)
    return slug not in {each.slug for each in one.secrets.values()} and any(
        entry.slug == slug for own in others if own is not None for entry in own.entries
    )


def _folder(named: str) -> Path:
    path = Path(named).absolute()
    if path.name == DRIVER_FILE:
        path = path.parent
    if not (path / DRIVER_FILE).is_file():
        raise BadUsage(
            "usage", f"there is no {DRIVER_FILE} in {path}", hint="name a driver's folder, or a .md file of one"
        )
    return path


def _one_file(path: Path) -> Iterable[Found]:
    data = _bytes(path)
    return (read_contract if path.name == TOOL_FILE else read_secrets)(data, str(path)).problems


def _older(path: Path) -> Driver:
    folder = path if path.is_dir() else path.parent
    file = folder / DRIVER_FILE if path.is_dir() else path
    beside = folder / SERVER_JSON
    server_json = _bytes(beside) if beside.is_file() else None
    driver = read_driver(_bytes(file), str(file), server_json=server_json).value
    if driver is None:
        raise Refused("older_invalid", f"{file} is no driver to compare with", hint=f"interlock check {path} says why")
    return driver


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path)[0]
    except FolderUnreadable as fault:
        raise Refused("file_unreadable", f"{path}: {fault}") from None


def _result(drivers: int, problems: Iterable[Found]) -> Checked:
    found = {severity: tuple(_as_shown(problems, severity)) for severity in ("error", "warning", "note")}
    return Checked(drivers=drivers, errors=found["error"], warnings=found["warning"], notes=found["note"])


def _as_shown(problems: Iterable[Found], severity: str) -> Iterator[Problem]:
    here = Path.cwd()
    for each in problems:
        if each.severity == severity:
            path = Path(each.file)
            yield Problem(
                file=str(path.relative_to(here)) if path.is_relative_to(here) else each.file,
                line=each.line,
                key=each.field or None,
                message=f"{each.field}: {each.message}" if each.field else each.message,
                hint=each.hint,
                code=each.code,
            )
