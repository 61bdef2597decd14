"""The survey: turns driver folders and the records about them into drivers, each with what prevents its use. It blocks.

`Surveyor.survey` receives the result of a scan and works in this order (AIP-30.load-1):

1. Read every folder that changed: DRIVER.md, and the contracts and the inventory in the folder (`ParsedFolder`).
2. Read the contracts below .tools and the inventories of the workspace, if they changed.
3. Drop drivers that an earlier root hides, and refuse drivers that are there twice (AIP-file-1).
4. Bind each driver to its contracts, and check the files and the machine that it needs (`Declared`).
5. Compare the drivers: each contract has one text, and all secrets are in one inventory (AIP-19.file-3).
6. Calculate the digest of everything that a person's trust covers, and compare it with the accepted one.

A driver that cannot be used has the reasons among its problems and does not affect other drivers. A folder that is not
accepted yet cannot make an accepted driver unusable: in step 5 trusted drivers come first. Files that did not
change since the last survey are not read again.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from interlock.approvals.protocol.digests import folder_digest
from interlock.config.plan import Plan
from interlock.drivers.driver_state import DriverState
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol import identity
from interlock.drivers.protocol.binding.effects import qualified_name
from interlock.drivers.protocol.binding.match import UNAVAILABLE, check_binding, contract_misfits
from interlock.drivers.protocol.files import inventory
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE, ENTRY, escapes, read_driver, runner_faults
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.plaintext import USER_CONTEXT
from interlock.drivers.protocol.files.server_block import SERVER_JSON
from interlock.drivers.protocol.model import Contract, Driver, NetworkAccess, SecretEntry, SecretInventory, ToolBinding
from interlock.drivers.protocol.problems import FileProblem, ParsedFile, Places
from interlock.drivers.workspace.declaration import (
    Declaration,
    Declared,
    ParsedFolder,
    Remembered,
    configured_segments,
)
from interlock.drivers.workspace.folder import FolderUnreadable, read_file, read_folder
from interlock.drivers.workspace.scan import SECRETS_FILE, TOOLS, FoundFolder, ScanResult, Stat, find_status, inside
from interlock.process.sandbox.sandbox import link_roots
from interlock.wire.jsontext.canonical import quoted

CONFLICT: Final = "contract_conflict"

Mark = TypeVar("Mark")
Value = TypeVar("Value")

_SEVERITY: Final = {"error": 0, "warning": 1, "note": 2}
_NOWHERE: Final = Places(file="")
# The state that follows from the codes of all errors, if it is not REJECTED.
_STATES: Final[Mapping[frozenset[str], DriverState | None]] = {
    frozenset(): None,
    frozenset({"kind_unsupported"}): DriverState.KIND_UNSUPPORTED,
    frozenset({identity.UNMET}): DriverState.UNAVAILABLE,
}

# This machine in the words of AIP-30 `requires`.
_OS: Final = {"linux": "linux", "darwin": "darwin", "win32": "windows"}
_ARCH: Final = {
    **{"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"},
    **{"i386": "x86", "i686": "x86", "armv7l": "arm", "armv6l": "arm"},
}
_MB: Final = 1024 * 1024


def this_machine(packages: Path) -> identity.HostMachine:
    """Return the properties of this machine. `packages` is the folder in which servers are installed."""
    while not packages.exists() and packages != packages.parent:
        packages = packages.parent
    disk_mb = memory_mb = None
    with suppress(OSError):
        disk_mb = shutil.disk_usage(packages).free / _MB
    with suppress(AttributeError, ValueError, OSError):
        memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _MB
    arch = _ARCH.get(platform.machine().lower())
    return identity.HostMachine(os=_OS.get(sys.platform), arch=arch, disk_mb=disk_mb, memory_mb=memory_mb)


class UngrantedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that a driver names but may not use, even if a value is stored for it."""

    slug: str
    problem: FileProblem


