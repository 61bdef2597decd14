"""The addition of a driver for a server: asks for its tools, writes the folder, tries to register it, then keeps it.

The folder is made beside .drivers, in the same workspace, and moved into place whole; a flow that ends in an error
leaves the workspace as it was (AIP-author-6). The caller asks the person what they want, between `survey` and
`add`. `survey` is also what an import asks the servers of its drafts with.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.config.plan import Plan, SandboxPlan, Spawn
from interlock.drivers.add.advice import advice
from interlock.drivers.add.trial import Say, TrialResult, TrialRunner
from interlock.drivers.interfaces import DriverState
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.authoring.proposal import Known
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter_writer import frontmatter_text
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.workspace.declaration import Declared
from interlock.drivers.workspace.host_facts import this_machine
from interlock.drivers.workspace.scan import DRAFT_FILE, DRIVERS, FoundFolder, Root, mark_of, scan_workspace
from interlock.drivers.workspace.survey import Surveyor
from interlock.drivers.workspace.trust_store import Memory
from interlock.interop.protocol.convert.draft import PENDING

_PENDING_CONTRACT: Final = frontmatter_text(
    {
        "name": "pending",
        "id": PENDING["tool"],
        "description": "In the place of contracts that are not known yet.",
        "version": "1.0.0",
        "inputs": {"type": "object"},
        "outputs": {"type": "object"},
    }
)


class NotAdded(Exception):
    """Nothing was written. `code` is for programs, the text and the hint for the person."""

    def __init__(self, code: str, message: str, hint: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.problems = tuple(problems)


class AddResult(msgspec.Struct, frozen=True, kw_only=True):
    folder: Path
    key: str
    files: tuple[str, ...]  # that were written; none where everything stood already
    stood: TrialResult
    sandbox: Mapping[str, Any]
    problems: tuple[Problem, ...]  # warnings and notes


async def survey(bench: TrialRunner, data: Mapping[str, Any], files: Mapping[str, str], say: Say) -> TrialResult:
    """Ask the server of a driver without contracts what it offers. `data`: its frontmatter; `files`: others of its
    folder. Raises NotAdded where the server does not come up."""
    texts = {
        **files,
        DRIVER_FILE: frontmatter_text({**data, "implements": [PENDING]}),
        f"{PENDING['tool']}/{TOOL_FILE}": _PENDING_CONTRACT,
    }
    with _staging_folder(bench.plan, str(data["id"]), texts) as folder:
        declared = await read_declaration(bench, folder)
        if declared.driver is None or declared.state is not None:
            raise _unusable(declared)
        bare = msgspec.structs.replace(declared.driver, implements=())
        stood = await bench.stand(msgspec.structs.replace(declared, driver=bare, contracts={}), say)
    if not stood.is_up:
        raise _not_up_error(stood, data)
    return stood


async def add(
    bench: TrialRunner, identifier: str, files: Mapping[str, str], say: Say, *, replaces: bool = False
) -> AddResult:
    """Add a driver to the workspace. `files`: all of its own, by path in its folder. Raises NotAdded, OSError."""
    target = bench.plan.workspace / DRIVERS / identifier
    written = _differing_files(target, files)
    if written and (target / DRIVER_FILE).exists() and not replaces:
        raise NotAdded(
            "exists",
            f"{target} is there, and says something else ({', '.join(written)})",
            "add --replace writes it anew, --as ID makes another",
        )
    with _staging_folder(bench.plan, identifier, files, over=target) as folder:
        declared = await read_declaration(bench, folder)
        if declared.driver is None or declared.state is not None:
            raise _unusable(declared)
        say("registering it")
        stood = await bench.stand(declared, lambda _: None)
        if stood.state is not DriverState.READY:
            raise NotAdded(
                stood.code or "not_registered",
                f"{identifier} does not register: {stood.reason}",
                "nothing was written",
                stood.problems,
            )
        problems = tuple(dict.fromkeys((*declared.problems, *stood.problems)))
        sandbox = sandbox_of(bench.plan, declared, stood)
        if written or (target / DRAFT_FILE).exists():
            _move(folder, target)
    moved = tuple(_at(target, folder, each) for each in problems)
    return AddResult(
        folder=target, key=declared.key, files=tuple(written), stood=stood, sandbox=sandbox, problems=moved
    )


async def read_declaration(bench: TrialRunner, folder: Path) -> Declared:
    """Read a folder outside of any root as if it were in the workspace's."""
    memory = Memory(bench.store.kv, bench.clock)
    await memory.open()
    plan = bench.plan

    def declared() -> Declared:
        root = Root(kind="workspace", rank=0, path=folder.parent)
        sight = scan_workspace(plan, staged=FoundFolder(root=root, path=folder, mark=mark_of(folder)))
        surveyed = Surveyor(plan, this_machine(plan.data / "packages")).survey(sight, memory.all)
        return next(each for each in surveyed.drivers if each.folder == folder)

    return await asyncio.to_thread(declared)


