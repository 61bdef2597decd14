"""Adding a server: from a user's reference, such as npm:PACKAGE, to a driver folder in the workspace.

The operations `try_server` and `add_driver`, which `interlock add` and the console call, and `interlock import` use
`ServerAdder`. It works in three steps, and its caller decides what happens between them:

1. `read` turns a request (npm:PACKAGE, an address, a command, the name of a draft) into the frontmatter of a driver.
   The caller then stores the secrets that the request contains.

2. `try_out` starts the server once inside its sandbox, asks for its tools, and proposes a contract and a class for
   each. No tool is called. The caller may then ask the user about the classes.

3. `write` composes the files, checks that a node would register them, and moves the folder into place in one step.

A step that fails leaves the workspace unchanged (AIP-author-6).
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from importlib.resources import files as resource_files
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec.structs import asdict

from interlock.ax.protocol.capability import ToolClass
from interlock.config.plan import Plan, Spawn
from interlock.core.bounded_file import read_bounded
from interlock.drivers.api import AddedDriver, AddedTool, TryServer
from interlock.drivers.api import Problem as ProblemView
from interlock.drivers.driver_state import DriverState
from interlock.drivers.kinds import HOMES, kind_of
from interlock.drivers.protocol import authoring
from interlock.drivers.protocol.files.contract import TOOL_FILE, read_contract
from interlock.drivers.protocol.files.driver import DRIVER_FILE, read_driver
from interlock.drivers.protocol.files.frontmatter import FILE_BYTES_MAX, frontmatter_text
from interlock.drivers.protocol.files.inventory import SECRETS_FILE
from interlock.drivers.protocol.files.versions import parse_version
from interlock.drivers.protocol.kinds import SERVERS, LocalServer
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.server_name import exposed_segment
from interlock.drivers.provider.checks import MISSING
from interlock.drivers.trial import (
    ALL_RESOURCES,
    CLIENT_CAPABILITIES,
    NOTHING,
    Say,
    TrialResult,
    TrialRunner,
    advice,
)
from interlock.drivers.workspace import scan
from interlock.drivers.workspace.declaration import Declared, Memory, configured_segments
from interlock.drivers.workspace.folder import read_imported_folder
from interlock.drivers.workspace.survey import Surveyor, this_machine
from interlock.interop.protocol.drafts import PENDING, ImportChoices, draft_entry, secrets_text
from interlock.interop.protocol.launchers import UnknownReference, entry_of
from interlock.interop.protocol.model import ImportNote, SecretFinding
from interlock.interop.protocol.translation import Surroundings
from interlock.wire.refusal import Refused

PATH_CHARS_MAX: Final = 4096  # PATH_MAX of Linux

Proposal = TypeVar("Proposal", authoring.ToolProposal, AddedTool)

_ANY_OBJECT: Final = {"type": "object"}
# Stands in for the contracts that are not known yet.
_PENDING_CONTRACT: Final = frontmatter_text(
    {"name": "pending", "id": PENDING["tool"], "description": "In the place of contracts that are not known yet."}
    | {"version": "1.0.0", "inputs": _ANY_OBJECT, "outputs": _ANY_OBJECT}
)


class NotAdded(Refused):
    """Error: an MCP server could not be added to the workspace. Nothing was written."""

    def __init__(self, code: str, message: str, hint: str | None = None, problems: Sequence[FileProblem] = ()) -> None:
        self.problems = problems
        details: dict[str, Any] = {"problems": [str(problem) for problem in problems]} if problems else {}
        super().__init__(code, message, {**details, "hint": hint} if hint else details, hint=hint)


class DriverRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a driver folder that is to be written. `data` is the frontmatter of its DRIVER.md without
    `implements`, and `files` are its other files.
    """

    data: Mapping[str, Any]
    files: Mapping[str, str] = {}
    secrets: tuple[SecretFinding, ...] = ()  # the caller stores their values
    tools: Mapping[str, str | None] | None = None
    classes: Mapping[str, ToolClass] = {}
    hints: Mapping[str, Any] = {}  # what the source says of tools: only_tools, without_tools, asks, asks_tools
    replaces: bool = False

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def key(self) -> str:
        version = parse_version(str(self.data["version"]))
        return f"{self.id}@{version.numbers[0] if version is not None else 0}"


class TriedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that started successfully in a trial, with the contracts and classes that are proposed for its tools."""

    request: DriverRequest
    trial: TrialResult
    known_contracts: Mapping[str, authoring.ExistingContract]
    proposals: tuple[authoring.ToolProposal, ...]
    sandbox: Mapping[str, Any]  # what `describe_sandbox` says


@dataclass(eq=False)
class ServerAdder:
    """Service that adds MCP servers to a workspace by writing driver folders. Servers can be tried out only inside
    `async with`.
    """

    plan: Plan
    say: Say  # is called with each step and note
    _: KW_ONLY
    # The variables that a request may refer to, and that a trial passes on. Their values must not be logged.
    environment: Mapping[str, str] = field(repr=False)
    # False for callers that are not on this machine, which may name only packages and addresses.
    allows_commands: bool = True

    async def __aenter__(self) -> Self:
        """Open the store and the other parts that a trial run of a server needs. Raise StoreError if the store cannot
        be opened.
        """
        self._runner = TrialRunner(self.plan, environment=self.environment)
        await self._runner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.__aexit__(*error)

    # Read

    def read(self, request: TryServer) -> DriverRequest:
        """Convert a request of the operator API to the content of a driver folder that can be tried out. Settings that
        are missing in the request come from the driver for the same package that ships with Interlock, if there is one.

        Raise NotAdded if the request is invalid.
        """
        folder = scan.find_driver_folder(self.plan.workspace, request.reference, scan.DRAFT_FILE)
        wanted = self.read_draft(folder) if folder is not None else self._read_reference(request)
        return msgspec.structs.replace(wanted, tools=request.tools, classes=request.classes, replaces=request.replace)

    def read_draft(self, path: Path) -> DriverRequest:
        """Read the draft of a driver from a folder of the workspace. Raise NotAdded if the draft cannot be used."""
        folder = read_imported_folder(path)
        if not folder.data:
            raise NotAdded("bad_draft", f"{path} cannot be read", "interlock import writes it again")
        data = {key: value for key, value in folder.data.items() if key != "implements"}
        files = {SECRETS_FILE: folder.secrets_text} if folder.secrets_text else {}
        hints = folder.record.hints if folder.record is not None else {}
        return self._check_name_is_free(DriverRequest(data=data, files=files, hints=hints))

    def _check_name_is_free(self, request: DriverRequest) -> DriverRequest:
        """Return the request unchanged. Raise NotAdded if a server, subserver or device in the configuration already
        uses the segment of the new server.
        """
        segment = exposed_segment(request.id)
        if (taken_by := configured_segments(self.plan).get(segment)) is not None:
            message = f"{segment} is {taken_by} already, so the tools of this server could not be listed"
            raise NotAdded("name_collision", message, f"rename or remove {taken_by}, or add this one with --as ID")
        return request

    def _read_reference(self, request: TryServer) -> DriverRequest:
        reference = request.reference
        is_remote = "://" in reference
        headers = dict(request.headers)
        if is_remote and request.secrets:
            headers.setdefault("Authorization", f"Bearer ${{input:{request.secrets[0]}}}")
        try:
            entry = entry_of(
                reference,
                request.args,
                env=request.env,
                env_passed=request.passed,
                env_unset=() if is_remote else request.secrets,
                headers=headers,
                egress=request.egress,
            )
        except UnknownReference as unknown:
            hint = f"interlock add npm:{reference}" if reference.startswith("@") else "interlock add --help"
            raise NotAdded("unknown_reference", str(unknown), hint) from None
        if entry.command and not self.allows_commands:
            hint = "add it on that machine, or name a package or an address here"
            raise NotAdded("unknown_reference", "a command can only be added on the machine of the node", hint)
        surroundings = Surroundings(
            home=str(Path.home()),
            workspace=str(self.plan.workspace),
            env=self.environment,
            fresh=_find_new_paths((*request.args, *request.env.values())),
            writes=request.writes,
        )
        draft = draft_entry(entry, surroundings, ImportChoices(), identifier=request.id)
        if isinstance(draft, ImportNote):
            raise NotAdded(draft.code, draft.text)
        if request.writes and SERVERS[draft.data["server"]["kind"]].confinement != "sandbox":
            raise NotAdded("usage", "--write is for a server that runs here, outside of a container")
        if too_wide := [path for path in request.writes if path in draft.withheld]:
            raise NotAdded("usage", f"{too_wide[0]} is too wide to be opened to a server", "name a folder inside it")
        for note in draft.notes:
            self.say(f"note: {note.text}")
        data = {key: value for key, value in draft.data.items() if key != "implements"}
        if request.programs:
            data["sandbox"] = {**data.get("sandbox", {}), "exec": {"allow": False, "spawn": list(request.programs)}}
        if request.packages:
            package = data["server"].get("package")
            data["install"] = [{"method": "pip", "package": package, "with": list(request.packages)}]
        template = with_shipped(data, self.plan.data)
        if template is not None and template.what:
            self.say(f"taken from the shipped driver {template.shipped}: {'; '.join(template.what)}")
            data = dict(template.data)
        files = {SECRETS_FILE: secrets_text(draft.secrets)} if draft.secrets else {}
        return self._check_name_is_free(DriverRequest(data=data, files=files, secrets=draft.secrets))

    # Try out

    async def try_out(self, request: DriverRequest) -> TriedServer:
        """Start the server once, ask it for its tools, and propose a contract and a class (such as read-only) for each
        tool.

        Raise NotAdded if the server does not start, has no tools or cannot be described by a driver, and StoreError or
        OSError if its files or records cannot be written.
        """
        driver_text = frontmatter_text({**request.data, "implements": [PENDING]})
        files = {**request.files, DRIVER_FILE: driver_text, f"{PENDING['tool']}/{TOOL_FILE}": _PENDING_CONTRACT}
        with _staging_folder(self.plan, request.id, files) as folder:
            declared = await self._read_declaration(folder)
            without_contracts = msgspec.structs.replace(_usable_driver(declared), implements=())
            declared = msgspec.structs.replace(declared, driver=without_contracts, contracts={})
            trial = await self._runner.run_once(declared, self.say, asks_for_all=True)
            sandbox = describe_sandbox(self.plan, declared, trial) if trial.is_up else {}
        if not trial.is_up:
            packages = [each for entry in request.data.get("install", ()) for each in entry.get("with", ())]
            hint = advice(trial, request.data["server"], packages)
            if trial.installed is None:
                message = f"the server could not be installed: {trial.reason}"
                raise NotAdded(trial.code or "install_failed", message, hint)
            words = f"; its last words: {' | '.join(trial.last_words)}" if trial.last_words else ""
            message = f"the server did not come up: {trial.reason}{words}"
            raise NotAdded(trial.code or "unavailable", message, hint)
        if not trial.tools:
            raise NotAdded("no_tools", "the server has no tools", "there is nothing to make contracts of")
        contracts = known_contracts(self.plan, request.id)
        tools = request.tools
        if tools is None and request.hints:  # of an import: the tools that the source lets the server have
            only, without = request.hints.get("only_tools"), request.hints.get("without_tools", ())
            names = (str(tool.get("name")) for tool in trial.tools)
            tools = dict.fromkeys(name for name in names if (not only or name in only) and name not in without)
        proposed = authoring.propose(
            trial.tools, request.id, wanted=tools, contracts=contracts, classes=request.classes
        )
        problems = [each for each in proposed if isinstance(each, FileProblem)]
        if problems:
            raise NotAdded(problems[0].code, problems[0].message, f"it has {problems[0].hint}", problems)
        proposals = tuple(each for each in proposed if isinstance(each, authoring.ToolProposal))
        return TriedServer(
            request=request, trial=trial, known_contracts=contracts, proposals=proposals, sandbox=sandbox
        )

    # Write

    async def write(self, tried: TriedServer, proposals: tuple[authoring.ToolProposal, ...]) -> AddedDriver:
        """Write a driver for a server that was tried out. First check that a node would accept the driver.

        Raise NotAdded if a node would not accept it, if there are no proposals, or if a driver of this id exists with
        other content and the request does not replace it. Raise StoreError or OSError if the files cannot be written.
        """
        if not proposals:
            raise NotAdded("no_tools", "none of the server's tools is wanted", "there is nothing to make contracts of")
        try:
            return await self._register(tried, proposals)
        except NotAdded as error:
            if not (unlisted := _unlisted_tools(error, proposals)):
                raise
        # The trial listed them, because there the server was told that it may ask clients for everything.
        try:
            return await self._register(tried, proposals, CLIENT_CAPABILITIES, _review_remarks(unlisted, frozenset()))
        except NotAdded as error:
            if not (left_out := _unlisted_tools(error, proposals)):
                raise
        listed = tuple(each for each in proposals if each.tool_name not in left_out)
        asking = unlisted - left_out
        return await self._register(
            tried, listed, CLIENT_CAPABILITIES if asking else (), _review_remarks(asking, left_out)
        )

    async def _register(
        self,
        tried: TriedServer,
        proposals: tuple[authoring.ToolProposal, ...],
        capabilities: tuple[str, ...] = (),
        reviews: tuple[str, ...] = (),
    ) -> AddedDriver:
        """Check that a node would register a driver with these contracts, and move its files into place.

        `capabilities` are what its server may ask clients for, and `reviews` is what a person should know of that.
        """
        request = tried.request
        # It writes and reads as many files as the server has tools.
        composed = await asyncio.to_thread(_compose_driver, tried, proposals, capabilities, reviews)
        files, target = composed.files, self.plan.workspace / scan.DRIVERS / request.id
        written = _differing_files(target, files)
        with _staging_folder(self.plan, request.id, files, over=target) as folder:
            declared = await self._read_declaration(folder)
            _usable_driver(declared)
            self.say("registering it")
            trial = await self._runner.run_once(declared, lambda _: None)
            if trial.state is not DriverState.READY:
                message = f"{request.id} does not register: {trial.reason}"
                raise NotAdded(trial.code or "not_registered", message, NOTHING, trial.problems)
            problems = tuple(dict.fromkeys((*declared.problems, *trial.problems)))
            sandbox = describe_sandbox(self.plan, declared, trial)
            if written and (target / DRIVER_FILE).exists() and not request.replaces:
                message = f"{target} exists with other content ({', '.join(written)})"
                raise NotAdded("exists", message, "add --replace overwrites it, --as ID makes another")
            if written or (target / scan.DRAFT_FILE).exists():
                _move_into_place(folder, target)

        # The staged files are in their place now.
        staged, place = f"{folder}{os.sep}", f"{target}{os.sep}"
        moved = (msgspec.structs.replace(each, file=each.file.replace(staged, place, 1)) for each in problems)
        installed, facts = trial.installed, trial.facts
        return AddedDriver(
            id=request.id,
            key=declared.key,
            folder=str(target),
            files=tuple(written),
            tools=tuple(AddedTool(**asdict(proposal)) for proposal in proposals),
            version=installed.version if installed is not None else None,
            protocol_version=facts.version if facts is not None else None,
            problems=tuple(ProblemView(**asdict(problem)) for problem in moved),
            reviews=composed.reviews,
            sandbox=sandbox,
            trusted=False,
            state=DriverState.UNTRUSTED.value,
        )

    async def _read_declaration(self, folder: Path) -> Declared:
        """Read the driver in a temporary folder as if the folder were already in the workspace."""
        memory = Memory(self._runner.store.kv, self._runner.clock)
        await memory.open()
        plan = self.plan

        def survey() -> Declared:
            root = scan.Root(kind="workspace", rank=0, path=folder.parent)
            staged = scan.FoundFolder(root=root, path=folder, mark=scan.mark_of(folder))
            sight = scan.scan_workspace(plan, staged=staged)
            declaration = Surveyor(plan, this_machine(plan.data / "packages")).survey(sight, memory.all)
            return next(each for each in declaration.drivers if each.folder == folder)

        return await asyncio.to_thread(survey)


def decide_classes(
    proposals: Sequence[Proposal], classes: Mapping[str, ToolClass], *, accept: bool
) -> tuple[Proposal, ...]:
    """Return the proposed tools with the classes (read-only, reversible or irreversible) that the user chose.

    With `accept`, a class that only a name or a schema suggests counts as chosen too, and so does one for which there
    is no sign at all (SUGGESTED). Otherwise its tool stays undecided.
    """
    decided = []
    for proposal in proposals:
        if proposal.is_new and proposal.tool_name in classes:
            tool_class = classes[proposal.tool_name]
            proposal = msgspec.structs.replace(proposal, tool_class=tool_class, by="person", question=None)
        elif proposal.is_new and accept and proposal.by in authoring.SUGGESTED:
            proposal = msgspec.structs.replace(proposal, by="person", question=None)
        decided.append(proposal)
    return tuple(decided)


def _find_new_paths(texts: Sequence[str]) -> dict[str, str]:
    """Return the paths in `texts` that do not exist yet, each mapped to the existing folder in which it would be
    created.
    """
    paths = {}
    for text in (each.partition("=")[2] if each.startswith("-") else each for each in texts):
        if not text.startswith("/") or len(text) >= PATH_CHARS_MAX or "\0" in text:
            continue
        parent = os.path.dirname(text)  # noqa: PTH120  (a name that is too long raises with Path.is_dir)
        if not os.path.lexists(text) and os.path.isdir(parent):  # noqa: PTH112
            paths[text] = parent
    return paths


def known_contracts(plan: Plan, identifier: str) -> dict[str, authoring.ExistingContract]:
    """Return all contracts of the workspace by id. If several files have the same id, one of the driver `identifier` is
    preferred, then one in .tools, then one of another driver.
    """
    own = plan.workspace / scan.DRIVERS / identifier
    seen = scan.scan_workspace(plan)
    contracts: dict[str, authoring.ExistingContract] = {}
    others = (path for folder in seen.folders if folder.path != own for path in sorted(folder.path.rglob(TOOL_FILE)))
    for path in (*sorted(own.rglob(TOOL_FILE)), *(path for path, _ in seen.contracts), *others):
        content = read_bounded(path, FILE_BYTES_MAX)
        data = content if isinstance(content, bytes) else b""
        contract = read_contract(data, str(path)).value
        if contract is not None and contract.id not in contracts:
            existing = authoring.ExistingContract(contract=contract)
            if path.is_relative_to(own):
                place, text = path.relative_to(own).as_posix(), data.decode("utf-8", "replace")
                existing = authoring.ExistingContract(contract=contract, path=place, text=text)
            contracts[contract.id] = existing
    return contracts


def describe_sandbox(plan: Plan, declared: Declared, trial: TrialResult) -> dict[str, Any]:
    """Return which files, hosts and programs the server will be able to access."""
    driver, installed = declared.driver, trial.installed
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
    command = reach.command if isinstance(reach, Spawn) else ()
    implied = [each for each in command[1:] if sandbox.from_arguments and each.startswith("/") and Path(each).is_dir()]
    return {
        "kind": "bubblewrap",
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
    """Write the files of a driver to a temporary folder in the workspace, and delete that folder when the context
    exits.

    `over` is the folder that will be replaced; its other files are copied. Raise NotAdded if the workspace cannot be
    written or a file would be written through a link out of the folder, and OSError if a file cannot be written.
    """
    try:
        beside = Path(tempfile.mkdtemp(dir=plan.workspace, prefix=".adding-"))
    except OSError as error:
        raise NotAdded("workspace_unusable", f"{plan.workspace} cannot be written ({error.strerror})") from None
    try:
        folder = beside / identifier
        if over is not None and over.is_dir():
            shutil.copytree(over, folder, symlinks=True)
            (folder / scan.DRAFT_FILE).unlink(missing_ok=True)
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
    """Return the names of files that are missing in the folder or have different content there."""
    return [name for name, text in files.items() if read_bounded(target / name, FILE_BYTES_MAX) != text.encode()]


def _move_into_place(folder: Path, target: Path) -> None:
    """Move the staged folder to `target`. An existing folder is set aside first and restored if the move fails.

    Raise NotAdded if the parent of `target` is a link that leads out of the workspace.
    """
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


# Shipped drivers

TEMPLATE_FOLDER: Final = "/workspace"


class ShippedTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """Driver data completed with settings of the driver for the same package that ships with Interlock.

    `data` is the completed frontmatter. `what` describes the added settings; it is empty if nothing was missing.
    """

    data: Mapping[str, Any]
    shipped: str
    what: tuple[str, ...]


def with_shipped(data: Mapping[str, Any], node_data: Path) -> ShippedTemplate | None:
    """Complete the data of a new driver with settings of the driver for the same package that ships with Interlock.
    Return None if Interlock ships no such driver, or if the new or the shipped driver uses a remote server.

    A shipped driver is a template in which `/workspace` means a folder of the user. A file in that folder is replaced
    by one in the server's private home folder, to which its sandbox can always write. The user's folder is never
    guessed. Values that the user wrote (install, sandbox.exec, hosts in network.egress) stay unchanged.
    """
    requested, shipped = _find_shipped(data)
    if requested is None or shipped is None:
        return None
    server_asked, server_shipped = requested.server, shipped.server
    if not isinstance(server_asked, LocalServer) or not isinstance(server_shipped, LocalServer):
        return None
    home = node_data.absolute() / HOMES / requested.id
    server, completed = dict(data["server"]), dict(data)
    what: list[str] = []
    missing = (name for name in server_shipped.env if name not in server_asked.env)
    env = {name: _move_to_home(home, server_shipped.env[name]) for name in missing}
    if env:
        server["env"] = {**server.get("env", {}), **env}
        what += env
    if server_shipped.args and not server_asked.args and TEMPLATE_FOLDER not in server_shipped.args:
        server["args"] = [_move_to_home(home, each) for each in server_shipped.args]
        what.append(" ".join(server["args"]))
    completed["server"] = server
    beside = [each for entry in shipped.install for each in entry.options.get("with", ())]
    if beside and "install" not in data:
        completed["install"] = [{"method": "pip", "package": server["package"], "with": beside}]
        what.append(f"--with {' '.join(beside)}")
    programs = shipped.sandbox.exec if shipped.sandbox is not None else None
    if programs is not None and "exec" not in data.get("sandbox", {}):
        allowed = {"allow": programs.allow, "spawn": list(programs.spawn)}
        completed["sandbox"] = {**data.get("sandbox", {}), "exec": allowed}
        what.append(f"it may start {', '.join(programs.spawn)}")
    hosts = shipped.network.egress if shipped.network is not None else ()
    if hosts and not data.get("network", {}).get("egress"):
        completed["network"] = {**data.get("network", {}), "egress": list(hosts)}
        what.append(f"it may reach {', '.join('any host' if host == '*' else host for host in hosts)}")
    return ShippedTemplate(data=completed, shipped=shipped.id, what=tuple(what))


def known_hosts(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts that a server needs, as listed in the shipped driver for the same package. Return an empty tuple
    if Interlock ships no such driver.
    """
    _, shipped = _find_shipped(data)
    return tuple(shipped.network.egress) if shipped is not None and shipped.network is not None else ()