def ungranted_secrets(declared: Declared) -> Iterator[UngrantedSecret]:
    """Yield the secrets that a driver names and cannot get, because no SECRETS.md describes them or lets the driver use
    them.

    The secrets of `declared` must have been looked up before. The server is not started while there is an ungranted
    secret. The problem is only a warning, because the driver itself is valid: it is listed and waits for a credential.
    """
    driver = declared.driver
    if driver is None:
        return
    contracts = [contract.id for contract in declared.contracts.values()]
    for name in driver.secret_names:
        entry = declared.secrets.get(name)
        if entry is None:
            slug, code = inventory.default_slug(name), inventory.UNDECLARED
            message = f"no inventory describes the secret {name}, and the node does not start the server until one does"
            hint = inventory.lines_to_describe(driver, name, slug)
        else:
            # A grant to a user is enough: it can hold for a process that only this user has.
            if entry.access is not None and any(grant.kind == inventory.USER for grant in entry.access.bind):
                continue
            is_own = entry.slug in declared.bound_secrets
            if inventory.find_grant(entry, driver, contracts, is_own=is_own) is not None:
                continue
            slug, code = entry.slug, inventory.UNGRANTED
            message = f"no inventory grants the driver the secret {slug}, and the node does not start the server"
            is_beside = declared.own_secrets is not None and entry in declared.own_secrets.entries
            hint = inventory.lines_to_grant(driver, is_beside=is_beside, has_access=entry.access is not None)
        yield UngrantedSecret(slug=slug, problem=driver.places.problem("/server", code, message, hint, "warning"))


class ReadCache(Generic[Mark, Value]):
    """Cache of the content of paths. Each entry has a mark, such as the status of a file. A path is read again only
    after its mark has changed.
    """

    def __init__(self) -> None:
        self._read: dict[Path, tuple[Mark | None, Value]] = {}

    def get(self, path: Path, mark: Mark | None, read: Callable[[], Value]) -> Value:
        """Return the content of a path. Call `read` for it if `mark` is None or differs from the mark of the cached
        content.
        """
        before = self._read.get(path)
        if before is None or mark is None or before[0] != mark:
            before = self._read[path] = (mark, read())
        return before[1]

    def forget_others(self, paths: Collection[Path]) -> None:
        """Forget everything that was read at other paths."""
        self._read = {path: value for path, value in self._read.items() if path in paths}


