"""The survey: turns folders and what the store holds of them into drivers, each with what bars its use. Blocking.

Contracts are read before drivers, drivers before anything is bound (AIP-30.load-1). A driver that cannot be used says
so of itself and disturbs no other; what has not been accepted yet cannot keep what was accepted from working. Whatever
did not change since the last time is not read again.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.approvals.protocol.digests import folder_digest
from interlock.config.plan import Plan
from interlock.drivers.interfaces import DriverState
from interlock.drivers.kinds import kind_of
from interlock.drivers.kinds.kind import DeclaredPath
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE, escapes, read_driver, runner_faults
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.inventory import (
    SECRETS_FILE,
    default_slug,
    entry_text,
    merge_inventories,
    read_secrets,
    secret_for,
)
from interlock.drivers.protocol.files.plaintext import USER_CONTEXT
from interlock.drivers.protocol.files.server_block import SERVER_JSON
from interlock.drivers.protocol.identity import UNMET, HostMachine, successor_problems, unmet, unverified_tags
from interlock.drivers.protocol.model import Contract, Driver, NetworkAccess, SecretEntry, SecretInventory
from interlock.drivers.protocol.problems import FileProblem, ParsedFile
from interlock.drivers.protocol.secret_use import (
    UNDECLARED,
    UNGRANTED,
    USER,
    is_for_users_alone,
    lines_to_describe,
    lines_to_grant,
    maybe_granted_by,
)
from interlock.drivers.workspace.contract_lookup import CONFLICT, ContractLookup
from interlock.drivers.workspace.declaration import Declaration, Declared, Parsed, Remembered, same
from interlock.drivers.workspace.folder import Folder, FolderUnreadable, read_file, read_folder
from interlock.drivers.workspace.scan import TOOLS, FoundFolder, ScanResult, Stat, inside
from interlock.process.sandbox.sandbox import link_roots

# The secrets that a driver names and would not be given, whatever the store holds; judged by inventories alone.


class UngrantedSecret(msgspec.Struct, frozen=True, kw_only=True):
    slug: str
    problem: FileProblem


def ungranted_secrets(declared: Declared) -> Iterator[UngrantedSecret]:
    """Yield the secrets that no inventory describes for the driver or grants it.

    The inventory must have been looked up. The server is not started while there is such a secret.
    """
    driver = declared.driver
    for name in driver.secret_names if driver is not None else ():
        assert driver is not None  # noqa: S101  (without one there are no names)
        entry = declared.secrets.get(name)
        if entry is None:
            slug = default_slug(name)
            message = f"no inventory describes the secret {name}, and the node does not start the server until one does"
            hint = lines_to_describe(driver, name, slug)
            yield UngrantedSecret(slug=slug, problem=_problem(driver, UNDECLARED, message, hint))
        elif not _is_granted(declared, driver, entry):
            message = f"no inventory grants the driver the secret {entry.slug}, and the node does not start the server"
            is_beside = declared.own_secrets is not None and entry in declared.own_secrets.entries
            hint = lines_to_grant(driver, is_beside=is_beside, has_access=entry.access is not None)
            yield UngrantedSecret(slug=entry.slug, problem=_problem(driver, UNGRANTED, message, hint))


def _is_granted(declared: Declared, driver: Driver, entry: SecretEntry) -> bool:
    if entry.access is not None and any(grant.kind == USER for grant in entry.access.bind):
        return True  # to somebody's own process, at the least
    contracts = [contract.id for contract in declared.contracts.values()]
    return maybe_granted_by(entry, driver, contracts, is_own=entry.slug in declared.bound_secrets) is not None


def _problem(driver: Driver, code: str, message: str, hint: str) -> FileProblem:
    # Of the node's registry a warning: the driver is listed, and waits as one that lacks a credential.
    return driver.places.problem("/server", code, message, hint, severity="warning")


# Facts about this machine, in the words of AIP-30 `requires`.

_OS: Final = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
_ARCH: Final = {
    "x86_64": "x64",
    "amd64": "x64",
    "aarch64": "arm64",
    "arm64": "arm64",
    "i386": "x86",
    "i686": "x86",
    "armv7l": "arm",
    "armv6l": "arm",
}
_MB: Final = 1024 * 1024


def this_machine(packages: Path) -> HostMachine:
    """Return the facts of this machine. `packages`: the folder where servers are installed."""
    return HostMachine(
        os=_OS.get(sys.platform),
        arch=_ARCH.get(platform.machine().lower()),
        disk_mb=_disk_mb(packages),
        memory_mb=_memory_mb(),
    )


def _disk_mb(path: Path) -> float | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free / _MB
    except OSError:
        return None


def _memory_mb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _MB
    except (AttributeError, ValueError, OSError):
        return None


_SEVERITY = {"error": 0, "warning": 1, "note": 2}


class Surveyor:
    def __init__(self, plan: Plan, machine: HostMachine) -> None:
        self._plan = plan
        self._machine = machine
        self._roots = link_roots(plan)
        self._library = ContractLookup(plan.workspace)
        self._parsed: dict[Path, tuple[bytes | None, Parsed]] = {}
        self._inventories: dict[Path, tuple[Stat | None, ParsedFile[SecretInventory]]] = {}

    def survey(self, sight: ScanResult, remembered: Remembered) -> Declaration:
        parsed = [self._folder(folder) for folder in sight.folders]
        self._parsed = {each.path: self._parsed[each.path] for each in parsed}
        self._library.take(sight.contracts)
        shared, problems = self._workspace_inventories(sight)
        drivers = [self._declaration(each, parsed, remembered) for each in _alone(parsed)]
        drivers = _agree_on_contracts(drivers, self._plan.workspace)
        drivers, inventory, more = _merge_inventories(drivers, shared)
        drivers = [_with_trust(each, remembered, self._plan) for each in drivers]
        return Declaration(
            drivers=tuple(sorted(drivers, key=lambda each: (each.key, str(each.folder)))),
            secrets=inventory,
            problems=(*sight.problems, *problems, *more),
            others=tuple(self._library.asked),
        )

    def _folder(self, folder: FoundFolder) -> Parsed:
        before = self._parsed.get(folder.path)
        if before is not None and before[0] == folder.mark and folder.mark is not None:
            return before[1]
        parsed = parse(folder, read_folder(folder), self._plan)
        self._parsed[folder.path] = (folder.mark, parsed)
        return parsed

    def _workspace_inventories(self, sight: ScanResult) -> tuple[list[SecretInventory], list[FileProblem]]:
        """Return the inventories of the workspace itself, and their problems."""
        read: dict[Path, tuple[Stat | None, ParsedFile[SecretInventory]]] = {}
        for path, seen in sight.inventories:
            before = self._inventories.get(path)
            if before is not None and before[0] == seen and seen is not None:
                read[path] = before
                continue
            try:
                read[path] = (seen, read_secrets(read_file(path)[0], str(path)))
            except FolderUnreadable as fault:
                problem = FileProblem(
                    file=str(path), code="file_unreadable", message=str(fault), hint="mend or remove it"
                )
                read[path] = (seen, ParsedFile(problems=(problem,)))
        self._inventories = read
        readings = [reading for _, reading in read.values()]
        return (
            [reading.value for reading in readings if reading.value is not None],
            [problem for reading in readings for problem in reading.problems],
        )

    def _declaration(self, parsed: Parsed, everything: Sequence[Parsed], remembered: Remembered) -> Declared:
        driver = parsed.reading.value
        problems = [*parsed.problems, *parsed.reading.problems]
        declared = Declared(
            key=driver.key if driver is not None else str(parsed.path),
            root=parsed.root,
            folder=parsed.path,
            state=None,
            files=parsed.digests,
        )
        if driver is None:
            return _check_declaration(declared, problems, remembered, self._plan)
        bindings = self._library.bind(driver, parsed, everything)
        problems += (*bindings.problems, *self._around(driver, parsed), *unverified_tags(driver))
        problems += unmet(driver, self._machine)
        problems += self._history(driver, remembered)
        hosts = remembered.allowed.get(driver.id, ())
        opened = tuple(kind_of(driver.server).declared_paths(driver, parsed.path))
        if self._plan.drivers.sandbox.get(driver.id) != "off":
            problems += self._escapes(driver, opened)
        declared = msgspec.structs.replace(
            declared,
            driver=_with_allowed_hosts(self._with_runner(driver, parsed), hosts),
            contracts=bindings.contracts,
            own_secrets=parsed.secrets.value if parsed.secrets is not None else None,
            files={**parsed.digests, **bindings.outside, **self._runner_outside(driver, parsed)},
            real_paths={each.path: each.real for each in opened},
            resolved={
                f"links://{each.path}": str(each.real)
                for each in opened
                if each.real != self._roots.plain_path(each.path)
            },
        )
        return _check_declaration(declared, problems, remembered, self._plan)

    def _escapes(self, driver: Driver, opened: Sequence[DeclaredPath]) -> Iterator[FileProblem]:
        """Yield a problem for each declared path that is a link out of its root."""
        for each in opened:
            if each.use != "deny" and not each.is_implied and self._roots.leaves(each.path):
                message = f"{each.path} is a link to {each.real}"
                hint = "write that path itself if it is meant"
                yield driver.places.problem(each.place, "path_escape", message, hint)

    def _around(self, driver: Driver, parsed: Parsed) -> Iterator[FileProblem]:
        """Yield problems with the files that the driver names besides contracts."""
        auth = driver.auth
        if auth is not None and auth.ref is not None and not escapes(auth.ref):
            path = Path(os.path.normpath(parsed.path / auth.ref))
            if path != parsed.path / SECRETS_FILE or parsed.secrets is None:
                message = f"there is no inventory {path}"
                hint = f"write {SECRETS_FILE} beside {DRIVER_FILE}"
                yield driver.places.problem("/auth/ref", "secrets_ref_missing", message, hint)
        if isinstance(driver.runner, str) and not escapes(driver.runner):
            yield from self._name_problems(driver, parsed, "/runner", driver.runner, "runner_missing")
            for _, message, hint in runner_faults(self._runner(driver.runner, parsed)):
                yield driver.places.problem("/runner", "schema_invalid", f"{driver.runner}: {message}", hint)
        for index, prompt in enumerate(driver.prompts):
            if prompt.skill_ref and not escapes(prompt.skill_ref):
                place = f"/prompts/{index}/skill_ref"
                yield from self._name_problems(driver, parsed, place, prompt.skill_ref, "skill_ref_invalid")
        program = driver.server.relative_program
        if program is not None:
            path = parsed.path / program
            if not self._is_near(path, parsed):
                hint = "write an absolute path, or one inside the workspace"
                yield driver.places.problem("/server/path", "path_escape", "the program is outside", hint)

    def _name_problems(
        self, driver: Driver, parsed: Parsed, place: str, written: str, code: str
    ) -> Iterator[FileProblem]:
        looked = [parsed.path / written, self._plan.workspace / written]
        near = [path for path in looked if self._is_near(path, parsed)]
        if not any(path.is_file() for path in near):
            message = f"there is no file {' or '.join(os.path.normpath(path) for path in looked)}"
            yield driver.places.problem(place, code, message, "write it, or correct the path")

    def _with_runner(self, driver: Driver, parsed: Parsed) -> Driver:
        """Return the driver with the content of its RUNNER.md in place of the file's name."""
        if not isinstance(driver.runner, str):
            return driver
        return msgspec.structs.replace(driver, runner=self._runner(driver.runner, parsed))

    def _runner(self, written: str, parsed: Parsed) -> dict[str, Any]:
        """AIP-17: the block that a RUNNER.md holds."""
        path = self._runner_file(written, parsed)
        try:
            read = None if path is None else read_frontmatter(read_file(path)[0], str(path)).value
        except FolderUnreadable:
            return {}
        return {} if read is None else read.data

    def _runner_file(self, written: str, parsed: Parsed) -> Path | None:
        for path in (parsed.path / written, self._plan.workspace / written):
            if self._is_near(path, parsed) and path.is_file():
                return Path(os.path.realpath(path))
        return None

    def _runner_outside(self, driver: Driver, parsed: Parsed) -> dict[str, str]:
        """Return the digest of a RUNNER.md outside the folder; it sets limits, so trust covers it."""
        path = self._runner_file(driver.runner, parsed) if isinstance(driver.runner, str) else None
        if path is None or path.is_relative_to(os.path.realpath(parsed.path)):
            return {}
        self._library.asked.add(path)
        try:
            return {str(path): read_file(path)[1]}
        except FolderUnreadable:
            return {}

    def _is_near(self, path: Path, parsed: Parsed) -> bool:
        return inside(path, self._plan.workspace) or inside(path, parsed.root.path)

    def _history(self, driver: Driver, remembered: Remembered) -> tuple[FileProblem, ...]:
        """AIP-identity-4: compared with what was last registered under the same id and major."""
        return successor_problems(remembered.manifests.get(driver.key), driver, dev=self._plan.drivers.dev)


