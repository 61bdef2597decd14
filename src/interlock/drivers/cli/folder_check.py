"""Check of driver files for `interlock check`: all drivers of the workspace, or one file or folder.

The check installs and starts nothing and uses no network. From the data folder it reads only the registry of names. It
ignores the registered versions of a driver; only --against compares with an older version.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from interlock.cli.client.offline import read_entries
from interlock.cli.terminal.errors import BadUsage
from interlock.config.plan import Plan
from interlock.config.problems import Problem
from interlock.drivers.protocol.binding.effects import qualified_name
from interlock.drivers.protocol.binding.results import PARSE_HINT, needs_parsing
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE, check_published, read_driver
from interlock.drivers.protocol.files.inventory import SECRETS_FILE, read_secrets
from interlock.drivers.protocol.files.server_block import SERVER_JSON
from interlock.drivers.protocol.identity import changes_of_identity, manifest_of
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import FileProblem as Found
from interlock.drivers.protocol.result_path import ResultPath, read_path
from interlock.drivers.workspace.declaration import Declaration, Declared, Remembered
from interlock.drivers.workspace.folder import FolderUnreadable, read_file
from interlock.drivers.workspace.scan import FoundFolder as Folder
from interlock.drivers.workspace.scan import Root, mark_of, scan_workspace
from interlock.drivers.workspace.survey import Surveyor, UngrantedSecret, this_machine, ungranted_secrets
from interlock.names.protocol.entry import RegistryEntry
from interlock.wire.jsontext.canonical import quoted
from interlock.wire.refusal import Refused


class CheckedFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check: the number of drivers, and their problems."""

    drivers: int
    errors: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def check_drivers(plan: Plan, named: str | None, *, against: str | None, upstream: bool) -> CheckedFolders:
    """Check the drivers of the workspace and return their problems.

    If `named` is set, check only this folder or file. `against` is an older version of the same driver to compare with.
    With `upstream`, also warn about what a host without Interlock's extensions would refuse.
    """
    if named is not None and Path(named).name in (TOOL_FILE, SECRETS_FILE):
        return _report(0, _check_file(Path(named).absolute()))
    path = Path(named).absolute() if named is not None else None
    only = path.parent if path is not None and path.name == DRIVER_FILE else path
    if only is not None and not (only / DRIVER_FILE).is_file():
        hint = "name a driver's folder, or a .md file of one"
        raise BadUsage("usage", f"there is no {DRIVER_FILE} in {only}", hint=hint)
    sight = scan_workspace(plan)
    if only is not None and only not in {folder.path for folder in sight.folders}:
        root = Root(kind="configured", rank=len(plan.drivers.paths) + 2, path=only.parent)
        folder = Folder(root=root, path=only, mark=mark_of(only))
        sight = msgspec.structs.replace(sight, folders=(*sight.folders, folder))
    declaration = Surveyor(plan, this_machine(plan.data)).survey(sight, Remembered())
    drivers = [declared for declared in declaration.drivers if only is None or declared.folder == only]
    # The node only waits for a missing grant, but in a check a server that would never start is a mistake in its files.
    fatal = {each.problem for declared in drivers for each in _find_ungranted(declared, declaration)}
    reported = [problem for declared in drivers for problem in declared.problems]
    problems = [msgspec.structs.replace(each, severity="error") if each in fatal else each for each in reported]
    problems += declaration.problems if only is None else ()
    files = [declared.folder / file for declared in drivers for file in declared.files]
    contracts = dict.fromkeys(file for file in files if file.name.endswith(TOOL_FILE))
    contracts |= dict.fromkeys(path for path, _ in sight.contracts) if only is None else {}
    for path in contracts:  # also those that no driver binds
        problems += _check_file(path)
    entries = read_entries(plan, plan.data) if drivers else {}
    for declared in drivers:
        problems += _deprecated_names(declared, entries)
        problems += _unread_texts(declared)
        if upstream:
            problems += _refused_elsewhere(declared, problems)
        if against is not None and declared.driver is not None:
            problems += changes_of_identity(manifest_of(_read_older(Path(against))), declared.driver)
    return _report(len(drivers), dict.fromkeys(problems))