class Surveyor:
    """Reader of the driver files of one workspace. It remembers what it read, and later reads only files that have
    changed.
    """

    def __init__(self, plan: Plan, machine: identity.HostMachine) -> None:
        self._plan = plan
        self._machine = machine
        self._roots = link_roots(plan)
        self._taken = configured_segments(plan)
        self._lookup = ContractLookup(plan.workspace)
        self._parsed: ReadCache[bytes, ParsedFolder] = ReadCache()
        self._inventories: ReadCache[Stat, ParsedFile[SecretInventory]] = ReadCache()

    def survey(self, scan: ScanResult, remembered: Remembered) -> Declaration:
        """Return all drivers of the workspace, checked and with their contracts and secrets. `remembered` has the
        records of trust.
        """
        parsed = [self._parsed.get(each.path, each.mark, partial(self._read_folder, each)) for each in scan.folders]
        self._parsed.forget_others({each.path for each in parsed})
        self._lookup.refresh(scan.contracts)
        readings = [self._inventories.get(path, mark, partial(_read_secrets, path)) for path, mark in scan.inventories]
        self._inventories.forget_others({path for path, _ in scan.inventories})
        drivers = [self._declare(each, parsed, remembered) for each in _drop_repeated_drivers(parsed)]
        drivers = _agree_on_contracts(drivers, self._plan.workspace)
        shared = [reading.value for reading in readings if reading.value is not None]
        drivers, secrets, problems = _merge_inventories(drivers, shared)
        trusted = []
        for declared in drivers:
            digest = folder_digest(declared.covered)
            is_trusted = remembered.trusts(declared.folder, digest) or self._trusts_root(declared)
            trusted.append(msgspec.structs.replace(declared, digest=digest, trusted=is_trusted))
        return Declaration(
            drivers=tuple(sorted(trusted, key=lambda each: (each.key, str(each.folder)))),
            secrets=secrets,
            problems=(*scan.problems, *(each for reading in readings for each in reading.problems), *problems),
            others=tuple(self._lookup.searched),
        )

    def _trusts_root(self, declared: Declared) -> bool:
        return self._plan.drivers.trust_workspace and declared.root.kind == "workspace"

    def _read_folder(self, location: FoundFolder) -> ParsedFolder:
        """Parse the files of a driver folder."""
        path, folder = location.path, read_folder(location)
        texts = folder.texts
        reading: ParsedFile[Driver] = ParsedFile()
        if not folder.problems:
            reading = read_driver(
                texts.get(DRIVER_FILE, b""),
                str(path / DRIVER_FILE),
                folder=path.name,
                beside=folder.digests.keys(),
                server_json=texts.get(SERVER_JSON),
                insecure_hosts=frozenset(host.strip("[]").lower() for host in self._plan.drivers.insecure_hosts),
            )
        secrets = (
            inventory.read_secrets(texts[SECRETS_FILE], str(path / SECRETS_FILE)) if SECRETS_FILE in texts else None
        )
        tools = {name: text for name, text in texts.items() if name.rpartition("/")[2] == TOOL_FILE}
        return ParsedFolder(
            root=location.root,
            path=path,
            reading=reading,
            contracts={name: read_contract(text, str(path / name)) for name, text in tools.items()},
            secrets=secrets,
            digests=folder.digests,
            problems=(*folder.problems, *(secrets.problems if secrets is not None else ())),
        )

    def _declare(self, parsed: ParsedFolder, folders: Sequence[ParsedFolder], remembered: Remembered) -> Declared:
        """Find the contracts of a driver, and check everything about the driver that depends on other files, the
        configuration, this machine or its earlier versions.

        The `trusted` of the result only means that the files were accepted. It decides whether the inventory of the
        driver may be used for other drivers, and whether its contracts take precedence.
        """
        driver = parsed.reading.value
        problems = [*parsed.problems, *parsed.reading.problems]
        declared = Declared(
            key=driver.key if driver is not None else str(parsed.path),
            root=parsed.root,
            folder=parsed.path,
            state=None,
            files=parsed.digests,
        )
        if driver is not None:
            contracts, outside, binding_problems = self._lookup.bind(driver, parsed, folders)
            problems += binding_problems
            runner: Any = driver.runner
            if isinstance(runner, str):
                problems += self._check_named_file(driver, parsed, "/runner", runner, "runner_missing")
                # RUNNER.md sets limits, so trust covers it wherever it is.
                name, (runner, runner_digests) = runner, self._read_runner(runner, parsed)
                outside |= runner_digests
                problems += (
                    driver.places.problem("/runner", "schema_invalid", f"{name}: {message}", hint)
                    for _, message, hint in runner_faults(runner)
                )
            problems += self._check_surroundings(driver, parsed)
            problems += self._check_segments(driver, contracts.values())
            problems += (*identity.unverified_tags(driver), *identity.unmet_requirements(driver, self._machine))
            # AIP-identity-4: compared with what was last registered under the same id and major
            manifest = remembered.manifests.get(driver.key)
            problems += identity.successor_problems(manifest, driver, dev=self._plan.drivers.dev)
            opened = tuple(kind_of(driver.server).declared_paths(driver, parsed.path))
            if self._plan.drivers.sandbox.get(driver.id) != "off":
                for each in opened:
                    if each.use != "deny" and not each.is_implied and self._roots.leaves(each.path):
                        message, hint = f"{each.path} is a link to {each.real}", "write that path itself if it is meant"
                        problems.append(driver.places.problem(each.place, "path_escape", message, hint))
            network = driver.network
            if hosts := remembered.allowed.get(driver.id, ()):
                # Hosts that an operator allowed with `interlock drivers allow`.
                egress = dict.fromkeys((*(network.egress if network is not None else ()), *hosts))
                network = msgspec.structs.replace(network or NetworkAccess(), egress=tuple(egress))
            declared = msgspec.structs.replace(
                declared,
                driver=msgspec.structs.replace(driver, runner=runner, network=network),
                contracts=contracts,
                own_secrets=parsed.secrets.value if parsed.secrets is not None else None,
                files={**parsed.digests, **outside},
                real_paths={each.path: each.real for each in opened},
                resolved={
                    f"links://{each.path}": str(each.real)
                    for each in opened
                    if each.real != self._roots.plain_path(each.path)
                },
            )
        # The names that the accepted files resolve to (`secrets://NAME`, `links://PATH`) are not compared here.
        # Contracts outside the folder are compared, because their digests are among the files.
        record = remembered.trusted.get(str(declared.folder))
        accepted = {name: each for name, each in record.files.items() if "://" not in name} if record else None
        is_trusted = accepted == declared.files or self._trusts_root(declared)
        return _with_problems(msgspec.structs.replace(declared, trusted=is_trusted), problems)

    def _check_surroundings(self, driver: Driver, parsed: ParsedFolder) -> Iterator[FileProblem]:
        """Yield problems if files that the driver names are missing or outside the workspace: its secrets, skills or
        program.
        """
        auth = driver.auth
        if auth is not None and auth.ref is not None and not escapes(auth.ref):
            path = Path(os.path.normpath(parsed.path / auth.ref))
            if path != parsed.path / SECRETS_FILE or parsed.secrets is None:
                message = f"there is no inventory {path}"
                hint = f"write {SECRETS_FILE} beside {DRIVER_FILE}"
                yield driver.places.problem("/auth/ref", "secrets_ref_missing", message, hint)
        for index, prompt in enumerate(driver.prompts):
            if prompt.skill_ref and not escapes(prompt.skill_ref):
                pointer = f"/prompts/{index}/skill_ref"
                yield from self._check_named_file(driver, parsed, pointer, prompt.skill_ref, "skill_ref_invalid")
        program = driver.server.relative_program
        if program is not None and not self._is_near(parsed.path / program, parsed):
            hint = "write an absolute path, or one inside the workspace"
            yield driver.places.problem("/server/path", "path_escape", "the program is outside", hint)

    def _check_segments(self, driver: Driver, contracts: Iterable[Contract]) -> Iterator[FileProblem]:
        """Yield a problem for each segment that the driver needs for its tools and that the configuration already gives
        to a server, subserver or device.
        """
        wanted: dict[str, tuple[Places, str]] = {}
        if driver.exposes:
            wanted[driver.segment] = (driver.places, "/id")
        for contract in contracts:
            name = qualified_name(contract)
            if not isinstance(name, FileProblem):
                pointer = "/id" if contract.listed_as is None else "/metadata/interlock/name"
                wanted.setdefault(name[0], (contract.places, pointer))
        for segment, (places, pointer) in wanted.items():
            # AIP-tools-15: what the driver offers could not be listed, so the driver is never "ready".
            if (taken_by := self._taken.get(segment)) is not None:
                message = f"its tools would be listed under {segment}, which is {taken_by}; rename one of the two"
                hint = f"another id for the driver ({driver.id}), or another name for {taken_by}"
                yield places.problem(pointer, "name_collision", message, hint)

    def _check_named_file(
        self, driver: Driver, parsed: ParsedFolder, pointer: str, name: str, code: str
    ) -> Iterator[FileProblem]:
        if self._find_file(name, parsed) is None:
            paths = [os.path.normpath(folder / name) for folder in (parsed.path, self._plan.workspace)]
            message = f"there is no file {' or '.join(paths)}"
            yield driver.places.problem(pointer, code, message, "write it, or correct the path")

    def _find_file(self, name: str, parsed: ParsedFolder) -> Path | None:
        """Return a file that a driver names, from its folder or else from the workspace. Return None if there is
        none.
        """
        paths = (parsed.path / name, self._plan.workspace / name)
        return next((path for path in paths if self._is_near(path, parsed) and path.is_file()), None)

    def _is_near(self, path: Path, parsed: ParsedFolder) -> bool:
        return inside(path, self._plan.workspace) or inside(path, parsed.root.path)

    def _read_runner(self, name: str, parsed: ParsedFolder) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the content of the RUNNER.md that a driver names (AIP-17).

        Also return its path and digest if the file is outside the driver's folder, or an empty mapping if it is inside.
        """
        path = self._find_file(name, parsed)
        if path is None:
            return {}, {}
        path = Path(os.path.realpath(path))
        is_outside = not path.is_relative_to(os.path.realpath(parsed.path))
        if is_outside:
            self._lookup.searched.add(path)
        try:
            data, digest = read_file(path)
        except FolderUnreadable:
            return {}, {}
        front = read_frontmatter(data, str(path)).value
        return ({} if front is None else front.data), ({str(path): digest} if is_outside else {})


class ContractFile(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed TOOL.md. `digest` is set if the file is outside the folder of the driver that uses it."""

    path: Path
    reading: ParsedFile[Contract]
    digest: str | None = None