def parse(location: FoundFolder, folder: Folder, plan: Plan) -> Parsed:
    text = folder.texts.get(DRIVER_FILE, b"")
    server_json = folder.texts.get(SERVER_JSON)
    reading: ParsedFile[Driver] = ParsedFile()
    if not folder.problems:
        hosts = frozenset(host.strip("[]").lower() for host in plan.drivers.insecure_hosts)
        reading = read_driver(
            text,
            str(location.path / DRIVER_FILE),
            folder=location.path.name,
            beside=folder.digests.keys(),
            server_json=server_json,
            insecure_hosts=hosts,
        )
    contracts = {
        name: read_contract(data, str(location.path / name))
        for name, data in folder.texts.items()
        if name.rpartition("/")[2] == TOOL_FILE
    }
    secrets = None
    if SECRETS_FILE in folder.texts:
        secrets = read_secrets(folder.texts[SECRETS_FILE], str(location.path / SECRETS_FILE))
    return Parsed(
        root=location.root,
        path=location.path,
        reading=reading,
        contracts=contracts,
        secrets=secrets,
        digests=folder.digests,
        problems=(*folder.problems, *(secrets.problems if secrets is not None else ())),
    )


def _alone(parsed: Sequence[Parsed]) -> Iterator[Parsed]:
    """Yield each driver once (AIP-file-1).

    If two roots have the same driver, the earlier root is used. If one root has it twice, both are refused.
    """
    by_key: dict[str, list[Parsed]] = {}
    for candidate in parsed:
        driver = candidate.reading.value
        if driver is None:
            yield candidate
        else:
            by_key.setdefault(driver.key, []).append(candidate)
    for key, all_of_it in by_key.items():
        rank = min(candidate.root.rank for candidate in all_of_it)
        first = [candidate for candidate in all_of_it if candidate.root.rank == rank]
        if len(first) > 1:  # AIP-file-1
            files = " and ".join(sorted(candidate.file for candidate in first))
            for candidate in first:
                yield _with(
                    candidate, "/id", "duplicate_id", f"{key} is in {files}", "give one of them another id", "error"
                )
            continue
        hidden = sorted(candidate.file for candidate in all_of_it if candidate.root.rank != rank)
        if hidden:  # AIP-file-1
            message = f"{first[0].file} is used, and {' and '.join(hidden)} with the same id and major version is not"
            yield _with(first[0], "/id", "driver_shadowed", message, "remove one of them", "warning")
        else:
            yield first[0]