def ungranted_problems(plan: Plan, slug: str) -> tuple[Problem, ...]:
    """Return one problem for each driver that names the stored secret `slug` but is not granted it."""
    declaration = Surveyor(plan, this_machine(plan.data)).survey(scan_workspace(plan), Remembered())
    ungranted = [
        (declared, each) for declared in declaration.drivers for each in _find_ungranted(declared, declaration)
    ]
    problems = (each.problem for declared, each in ungranted if slug in (each.slug, f"{declared.id}/{each.slug}"))
    return tuple(_as_shown(problems, "warning"))


def _deprecated_names(declared: Declared, entries: Mapping[str, RegistryEntry]) -> Iterator[Found]:
    """Yield a warning for each tool with a name that the names registry marks as deprecated. Both the server's name of
    the tool and the name that clients see are checked (REG-7.3-2).
    """
    for binding in declared.driver.implements if declared.driver is not None else ():
        contract = declared.contracts.get(binding.index)
        listed = qualified_name(contract) if contract is not None else None
        names = (binding.tool_name, *(() if listed is None or isinstance(listed, Found) else listed[1:]))
        for entry in filter(None, map(entries.get, dict.fromkeys(names))):
            if declared.driver is not None and entry.deprecation is not None:  # REG-7.3-2
                hint = f"offer {entry.successor}" if entry.successor else "offer a tool of another name"
                places, message = declared.driver.places, entry.deprecation
                yield places.problem(binding.pointer, "deprecated", message, hint, severity="warning")


def _unread_texts(declared: Declared) -> Iterator[Found]:
    """Yield a note for each binding whose contract returns an array and that could not read it from a text. A server
    that answers with text would make the driver rejected when it is started (AIP-tools-6).
    """
    if declared.driver is None:
        return
    for binding in declared.driver.implements:
        contract, path = declared.contracts.get(binding.index), read_path(binding.result_extract)
        if contract is None or not isinstance(path, ResultPath) or not needs_parsing(binding, path, contract):
            continue
        message = (
            f"the outputs of {contract.id} are an array: if {quoted(binding.tool_name)} answers with text, it does not"
            " fit, and the driver is rejected when its server is started"
        )
        hint = f"if it answers with text, {PARSE_HINT}; otherwise there is nothing to do"
        pointer = f"{binding.pointer}/metadata/mcp/result_extract"
        yield declared.driver.places.problem(pointer, "text_unread", message, hint, severity="note")


def _refused_elsewhere(declared: Declared, problems: list[Found]) -> Iterator[Found]:
    """Yield a warning for each member of DRIVER.md that only Interlock knows. Other hosts check the file with the
    published schemas and refuse such members.

    `problems` were reported already and stay errors, so they are not repeated as warnings.
    """
    fields = {each.field for each in problems if each.file == str(declared.folder / DRIVER_FILE)}
    for each in check_published(_bytes(declared.folder / DRIVER_FILE), str(declared.folder / DRIVER_FILE)):
        if each.field in fields:
            yield each
        else:
            command = f"interlock export driver {declared.segment} --upstream"
            hint = f"it is an extension of Interlock: {command} writes it without"
            message = f"other hosts refuse this: {each.message}"
            yield msgspec.structs.replace(each, severity="warning", message=message, hint=hint)


def _find_ungranted(declared: Declared, declaration: Declaration) -> Iterator[UngrantedSecret]:
    """Return the secrets that a driver names although no secrets inventory lets the driver use them.

    A secret that is described only in another driver's inventory is skipped. That inventory takes effect when the other
    driver is trusted, which cannot be determined from files.
    """
    own = {entry.slug for entry in declared.secrets.values()}
    elsewhere = (each.own_secrets for each in declaration.drivers if each.folder != declared.folder)
    others = {entry.slug for inventory in elsewhere if inventory is not None for entry in inventory.entries}
    return (each for each in ungranted_secrets(declared) if each.slug in own or each.slug not in others)


def _check_file(path: Path) -> Iterable[Found]:
    data = _bytes(path)
    return (read_contract if path.name == TOOL_FILE else read_secrets)(data, str(path)).problems


def _read_older(path: Path) -> Driver:
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


def _report(drivers: int, problems: Iterable[Found]) -> CheckedFolders:
    errors, warnings, notes = (tuple(_as_shown(problems, severity)) for severity in ("error", "warning", "note"))
    return CheckedFolders(drivers=drivers, errors=errors, warnings=warnings, notes=notes)


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