class ContractLookup:
    """Search for the TOOL.md to which an entry in a driver's implements[] refers.

    A path is searched for in the driver's folder, then in the workspace, then in .tools/<folder name>/. An id is
    searched for in the driver's folder, then below .tools, then in the folders of other drivers (AIP-30.implements-2).
    No file outside the workspace and the driver's root is read, even through a link. A file is read again only if it
    changed.
    """

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._readings: ReadCache[Stat, ContractFile] = ReadCache()
        self._below_tools: tuple[ContractFile, ...] = ()
        # Files that drivers name outside their folders, whether they exist or not. The next scan watches them.
        self.searched: set[Path] = set()

    def refresh(self, contracts: Sequence[tuple[Path, Stat | None]]) -> None:
        """Read the contracts below .tools, and forget files that are gone or not used any more."""
        self._readings.forget_others({path for path, _ in contracts} | self.searched)
        self.searched = set()
        files = (self._find_file(path) for path, _ in contracts if inside(path, self._workspace))
        self._below_tools = tuple(file for file in files if file is not None)

    def bind(
        self, driver: Driver, parsed: ParsedFolder, folders: Sequence[ParsedFolder]
    ) -> tuple[dict[int, Contract], dict[str, str], list[FileProblem]]:
        """Find and check the contract of each entry in a driver's implements[].

        Return the contracts by the index of the binding, the digests of bound files outside the driver's folder, and
        the problems.
        """
        contracts: dict[int, Contract] = {}
        outside: dict[str, str] = {}
        problems: list[FileProblem] = []
        # Which transforms a driver.py has is known when it is loaded.
        skipped = {"transform_missing"} if ENTRY in parsed.digests else set()
        others = [folder for folder in folders if folder is not parsed]
        for binding in driver.implements:
            if "/" in binding.tool or binding.tool.endswith(".md"):
                match = self._find_by_path(driver, binding, parsed)
            else:
                match = self._find_by_id(driver, binding, parsed, others)
            if isinstance(match, FileProblem):
                problems.append(match)
                continue
            if match.digest is not None:
                outside[str(match.path)] = match.digest
            problems += match.reading.problems
            if (contract := match.reading.value) is None:
                continue
            twin = next((index for index, bound in contracts.items() if bound.id == contract.id), None)
            if twin is not None:
                message = f"entries {twin} and {binding.index} bind the same contract"
                pointer = f"{binding.pointer}/tool"
                problems.append(driver.places.problem(pointer, "duplicate_binding", message, "keep one of the two"))
            problems += contract_misfits(driver, binding, contract)
            problems += (each for each in check_binding(driver, binding, contract) if each.code not in skipped)
            contracts[binding.index] = contract
        return contracts, outside, problems

    def _find_file(self, path: Path) -> ContractFile | None:
        """Return the contract in a file, or None if there is no such file. An unchanged file is not read again."""
        status = find_status(path)
        return None if status is None else self._readings.get(path, status, partial(_read_contract_file, path))

    def _find_by_id(
        self, driver: Driver, binding: ToolBinding, parsed: ParsedFolder, others: Sequence[ParsedFolder]
    ) -> ContractFile | FileProblem:
        own = [ContractFile(path=parsed.path / name, reading=each) for name, each in parsed.contracts.items()]
        elsewhere = [
            ContractFile(path=other.path / name, reading=reading, digest=other.digests.get(name))
            for other in others
            for name, reading in other.contracts.items()
        ]
        for level in (own, self._below_tools, elsewhere):
            contracts = ((file, file.reading.value) for file in level)
            matches = [(file, each) for file, each in contracts if each is not None and each.id == binding.tool]
            if any(not _are_equal_contracts(matches[0][1], contract) for _, contract in matches[1:]):
                files = " and ".join(str(file.path) for file, _ in matches[:2])
                message = f"{quoted(binding.tool)} is described differently in {files}"
                return _binding_problem(driver, binding, CONFLICT, message)
            if matches:
                return matches[0][0]
        return _no_contract(driver, binding, [parsed.path, self._workspace / TOOLS, *(other.path for other in others)])

    def _find_by_path(self, driver: Driver, binding: ToolBinding, parsed: ParsedFolder) -> ContractFile | FileProblem:
        written = binding.tool
        relative = written if written.endswith(".md") else f"{written.rstrip('/')}/{TOOL_FILE}"
        paths = [Path(os.path.normpath(folder / relative)) for folder in (parsed.path, self._workspace)]
        folder_name = Path(os.path.normpath(relative)).parent.name
        if folder_name not in ("", ".."):
            paths.append(self._workspace / TOOLS / folder_name / TOOL_FILE)
        has_escaped = False
        for path in paths:
            if path.is_relative_to(parsed.path):
                name = path.relative_to(parsed.path).as_posix()
                if name in parsed.contracts:
                    return ContractFile(path=path, reading=parsed.contracts[name])
            elif not (inside(path, self._workspace) or inside(path, parsed.root.path)):
                has_escaped = True
            else:
                self.searched.add(path)
                file = self._find_file(path)
                if file is not None:
                    return file
        if has_escaped:
            return _binding_problem(driver, binding, "path_escape", "the contract's path leaves the workspace")
        return _no_contract(driver, binding, paths)