def _with(parsed: Parsed, place: str, code: str, message: str, hint: str, severity: str) -> Parsed:
    driver = parsed.reading.value
    assert driver is not None  # noqa: S101  (only drivers that were read are compared)
    problem = driver.places.problem(place, code, message, hint)
    problem = msgspec.structs.replace(problem, severity=severity)
    return msgspec.structs.replace(parsed, problems=(*parsed.problems, problem))


def _with_allowed_hosts(driver: Driver, hosts: tuple[str, ...]) -> Driver:
    """Return the driver with the additional hosts that an operator allowed (`interlock drivers allow`)."""
    if not hosts:
        return driver
    network = driver.network or NetworkAccess()
    egress = tuple(dict.fromkeys((*network.egress, *hosts)))
    return msgspec.structs.replace(driver, network=msgspec.structs.replace(network, egress=egress))


def _check_declaration(
    declared: Declared, problems: Sequence[FileProblem], remembered: Remembered, plan: Plan
) -> Declared:
    """Set the first state of a driver.

    At this point `trusted` is about its files only, which decide whether its inventory counts for other drivers.
    """
    trusted = remembered.trusts_files(declared.folder, declared.files) or _is_trusted_by_plan(declared, plan)
    return _with_state(msgspec.structs.replace(declared, trusted=trusted), problems)