def known_contracts(plan: Plan, identifier: str) -> dict[str, Known]:
    """Every contract of the workspace by its id: the driver's own first, then those below .tools, then others'."""
    own = plan.workspace / DRIVERS / identifier
    seen = scan_workspace(plan)
    known: dict[str, Known] = {}
    theirs = (path for found in seen.folders if found.path != own for path in sorted(found.path.rglob(TOOL_FILE)))
    for path in (
        *(sorted(own.rglob(TOOL_FILE)) if own.is_dir() else ()),
        *(each for each, _ in seen.contracts),
        *theirs,
    ):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        contract = read_contract(data, str(path)).value
        if contract is None or contract.id in known:
            continue
        if path.is_relative_to(own):
            place = path.relative_to(own).as_posix()
            known[contract.id] = Known(contract=contract, path=place, text=data.decode("utf-8", "replace"))
        else:
            known[contract.id] = Known(contract=contract)
    return known


def sandbox_of(plan: Plan, declared: Declared, stood: TrialResult) -> dict[str, Any]:
    """What the server will be able to touch, as a person reads it."""
    driver, installed = declared.driver, stood.installed
    if driver is None or installed is None:
        return {}
    if driver.server.confinement == "elsewhere":
        return {"kind": "none", "reason": "it runs elsewhere"}
    if plan.drivers.sandbox.get(driver.id) == "off":
        return {"kind": "off", "reason": "drivers.sandbox turns it off"}
    reach = kind_of(driver.server).compile_plan(driver, installed, folder=declared.folder, data=plan.data).reach
    sandbox = reach.sandbox if isinstance(reach, Spawn) else None
    if sandbox is None:
        return {"kind": "container", "egress": list(driver.network.egress) if driver.network is not None else []}
    return {"kind": "bubblewrap", **_open(sandbox, reach.command if isinstance(reach, Spawn) else ())}


def _open(sandbox: SandboxPlan, command: Sequence[str]) -> dict[str, Any]:
    implied = [each for each in command[1:] if sandbox.from_arguments and each.startswith("/") and Path(each).is_dir()]
    return {
        "read": list(map(str, sandbox.read)),
        "write": [*map(str, sandbox.write), *implied],
        "home": str(sandbox.home),
        "egress": list(sandbox.egress),
        "programs": ["any"] if sandbox.any_program else list(sandbox.programs),
        "environment": list(sandbox.passed),
    }


# Folders


@contextmanager
def _staging_folder(plan: Plan, identifier: str, files: Mapping[str, str], over: Path | None = None) -> Iterator[Path]:
    """`over`: the folder whose further files stay as they are. Raises NotAdded."""
    try:
        beside = Path(tempfile.mkdtemp(dir=plan.workspace, prefix=".adding-"))
    except OSError as error:
        raise NotAdded("workspace_unusable", f"{plan.workspace} cannot be written ({error.strerror})") from None
    try:
        folder = beside / identifier
        if over is not None and over.is_dir():
            shutil.copytree(over, folder, symlinks=True)
            (folder / DRAFT_FILE).unlink(missing_ok=True)
        for name, text in files.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise NotAdded("path_escape", f"{name} of {identifier} is a link that leads out of its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        yield folder
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _differing_files(target: Path, files: Mapping[str, str]) -> list[str]:
    def is_there(name: str) -> bool:
        try:
            return (target / name).read_bytes() == files[name].encode()
        except OSError:
            return False

    return [name for name in files if not is_there(name)]


def _move(folder: Path, target: Path) -> None:
    """Move the folder, in one step where there was none; else the old one stays until the new one is there."""
    target.parent.mkdir(exist_ok=True)
    if not target.parent.resolve().is_relative_to(target.parent.parent.resolve()):
        raise NotAdded("workspace_unusable", f"{target.parent} leads out of the workspace")
    old = folder.with_name(".old")
    if target.is_dir():
        target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        if old.is_dir():
            old.rename(target)
        raise


def _at(target: Path, folder: Path, problem: Problem) -> Problem:
    """The problem, at the place where the file is now."""
    if not problem.file.startswith(f"{folder}{os.sep}"):
        return problem
    return msgspec.structs.replace(problem, file=str(target / Path(problem.file).relative_to(folder)))


# Refusals


def _unusable(declared: Declared) -> NotAdded:
    return NotAdded(
        declared.state.value if declared.state is not None else "rejected",
        f"no driver can be made of it: {declared.reason}",
        "nothing was written",
        declared.problems,
    )


def _not_up_error(stood: TrialResult, data: Mapping[str, Any]) -> NotAdded:
    beside = [each for entry in data.get("install", ()) for each in entry.get("with", ())]
    hint = advice(stood, data["server"], beside)
    if stood.installed is None:
        return NotAdded(stood.code or "install_failed", f"the server could not be installed: {stood.reason}", hint)
    words = f"; its last words: {' | '.join(stood.last_words)}" if stood.last_words else ""
    return NotAdded(stood.code or "unavailable", f"the server did not come up: {stood.reason}{words}", hint)