def _find_shipped(data: Mapping[str, Any]) -> tuple[Driver | None, Driver | None]:
    """Return the driver that `data` describes, and the driver for the same package that ships with Interlock. Either
    may be None.
    """

    def package_of(driver: Driver) -> tuple[str, str] | None:
        name = kind_of(driver.server).package_name(driver.server)
        return None if name is None else (driver.server.kind, name)

    requested = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), DRIVER_FILE).value
    if requested is None or package_of(requested) is None:
        return requested, None
    for folder in sorted((resource_files("interlock") / "shipped" / "drivers").iterdir(), key=lambda each: each.name):
        file = folder / DRIVER_FILE
        shipped = read_driver(file.read_bytes(), DRIVER_FILE).value if file.is_file() else None
        if shipped is not None and package_of(shipped) == package_of(requested):
            return requested, shipped
    return requested, None


def _move_to_home(home: Path, text: str) -> str:
    return str(home / text.removeprefix(f"{TEMPLATE_FOLDER}/")) if text.startswith(f"{TEMPLATE_FOLDER}/") else text


# Errors


def _review_remarks(asking: frozenset[str], left_out: frozenset[str]) -> tuple[str, ...]:
    """Return remarks for the person who reviews a driver: which tools the server lists only for clients that it may ask
    questions (`asking`), and which tools it does not list for a driver at all (`left_out`).
    """
    reviews = []
    if asking:
        words, names = " and ".join(CLIENT_CAPABILITIES), ", ".join(sorted(asking))
        reviews.append(f"It may ask clients ({words}), or it would not list {names}. So it serves one call at a time.")
    if left_out:
        reviews.append(
            f"Left out: {', '.join(sorted(left_out))}. The server lists these only for clients with roots or tasks,"
            " which it cannot have from all callers of a driver; [servers] offers them."
        )
    return tuple(reviews)