def _with_trust(declared: Declared, remembered: Remembered, plan: Plan) -> Declared:
    """Return the driver with the digest of everything that trust covers, and whether exactly this was accepted."""
    digest = folder_digest(declared.covered)
    trusted = remembered.trusts(declared.folder, digest) or _is_trusted_by_plan(declared, plan)
    return msgspec.structs.replace(declared, digest=digest, trusted=trusted)


def _is_trusted_by_plan(declared: Declared, plan: Plan) -> bool:
    return plan.drivers.trust_workspace and declared.root.kind == "workspace"


def _with_state(declared: Declared, problems: Sequence[FileProblem]) -> Declared:
    ordered = tuple(sorted(dict.fromkeys(problems), key=lambda each: _SEVERITY[each.severity]))
    codes = {each.code for each in ordered if each.severity == "error"}
    if not codes:
        state = None
    elif codes == {"kind_unsupported"}:
        state = DriverState.KIND_UNSUPPORTED
    elif codes == {UNMET}:
        state = DriverState.UNAVAILABLE
    else:
        state = DriverState.REJECTED
    return msgspec.structs.replace(declared, problems=ordered, state=state)


def _agree_on_contracts(drivers: Sequence[Declared], workspace: Path) -> list[Declared]:
    """Choose one text per contract, and refuse drivers that bring a different text.

    The text below .tools wins, then the text of a trusted driver.
    """
    texts: dict[str, list[tuple[int, Contract]]] = {}
    for each in drivers:
        for contract in each.contracts.values() if each.is_fit else ():
            rank = 2 if not each.trusted else (0 if _is_below_tools(contract, workspace) else 1)
            texts.setdefault(contract.id, []).append((rank, contract))
    settled: dict[str, Contract | None] = {}
    for name, candidates in texts.items():
        best = [contract for rank, contract in candidates if rank == min(rank for rank, _ in candidates)]
        settled[name] = best[0] if all(same(best[0], each) for each in best) else None
    return [_agree_on_contract(each, settled) for each in drivers]