def _no_contract(driver: Driver, binding: ToolBinding, paths: Sequence[Path]) -> FileProblem:
    message = f"there is no contract {quoted(binding.tool)}; looked in {', '.join(map(str, paths))}"
    return _binding_problem(driver, binding, UNAVAILABLE, message)


def _binding_problem(driver: Driver, binding: ToolBinding, code: str, message: str) -> FileProblem:
    hint = "write the path of a TOOL.md in the folder or the workspace, or the id of a contract below .tools"
    return driver.places.problem(f"{binding.pointer}/tool", code, message, hint)


def _read_contract_file(path: Path) -> ContractFile:
    try:
        data, digest = read_file(Path(os.path.realpath(path)))
    except FolderUnreadable as fault:
        return ContractFile(path=path, reading=ParsedFile(problems=(_unreadable(path, fault),)))
    return ContractFile(path=path, reading=read_contract(data, str(path)), digest=digest)


def _read_secrets(path: Path) -> ParsedFile[SecretInventory]:
    """Return the secrets that a SECRETS.md of the workspace itself describes."""
    try:
        return inventory.read_secrets(read_file(path)[0], str(path))
    except FolderUnreadable as fault:
        return ParsedFile(problems=(_unreadable(path, fault),))


def _unreadable(path: Path, fault: FolderUnreadable) -> FileProblem:
    return FileProblem(file=str(path), code="file_unreadable", message=str(fault), hint="repair or remove it")