def _unlisted_tools(error: NotAdded, proposals: Sequence[authoring.ToolProposal]) -> frozenset[str]:
    """Return the names of the proposed tools that the server did not list when its driver was checked. Return an empty
    set if the check also failed for another reason.
    """
    faults = [problem for problem in error.problems if problem.severity == "error"]
    if any(problem.code != MISSING for problem in faults):
        return frozenset()
    # The field is /implements/NUMBER/metadata/mcp/tool_name, in the order of the proposals.
    return frozenset(proposals[int(problem.field.split("/")[2])].tool_name for problem in faults)


def _compose_driver(
    tried: TriedServer,
    proposals: tuple[authoring.ToolProposal, ...],
    capabilities: tuple[str, ...],
    reviews: tuple[str, ...],
) -> authoring.ComposedDriver:
    """Return the files of a driver for a server that was tried out, with a contract for each proposed tool.

    Prompts and resources of the server are offered unchanged, unless the request names single tools. `capabilities` are
    what the server may ask clients for. `reviews` become part of the text.

    Raise NotAdded if no driver can be composed.
    """
    request, trial, data = tried.request, tried.trial, dict(tried.request.data)
    # AIP-author-1: what is named is wrapped and nothing else, and otherwise all that the server has
    if request.tools is None and trial.prompts:
        data.setdefault("prompts", [{"name": name, "integrate_as": "raw"} for name in trial.prompts])
    if request.tools is None and trial.has_resources:
        data.setdefault("resources", [{"uri_template": ALL_RESOURCES, "integrate_as": "raw"}])
    if capabilities:
        metadata = data.get("metadata", {})
        extensions = {**metadata.get("interlock", {}), "client_capabilities": list(capabilities)}
        data["metadata"] = {**metadata, "interlock": extensions}
    if trial.transport and data["transport"] in ("http", "sse"):
        data["transport"] = trial.transport  # AIP-transport-9
    composed = authoring.compose(
        data,
        trial.tools,
        proposals,
        contracts=tried.known_contracts,
        body="\n\n".join((f"# {data.get('name')}", str(data.get("description")), *reviews)),
        asks=request.hints.get("asks", False) or frozenset(request.hints.get("asks_tools", ())),
    )
    if not isinstance(composed, authoring.ComposedDriver):
        raise NotAdded(composed[0].code, composed[0].message, composed[0].hint, composed)
    return msgspec.structs.replace(
        composed, files={**request.files, **composed.files}, reviews=(*composed.reviews, *reviews)
    )


def _usable_driver(declared: Declared) -> Driver:
    """Return the driver of a staged folder. Raise NotAdded if a node could not use it."""
    if declared.driver is not None and declared.state is None:
        return declared.driver
    code = declared.state.value if declared.state is not None else "rejected"
    raise NotAdded(code, f"no driver can be made of it: {declared.reason}", NOTHING, declared.problems)