def _agree_on_contract(declared: Declared, settled: Mapping[str, Contract | None]) -> Declared:
    problems: list[FileProblem] = []
    for index, contract in declared.contracts.items() if declared.is_fit else ():
        used = settled[contract.id]
        if (used is None or not same(used, contract)) and declared.driver is not None:
            where = "other drivers bring another" if used is None else f"{used.places.file} is used"
            problems.append(
                declared.driver.places.problem(
                    f"/implements/{index}/tool",
                    CONFLICT,
                    f"{contract.places.file} describes {contract.id} differently: {where}",
                    "keep one text of it, best below .tools",
                )
            )
    return _with_state(declared, (*declared.problems, *problems)) if problems else declared


def _is_below_tools(contract: Contract, workspace: Path) -> bool:
    return Path(contract.places.file).is_relative_to(workspace / TOOLS)


def _merge_inventories(
    drivers: Sequence[Declared], shared: Sequence[SecretInventory]
) -> tuple[list[Declared], tuple[SecretEntry, ...], tuple[FileProblem, ...]]:
    """Merge all inventories into one (AIP-19.file-3).

    The inventory of a driver that is not trusted cannot take a slug from an accepted one.
    """
    counted = [
        *shared,
        *(declared.own_secrets for declared in drivers if declared.trusted and declared.own_secrets is not None),
    ]
    inventory, problems = merge_inventories(counted)
    files = {problem.file for problem in problems}
    messages = {problem.message for problem in problems}
    merged: list[Declared] = []
    for declared in drivers:
        own = declared.own_secrets
        clashes: tuple[FileProblem, ...] = ()
        if own is not None and declared.trusted:
            clashes = tuple(each for each in problems if own.places.file in each.message)
        elif own is not None:
            clashes = tuple(each for each in merge_inventories((*counted, own))[1] if each.message not in messages)
        declared = _with_secrets(declared, inventory)
        merged.append(_with_state(declared, (*declared.problems, *clashes)) if clashes else declared)
    owned = {declared.own_secrets.places.file for declared in merged if declared.own_secrets is not None}
    return merged, inventory, tuple(each for each in problems if each.file in files - owned)


def _with_secrets(declared: Declared, inventory: tuple[SecretEntry, ...]) -> Declared:
    driver = declared.driver
    if driver is None:
        return declared
    wanted = dict.fromkeys((*driver.secret_names, *(driver.auth.state.env if driver.auth is not None else ())))
    secrets = {name: secret_for(name, driver.id, declared.own_secrets, inventory) for name in wanted}
    described = {name: secret for name, secret in secrets.items() if secret is not None}
    own = declared.own_secrets.entries if declared.own_secrets is not None else ()
    elsewhere = {f"secrets://{name}": entry_text(secret) for name, secret in described.items() if secret not in own}
    declared = msgspec.structs.replace(declared, secrets=described, resolved={**declared.resolved, **elsewhere})
    problems = [*declared.problems, *(each.problem for each in ungranted_secrets(declared))]
    for name in wanted:
        if secrets[name] is None and name not in driver.secret_names:
            message = f"no inventory describes the secret {name}"
            hint = f"add it to {SECRETS_FILE} beside {DRIVER_FILE}"
            problems.append(driver.places.problem("/auth/state/env", UNDECLARED, message, hint, severity="warning"))
    problems += (_of_users(driver, name) for name in driver.secret_names if _is_misplaced(driver, described.get(name)))
    return _with_state(declared, problems)


def _is_misplaced(driver: Driver, secret: SecretEntry | None) -> bool:
    """Check whether a user's own secret would reach every user (AIP-security-8)."""
    return secret is not None and driver.interlock.isolation == "driver" and is_for_users_alone(secret)


def _of_users(driver: Driver, name: str) -> FileProblem:
    return driver.places.problem(
        "/server",
        USER_CONTEXT,
        f"the secret {name} is for single users, and all callers share the server",
        "write metadata.interlock.isolation: user, or let the driver have it with access.bind: [{tool: its id}]",
    )