def _are_equal_contracts(contract: Contract, other: Contract) -> bool:
    """Return whether two contracts are equal apart from the location of their files."""
    return msgspec.structs.replace(contract, places=_NOWHERE) == msgspec.structs.replace(other, places=_NOWHERE)


def _drop_repeated_drivers(folders: Sequence[ParsedFolder]) -> Iterator[ParsedFolder]:
    """Yield the driver folders that are used. If several folders have a driver with the same id and major version, only
    the one in the first root is used (AIP-file-1). Folders whose DRIVER.md cannot be read are also yielded.

    If roots of different ranks contain the same driver, only the one in the earlier root is yielded, with a warning. If
    roots of the same rank contain it twice, both are yielded with an error, so that neither is used.
    """
    by_key: dict[str, list[tuple[ParsedFolder, Driver]]] = {}
    for candidate in folders:
        driver = candidate.reading.value
        if driver is None:
            yield candidate
        else:
            by_key.setdefault(driver.key, []).append((candidate, driver))
    for key, candidates in by_key.items():
        rank = min(candidate.root.rank for candidate, _ in candidates)
        first = [(candidate, driver) for candidate, driver in candidates if candidate.root.rank == rank]
        files = sorted(candidate.file for candidate, _ in first)
        hidden = sorted(candidate.file for candidate, _ in candidates if candidate.root.rank != rank)
        for candidate, driver in first:
            problems = [*candidate.problems]
            if len(first) > 1:  # AIP-file-1
                message, hint = f"{key} is in {' and '.join(files)}", "give one of them another id"
                problems.append(driver.places.problem("/id", "duplicate_id", message, hint))
            elif hidden:  # AIP-file-1
                message = f"{files[0]} is used, and {' and '.join(hidden)} with the same id and major version is not"
                problems.append(
                    driver.places.problem("/id", "driver_shadowed", message, "remove one of them", "warning")
                )
            yield msgspec.structs.replace(candidate, problems=tuple(problems))


def _with_problems(declared: Declared, problems: Sequence[FileProblem]) -> Declared:
    """Return the driver with `problems`, errors first, in place of its previous problems. Its state is derived from the
    errors.
    """
    ordered = tuple(sorted(dict.fromkeys(problems), key=lambda each: _SEVERITY[each.severity]))
    codes = frozenset(each.code for each in ordered if each.severity == "error")
    return msgspec.structs.replace(declared, problems=ordered, state=_STATES.get(codes, DriverState.REJECTED))


def _agree_on_contracts(drivers: Sequence[Declared], workspace: Path) -> list[Declared]:
    """Decide which TOOL.md counts if several drivers bring different ones for the same contract. Mark the drivers that
    bring a different text as refused.

    A text below .tools that a trusted driver binds takes precedence, then any other text of a trusted driver. If
    several texts have the highest precedence and differ, every driver of this contract is refused.
    """
    texts: dict[str, list[tuple[int, Contract]]] = {}
    for declared in drivers:
        for contract in declared.contracts.values() if declared.is_fit else ():
            is_below_tools = Path(contract.places.file).is_relative_to(workspace / TOOLS)
            rank = 2 if not declared.trusted else 0 if is_below_tools else 1
            texts.setdefault(contract.id, []).append((rank, contract))
    settled: dict[str, Contract | None] = {}
    for name, candidates in texts.items():
        best_rank = min(rank for rank, _ in candidates)
        best = [contract for rank, contract in candidates if rank == best_rank]
        settled[name] = best[0] if all(_are_equal_contracts(best[0], each) for each in best) else None
    agreed = []
    for declared in drivers:
        problems: list[FileProblem] = []
        for index, contract in declared.contracts.items() if declared.is_fit else ():
            used = settled[contract.id]
            if declared.driver is not None and (used is None or not _are_equal_contracts(used, contract)):
                where = "other drivers bring another" if used is None else f"{used.places.file} is used"
                message = f"{contract.places.file} describes {contract.id} differently: {where}"
                hint = "keep one text of it, best below .tools"
                problems.append(declared.driver.places.problem(f"/implements/{index}/tool", CONFLICT, message, hint))
        agreed.append(_with_problems(declared, (*declared.problems, *problems)) if problems else declared)
    return agreed


def _merge_inventories(
    drivers: Sequence[Declared], shared: Sequence[SecretInventory]
) -> tuple[list[Declared], tuple[SecretEntry, ...], tuple[FileProblem, ...]]:
    """Merge all descriptions of secrets, and give each driver the secrets that it names (AIP-19.file-3).

    The inventories of the workspace and of trusted drivers are merged. The inventory of an untrusted driver is only
    compared with them. Return the drivers, the merged inventory, and the problems that belong to no driver.
    """
    counted = [*shared, *(each.own_secrets for each in drivers if each.trusted and each.own_secrets is not None)]
    secrets, problems = inventory.merge_inventories(counted)
    files = {problem.file for problem in problems}
    messages = {problem.message for problem in problems}
    merged: list[Declared] = []
    for declared in drivers:
        own = declared.own_secrets
        clashes: list[FileProblem] = []
        if own is not None and declared.trusted:
            clashes = [each for each in problems if own.places.file in each.message]
        elif own is not None:
            compared = inventory.merge_inventories((*counted, own))[1]
            clashes = [each for each in compared if each.message not in messages]
        declared = _with_secrets(declared, secrets)
        merged.append(_with_problems(declared, (*declared.problems, *clashes)) if clashes else declared)
    owned = {declared.own_secrets.places.file for declared in merged if declared.own_secrets is not None}
    return merged, secrets, tuple(each for each in problems if each.file in files - owned)


def _with_secrets(declared: Declared, merged: tuple[SecretEntry, ...]) -> Declared:
    """Return the driver with the descriptions of the secrets that it names, and with problems about them.

    Problems are added for the secrets that it would not receive.
    """
    driver = declared.driver
    if driver is None:
        return declared
    wanted = dict.fromkeys((*driver.secret_names, *(driver.auth.state.env if driver.auth is not None else ())))
    secrets = {name: inventory.secret_for(name, driver.id, declared.own_secrets, merged) for name in wanted}
    described = {name: secret for name, secret in secrets.items() if secret is not None}
    own = declared.own_secrets.entries if declared.own_secrets is not None else ()
    elsewhere = {
        f"secrets://{name}": inventory.entry_text(secret) for name, secret in described.items() if secret not in own
    }
    declared = msgspec.structs.replace(declared, secrets=described, resolved={**declared.resolved, **elsewhere})
    problems = [*declared.problems, *(each.problem for each in ungranted_secrets(declared))]
    is_shared = driver.interlock.isolation == "driver"
    for name, secret in secrets.items():
        if secret is None and name not in driver.secret_names:
            message = f"no inventory describes the secret {name}"
            hint = f"add it to {SECRETS_FILE} beside {DRIVER_FILE}"
            problems.append(driver.places.problem("/auth/state/env", inventory.UNDECLARED, message, hint, "warning"))
        # AIP-security-8: a user's own secret would be available to every user
        elif secret is not None and name in driver.secret_names and is_shared and inventory.is_for_users_alone(secret):
            message = f"the secret {name} is for single users, and all callers share the server"
            grant = "access.bind: [{tool: its id}]"
            hint = f"write metadata.interlock.isolation: user, or let the driver have it with {grant}"
            problems.append(driver.places.problem("/server", USER_CONTEXT, message, hint))
    return _with_problems(declared, problems)
