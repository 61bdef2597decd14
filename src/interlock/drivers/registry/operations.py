"""Operations of an operator on drivers: listing and showing them, and decisions about them.

A decision includes the digest of the folder that the operator saw. If the folder has changed since, the decision is
refused. A decision is recorded in the audit log before it takes effect. The same service works in a running node and,
with a registry that starts nothing, in a command while no node is running. Operations that need running servers are
refused there.

A name may be a driver's id with the major version, its id, the name of its folder, or the name of its server. These
kinds of names are tried in this order, and the first kind that matches any driver is used.

A person may also decide in the inbox (SURFACE 7). `TrustRequests` puts one request there for each state of an untrusted
folder. A request becomes void when its folder was deleted, changed or trusted in another way. The inbox shows the files
with their digests, and the proof covers the digest of these files.
"""

import asyncio
import difflib
import hashlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import asdict, replace

from interlock.approvals.decisions import DecisionReceiver
from interlock.approvals.inbox import Inbox
from interlock.approvals.protocol.approval import Approval, Kind, Move, Source, Status, What
from interlock.approvals.protocol.digests import DRIVER, UNTRUSTED, folder_digest
from interlock.ax.protocol.capability import ToolClass
from interlock.core.audit_record import AuditRecord
from interlock.core.clock import Clock, rfc3339
from interlock.core.feed import AsyncFeed
from interlock.core.views import view_of
from interlock.drivers import api
from interlock.drivers.add import DriverRequest, ServerAdder, TriedServer, decide_classes
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Locked, Locks, differences, remove_packages
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.binding.effects import qualified_name
from interlock.drivers.protocol.files.driver import is_egress
from interlock.drivers.protocol.model import Contract, Driver
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.protocol.server_name import server_name
from interlock.drivers.registry.registry import Registry
from interlock.drivers.trial import TrialResult, TrialRunner
from interlock.drivers.workspace.declaration import HOSTS_MAX, Declaration, Declared, Trusted, changed_keys
from interlock.drivers.workspace.folder import read_folder
from interlock.drivers.workspace.scan import DRIVER_FILE, FoundFolder, mark_of
from interlock.store.ports import Damaged, StoreError
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.refusal import NotFound, Refusal, Refused, quoted_text

if TYPE_CHECKING:
    from interlock.drivers.contracts.service import Contracts
    from interlock.drivers.registry.contract_tests import ExampleRunner


log = logging.getLogger("interlock.drivers")

JsonObject = dict[str, Any]

DIFFERENCE_LINES_MAX: Final = 2_000
UPDATE_LINES_MAX: Final = 1_000  # of the definitions of tools
CANDIDATES_MAX: Final = 100  # newest releases that were looked at and may be switched to


def problem_view(problem: FileProblem) -> api.Problem:
    return view_of(api.Problem, problem)


def declared_facts(declared: Declared, driver: Driver) -> JsonObject:
    """Return what a person reviews before trusting a driver: its command, sandbox, hosts, secrets and tags
    (AIP-security-13).

    The environment is included as written, because it influences what a program does; it contains placeholders instead
    of secrets. The facts are fields of `DriverDetail` and are stored with a trusted driver.
    """
    # Real paths, including those that the state of a login or arguments open.
    fs: dict[str, list[str]] = {}
    for each in kind_of(driver.server).declared_paths(driver, declared.folder):
        fs.setdefault(each.use, []).append(str(declared.real_paths.get(each.path, each.real)))
    sandbox: JsonObject = msgspec.to_builtins(driver.sandbox) if driver.sandbox is not None else {}
    bindings = []
    for binding in driver.implements:
        bound = api.Binding(tool_name=binding.tool_name, contract=binding.tool, version=None, file=None)
        if (contract := declared.contracts.get(binding.index)) is not None:
            bound = replace(bound, contract=contract.id, version=contract.version, file=contract.places.file)
        bindings.append(bound)
    secrets: dict[str, str | None] = {}  # each with its slug and its backend, which may be a file or a variable
    for name in dict.fromkeys((*driver.secret_names, *declared.secrets)):
        secret = declared.secrets.get(name)
        backend = f" from {secret.backend}" if secret is not None and secret.backend is not None else ""
        secrets[name] = None if secret is None else f"{secret.slug}{backend}"
    packages = ("package", "url", "path", "image")
    return {
        "description": driver.description,
        "server": msgspec.to_builtins(driver.server),
        "sandbox": ({**sandbox, "fs": fs} if fs else sandbox) or None,
        "egress": list(driver.network.egress) if driver.network is not None else [],
        "install": [
            " ".join((each.method, *(str(each.options[key]) for key in packages if key in each.options)))
            for each in driver.install
        ],
        "secrets": secrets,
        "policy_tags": list(driver.policy_tags),
        "region": list(driver.region),
        "protocol_version": driver.protocol_version or "latest",
        "extension_keys": list(driver.extension_keys),
        "expose": driver.interlock.expose,
        "isolation": driver.interlock.isolation,
        "bindings": bindings,
    }


def summary(entry: Declared) -> JsonObject:
    """Return what a person accepts by trusting a driver: facts about it, and the digests of its files."""
    facts = declared_facts(entry, entry.driver) if entry.driver is not None else {}
    return {DRIVER: entry.key, "folder": str(entry.folder), **facts, "files": entry.covered}


def texts_of(declared: Declared) -> dict[str, str]:
    """Read the current texts of a driver's files, and of the contracts and other files outside its folder that the
    driver uses.

    Raise Refused if they differ from the texts that were declared. Blocks on file access.
    """
    folder = read_folder(FoundFolder(root=declared.root, path=declared.folder, mark=mark_of(declared.folder)))
    outside = {name: digest for name, digest in declared.files.items() if Path(name).is_absolute()}
    if folder_digest({**folder.digests, **outside, **declared.resolved}) != declared.digest:
        raise _refused(declared, "changed", f"the files of {declared.segment} are changing")
    texts = {name: data.decode("utf-8", "replace") for name, data in folder.texts.items()} | dict(declared.resolved)
    for name in outside:
        with suppress(OSError):
            texts[name] = Path(name).read_text("utf-8", "replace")
    return texts


def difference(
    before: Mapping[str, str], now: Mapping[str, str], labels: tuple[str, str], lines_max: int
) -> Iterator[str]:
    """Yield a unified diff of each text that differs between two states. `labels` name the states, such as "accepted"
    and "now".

    After `lines_max` lines, one more line says that there are more.
    """
    left = lines_max
    for name in sorted({**before, **now}):
        old, new = before.get(name, "").splitlines(), now.get(name, "").splitlines()
        first, second = (f"{name} ({label})" for label in labels)
        for line in difflib.unified_diff(old, new, first, second, lineterm="", n=2):
            if not left:
                yield f"... more than {lines_max} lines"
                return
            left -= 1
            yield line


def folder_view(summary: JsonObject, texts: Mapping[str, str], names: Collection[str]) -> JsonObject:
    """Return a driver's folder as JSON to show to a person. The files in `names` are included as lists of lines, so
    that differences can be shown.
    """
    return {**summary, "text": {name: texts[name].splitlines() for name in sorted(names) if name in texts}}


Record = Callable[[bytes], Awaitable[None]]  # on disk when it returns; raises StoreError

PACKAGES: Final = "packages"  # in the data folder
NEEDS_NODE: Final = "no node is running; start one with `interlock serve`"
OWN_FILES: Final = ("DRIVER.md", "driver.py", "server.json", "SECRETS.md")  # of a driver beside a contract


@dataclass(eq=False)
class DriverService:
    """Service for what operators do with the drivers of one workspace, such as trusting and removing them."""

    registry: Registry
    clock: Clock
    record: Record
    # These exist only in a running node.
    contracts: "Contracts | None" = None
    examples: "ExampleRunner | None" = None
    locks: Locks | None = None
    _adding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _candidates: dict[tuple[str, str], Locked] = field(default_factory=dict)  # by the driver's key and what was shown

    async def list_all(self) -> api.Drivers:
        declaration = await self.registry.current()
        return api.Drivers(
            drivers=tuple(self._summary(each) for each in declaration.drivers),
            drafts=tuple(api.Draft(id=path.name, folder=str(path)) for path in self.registry.sight.drafts),
            problems=tuple(problem_view(each) for each in declaration.problems if each.severity != "note"),
        )

    async def get(self, name: str) -> api.DriverDetail | api.ServedContract:
        """Return the driver or the contract called `name`. For a driver, include the changes since a person accepted
        it.

        `name` is a driver's server name, id, id@major or folder, or the name of a contract. Raise NotFound if nothing
        has that name, Refused if several drivers have it or its files are changing, and StoreError if the store fails.
        """
        await self.registry.current()
        served = self._find_contract(name)
        if served is not None:
            return served
        entry = self._find(name)
        accepted = self.registry.memory.all.trusted.get(str(entry.folder))
        is_changed = accepted is not None and not entry.trusted
        now = await asyncio.to_thread(texts_of, entry) if is_changed else {}
        make = api.UnreadableDriver if entry.driver is None else api.DriverDetail
        facts = {} if entry.driver is None else declared_facts(entry, entry.driver)
        acceptance = None
        changed: list[str] = []
        if accepted is not None:
            changed = sorted(changed_keys(entry.covered, accepted.files))
            at = rfc3339(accepted.at)
            acceptance = api.Acceptance(digest=accepted.digest, by=accepted.by, at=at, policy_tags=accepted.tags)
        before = accepted.texts if accepted is not None and is_changed else {}
        provider = self.registry.providers.get(entry.key)
        return make(
            **asdict(self._summary(entry)),
            **facts,
            digest=entry.digest,
            accepted=acceptance,
            changed=tuple(changed),
            difference=tuple(difference(before, now, ("accepted", "now"), DIFFERENCE_LINES_MAX)),
            files=tuple(sorted(entry.files)),
            problems=tuple(map(problem_view, self._problems(entry))),
            running=None if provider is None else provider.running(),
        )

    async def try_out(self, adder: ServerAdder, request: DriverRequest, by: str) -> TriedServer:
        """Install a server and start it once to list its tools. Raise Refused if the server cannot be added, and
        StoreError if the store fails.
        """
        # A trial installs a package and starts processes, so an operator's requests run one after the other.
        async with self._adding:
            await self.record(self._audit_row("try", request.key, by, {}))
            async with adder:
                return await adder.try_out(request)

    async def add(
        self, adder: ServerAdder, tried: TriedServer, by: str, *, classes: Mapping[str, ToolClass], accept: bool
    ) -> api.AddedDriver:
        """Write a driver for a server that was tried out. `classes` and `accept` have the meaning that they have in
        `decide_classes`.

        The driver is not trusted yet; that is a separate decision. Raise Refused if the server cannot be added, and
        StoreError if the store fails.
        """
        if unknown := [name for name in classes if name not in {each.tool_name for each in tried.proposals}]:
            raise Refused("tool_unknown", f"the trial has no tool {quoted_text(unknown[0])}", {"tools": unknown})
        proposals = decide_classes(tried.proposals, classes, accept=accept)
        async with self._adding:
            await self.record(self._audit_row("add", tried.request.key, by, {}))
            async with adder:
                added = await adder.write(tried, proposals)
        await self.registry.refresh()
        summary = self._summary(self._find(added.key))
        return replace(added, trusted=summary.trusted, state=summary.state)

    async def trust(self, name: str, digest: str, by: str) -> api.DriverSummary:
        """Trust a driver, so that its server is started. `digest` is that of the files which the operator reviewed.

        Raise NotFound if there is no such driver, Refused if its folder has changed, the driver cannot be used or
        several have this name, and StoreError if the store fails.
        """
        await self.registry.refresh()
        declared = self._find_trustable(name, digest)
        tags = list(declared.driver.policy_tags if declared.driver is not None else ())
        more = {"digest": declared.digest, "policy_tags": tags, "unsandboxed": not self._is_sandboxed(declared)}
        await self.record(self._audit_row("trust", declared.key, by, more))
        return await self._trust(declared, by)

    async def accept(self, key: str, digest: str, by: str) -> api.DriverSummary:
        """Trust a driver after a decision in the inbox, which is already recorded in the audit log. Raise the same
        errors as `trust`.
        """
        return await self._trust(self._find_trustable(key, digest), by)

    def _find_trustable(self, name: str, digest: str) -> Declared:
        declared = self._find(name)
        if declared.driver is None or declared.state is DriverState.REJECTED:
            raise _refused(declared, "rejected", f"{declared.segment} cannot be used: {declared.reason}")
        if declared.digest != digest:
            raise _refused(declared, "changed", f"the files of {declared.segment} changed since they were shown")
        return declared

    async def _trust(self, declared: Declared, by: str) -> api.DriverSummary:
        texts = await asyncio.to_thread(texts_of, declared)
        trusted = Trusted(
            folder=str(declared.folder),
            key=declared.key,
            digest=declared.digest,
            files=declared.covered,
            texts=texts,
            tags=declared.driver.policy_tags if declared.driver is not None else (),
            summary=summary(declared),
            by=by,
            at=self.clock.wall(),
        )
        await self.registry.memory.trust(trusted)
        await self.registry.refresh()
        return self._summary(self._find(declared.key))

    async def comparison(self, declared: Declared) -> JsonObject:
        """Return what a person sees when deciding about a driver: a new driver in full, a changed one before and
        after.
        """
        now = await asyncio.to_thread(texts_of, declared)
        accepted = self.registry.memory.all.trusted.get(str(declared.folder))
        if accepted is None:
            return {"definition": folder_view(summary(declared), now, {"DRIVER.md"})}
        names = changed_keys(declared.covered, accepted.files)
        before = folder_view(accepted.summary, dict(accepted.texts), names)
        return {"before": before, "after": folder_view(summary(declared), now, names)}

    async def allow(self, name: str, host: str, by: str, *, revoke: bool = False) -> api.AllowedHosts:
        """Let a driver's server reach a host that its file does not name. With `revoke`, take this permission back.

        Raise NotFound if there is no such driver or the host to revoke was not allowed. Raise Refused if the host is
        invalid, there are too many hosts or the driver cannot be used, and StoreError if the store fails.
        """
        await self.registry.refresh()
        declared = self._find(name)
        if declared.driver is None:
            raise _refused(declared, "rejected", f"{declared.segment} cannot be used: {declared.reason}")
        host = host.lower()
        if not is_egress(host):
            message = "write api.example.com, api.example.com:443 or *.example.com, without path"
            raise Refused("bad_host", message, {"host": host})
        before = self.registry.memory.all.allowed.get(declared.id, ())
        if revoke and host not in before:
            raise NotFound("host", host, before, few=True)
        after = tuple(each for each in before if each != host) + (() if revoke else (host,))
        if len(after) > HOSTS_MAX:
            message = f"{declared.segment} has {HOSTS_MAX} hosts; allow * or a wider suffix instead"
            raise Refused("too_many_hosts", message)
        await self.record(self._audit_row("revoke" if revoke else "allow", declared.key, by, {"host": host}))
        await self.registry.memory.allow(declared.id, after)
        await self.registry.refresh()
        return api.AllowedHosts(id=declared.id, allowed=after)

    async def remove(self, name: str, by: str, *, forget: bool) -> api.RemovedDriver:
        """Delete the folder of a driver and the record of its acceptance.

        With `forget`, also delete the hosts that an operator allowed, its packages, and its registration, with which
        the next driver of this major version would be compared (AIP-identity-4). This also works for a driver whose
        folder is already gone; then only the registration is deleted. Raise NotFound if there is no such driver,
        Refused if several have this name, and StoreError if the store fails.
        """
        await self.registry.refresh()
        try:
            declared = self._find(name)
        except NotFound:
            manifests = self.registry.memory.all.manifests
            gone = tuple(key for key in manifests if name in (key, key.partition("@")[0]))
            if forget and gone:
                await self.record(self._audit_row("forget", name, by, {}))
                for key in gone:
                    await self.registry.memory.forget(key)
                return api.RemovedDriver(removed=None, forgotten=gone)
            raise
        await self.record(self._audit_row("remove", declared.key, by, {"digest": declared.digest, "forget": forget}))
        removed = await asyncio.to_thread(_delete_folder, declared)
        await self.registry.memory.distrust(str(declared.folder))
        forgotten: tuple[str, ...] = ()
        if forget:
            await self.registry.memory.allow(declared.id, ())
            forgotten = (declared.key,) if await self.registry.memory.forget(declared.key) else ()
        await self.registry.refresh()
        if forget and declared.driver is not None:
            await self.registry.stopping.finish()  # a running server keeps its package
            await remove_packages(self.registry.plan.data / PACKAGES, declared.driver)
        return api.RemovedDriver(removed=removed, forgotten=forgotten)

    async def test(self, name: str, by: str, *, allow_mutation: bool) -> api.DriverExamples:
        """Run the examples of a driver's contracts through this driver.

        Raise NotFound if there is no such driver, and Refused if the examples cannot be run.
        """
        declared = await self._running_driver(name)
        if self.examples is None:
            raise Refused("not_running", NEEDS_NODE)
        return await self.examples.run(declared, by, allow_mutation=allow_mutation)

    async def update(self, name: str, by: str, candidate: str | None) -> api.DriverUpdate | api.SwitchedDriver:
        """Return what the newest release of the server would change. With a `candidate` from such a result, switch to
        that release.

        `candidate` identifies a release that an earlier call has returned; if it is None, nothing is switched. Raise
        NotFound if there is no such driver, Refused if the update is impossible, and StoreError if the store fails.
        """
        declared = await self._running_driver(name)
        if self.locks is None:
            raise Refused("not_running", NEEDS_NODE)
        if candidate is None:
            return await self._look_at_newest(declared, self.locks)
        await self.record(self._audit_row("update", declared.key, by, {"candidate": candidate}))
        lock = self._candidates.pop((declared.key, candidate), None)
        if lock is None:
            raise _refused(declared, "not_looked_at", f"look at the newest release of {declared.segment} first")
        await self.locks.put(declared.key, lock)
        await self.registry.renew(declared.key)
        return api.SwitchedDriver(id=declared.id, key=declared.key, to=lock.version)

    async def _look_at_newest(self, declared: Declared, locks: Locks) -> api.DriverUpdate:
        """Install the newest release of a driver's server beside the one in use, start it once, and return the
        differences (AIP-30.install-3). Only a release that was looked at can be switched to.

        Raise Refused if the release cannot be installed or started or the node does not install this server.
        """
        try:
            before = await locks.get(declared.key)
        except Damaged:
            before = None  # an update repairs a damaged record
        new = await self._try_out(declared, newest=True)
        if new.installed is None or not new.is_up:
            message = f"the newest release of {declared.segment} does not come up: {new.reason or new.state.value}"
            raise _refused(declared, "update_failed", message)
        after = new.installed.lock
        if after.method in ("present", "vendored"):
            raise _refused(declared, "nothing_to_update", f"{declared.segment} is not installed from anywhere")
        changes = () if before is None else differences(before, after)
        candidate = None
        if before is None or changes:
            candidate = hashlib.sha256(msgspec.json.encode(after)).hexdigest()
            if len(self._candidates) >= CANDIDATES_MAX:
                self._candidates.clear()
            self._candidates[declared.key, candidate] = after
        provider = self.registry.providers.get(declared.key)
        listing = provider.listing if provider is not None else None
        tools: list[Any]
        if listing is not None:
            tools = [decode_value(raw) for raw in listing.tools.raws]
        else:  # the server of the release in use has not listed its tools yet
            tools = list((await self._try_out(declared, newest=False)).tools)
        old = {str(tool.get("name")): tool for tool in tools if isinstance(tool, dict)}
        now = {str(tool.get("name")): tool for tool in new.tools}
        return api.DriverUpdate(
            id=declared.id,
            key=declared.key,
            before=before.version if before is not None else None,
            to=after.version,
            changes=changes,
            state=new.state.value,
            reason=new.reason,
            added=tuple(sorted(now.keys() - old.keys())),
            removed=tuple(sorted(old.keys() - now.keys())),
            changed=tuple(sorted(name for name in old.keys() & now.keys() if old[name] != now[name])),
            difference=tuple(
                difference(_definition_texts(old), _definition_texts(now), ("in use", "newest"), UPDATE_LINES_MAX)
            ),
            candidate=candidate,
        )

    async def _try_out(self, declared: Declared, *, newest: bool) -> TrialResult:
        async with TrialRunner(self.registry.plan, newest=newest) as runner:
            return await runner.run_once(declared, lambda _: None)

    async def _running_driver(self, name: str) -> Declared:
        await self.registry.refresh()
        declared = self._find(name)
        if declared.key not in self.registry.providers:
            state, reason = self.registry.state_of(declared)
            message = f"{declared.segment} is {state}" + (f": {reason}" if reason else "")
            raise _refused(declared, "not_running", message)
        return declared

    def _find_contract(self, name: str) -> api.ServedContract | None:
        """Return the contract called `name` with the driver that serves it. Return None if there is no such contract,
        or if `name` also names a driver.
        """
        if any(
            name in (declared.key, declared.id, declared.folder.name, declared.segment)
            for declared in self.registry.declaration.drivers
        ):
            return None
        served = self.contracts.find_contract(name) if self.contracts is not None else None
        bound = [
            (declared, contract)
            for declared in self.registry.declaration.drivers
            for contract in declared.contracts.values()
            if name in (contract.id, _qualified_name(contract))
        ]
        if served is None:
            if not bound:
                return None
            contract = bound[0][1]
            served = api.ServedContract(
                contract=contract.id,
                version=contract.version,
                name=_qualified_name(contract) or contract.id,
                file=contract.places.file,
                pinned=None,
                decided_by="",
                ranked=(),
                rejected=(),
                error="no_route",
            )
        considered = {each.driver for each in served.ranked} | {each.driver for each in served.rejected}
        rejected = [*served.rejected]
        for declared, _ in bound:  # drivers that the resolver does not consider
            if declared.key not in considered:
                state, reason = self.registry.state_of(declared)
                rejected.append(api.RejectedDriver(driver=declared.key, phase=2, code=state, reason=reason or state))
        return replace(served, rejected=tuple(rejected))

    def _find(self, name: str) -> Declared:
        """Return the driver called `name`. Raise NotFound if there is none, or Refused if several drivers match."""
        drivers = self.registry.declaration.drivers
        called = [(declared.key, declared.id, declared.folder.name, declared.segment) for declared in drivers]
        for way in range(4):
            matches = [declared for declared, names in zip(drivers, called, strict=True) if names[way] == name]
            if len(matches) == 1:
                return matches[0]
            if matches:
                is_rejected = DriverState.REJECTED
                keys = [str(each.folder) if each.state is is_rejected else each.key for each in matches]
                raise Refused("ambiguous", f"{name} is {' and '.join(keys)}", {"drivers": keys})
        raise NotFound("driver", name, [declared.segment for declared in drivers], few=True)

    def _summary(self, declared: Declared) -> api.DriverSummary:
        state, reason = self.registry.state_of(declared)
        driver = declared.driver
        return view_of(
            api.DriverSummary,
            declared,
            version=driver.version if driver is not None else None,
            name=driver.name if driver is not None else None,
            state=state,
            reason=reason,
            server_kind=driver.server.kind if driver is not None else None,
            transport=driver.transport if driver is not None else None,
            sandboxed=self._is_sandboxed(declared),
            contracts=tuple(contract.id for contract in declared.contracts.values()),
            root=declared.root.kind,
            folder=str(declared.folder),
            found=tuple(map(problem_view, self._server_problems(declared))),
            warnings=sum(each.severity == "warning" for each in self._problems(declared)),
        )

    def _problems(self, declared: Declared) -> tuple[FileProblem, ...]:
        return tuple(dict.fromkeys((*declared.problems, *self._server_problems(declared))))

    def _server_problems(self, declared: Declared) -> tuple[FileProblem, ...]:
        """Return the problems of a driver that show only when its server runs, such as a tool that is missing."""
        provider = self.registry.providers.get(declared.key)
        if provider is None:
            return ()
        files = {str(declared.folder / DRIVER_FILE), *(each.places.file for each in declared.contracts.values())}
        problems = self.contracts.problems if self.contracts is not None else ()
        return (*provider.problems, *(each for each in problems if each.file in files))

    def _is_sandboxed(self, declared: Declared) -> bool:
        return self.registry.plan.drivers.sandbox.get(declared.id) != "off"

    def _audit_row(self, method: str, key: str, by: str, more: JsonObject) -> bytes:
        """Encode the audit row of what an operator did with a driver."""
        at, tool = self.clock.wall(), server_name(key)
        return AuditRecord.event(at, by, "operator", f"drivers/{method}", tool, verdict="decided", driver=key, **more)


def _refused(declared: Declared, code: str, message: str) -> Refused:
    return Refused(code, message, {"driver": declared.key})


def _definition_texts(tools: Mapping[str, JsonObject]) -> dict[str, str]:
    """Return the definitions of tools as indented JSON, by the names of the tools."""
    encoded = {name: msgspec.json.encode(tool, order="sorted") for name, tool in tools.items()}
    return {name: msgspec.json.format(each).decode() for name, each in encoded.items()}


def _delete_folder(declared: Declared) -> str:
    """Delete the folder of a driver and return its path.

    The targets of symbolic links stay. If the driver lies in the folder of a contract, only the driver's own files are
    deleted, and the path of DRIVER.md is returned.
    """
    folder = declared.folder
    if declared.root.below_tools:
        for name in OWN_FILES:
            (folder / name).unlink(missing_ok=True)
        return str(folder / OWN_FILES[0])
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)
    return str(folder)


def _qualified_name(contract: Contract) -> str | None:
    name = qualified_name(contract)
    return None if isinstance(name, FileProblem) else ".".join(name)


PREFIX: Final = "drivers."  # before the driver's key, so that an anchor can be for drivers alone
WAITING_MAX: Final = 100  # folders asked about at one time; the others are when some of these are decided
SHOWN_BYTES_MAX: Final = 256 * 1024  # of one
NODE: Final = "node"

_NEW: Final = "this driver has not been accepted yet"
_CHANGED: Final = "the files of this driver changed since they were accepted"


class TrustRequests(DecisionReceiver):
    """Requests in the inbox that ask a person whether drivers are to be trusted."""

    def __init__(self, inbox: Inbox, service: DriverService, declared: AsyncFeed[Declaration]) -> None:
        self._inbox = inbox
        self._service = service
        declared.subscribe(self.ask)

    async def ask(self, declaration: Declaration) -> None:
        """Make a request for each driver that waits for a person's decision, and cancel requests that are out of date.

        At most WAITING_MAX requests wait at a time. A decision that the node recorded but did not apply is applied.
        """
        untrusted = [declared for declared in declaration.drivers if declared.is_fit and not declared.trusted]
        open_ = {(_tool(declared), declared.digest): declared for declared in untrusted}

        def settled(approval: Approval) -> bool:
            is_ours = approval.source is Source.DRIVERS and approval.status is Status.PENDING
            is_open = (approval.tool, approval.digest) in open_
            return is_ours and not is_open and not self._inbox.is_elsewhere(approval.id)

        try:
            await self._inbox.void_where("superseded: the driver is another by now, or trusted, or gone", settled)
            for approval in self._inbox.listed((Status.APPROVED,), Kind.DEFINITION):
                # The node stopped before it applied the decision.
                if approval.source is Source.DRIVERS and not self._inbox.is_elsewhere(approval.id):
                    await self.settle(approval)
            waiting = sum(declared.source is Source.DRIVERS for declared in self._inbox.waiting(Kind.DEFINITION))
            for (tool, digest), declared in open_.items():
                if waiting < WAITING_MAX and self._inbox.find_definition(tool, digest) is None:
                    try:
                        await self._raise(tool, declared)
                    except Refused as error:  # it is changing: the next scan asks about it
                        log.info("driver %s cannot be put into the inbox: %s", declared.segment, error)
                        continue
                    waiting += 1
        except (StoreError, Refused) as error:
            log.error("untrusted drivers cannot be put into the inbox: %s", error)

    async def _raise(self, tool: str, declared: Declared) -> None:
        compared = await self._service.comparison(declared)
        encoded = msgspec.json.encode(compared)
        if len(encoded) > SHOWN_BYTES_MAX:
            message = "driver %s is too long for the inbox: interlock drivers trust %s shows it"
            log.warning(message, declared.segment, declared.segment)
            return
        draft = self._inbox.draft(
            Kind.DEFINITION,
            Source.DRIVERS,
            requested_by=NODE,
            tool=tool,
            digest=declared.digest,
            tool_digest=declared.digest,
            params=Raw(encoded),
            reason=_CHANGED if "before" in compared else _NEW,
            factors=(UNTRUSTED,),
        )
        raised = await self._inbox.raise_(draft)
        if isinstance(raised, Refusal):
            log.error("driver %s cannot be put into the inbox: %s", declared.segment, raised.message)

    async def refresh(self) -> None:
        """Read the drivers on disk again. Raise StoreError if a record cannot be stored."""
        await self._service.registry.refresh()

    def is_current(self, approval: Approval) -> bool:
        """Return whether the driver's files are still the ones that the request asks about."""
        drivers = self._service.registry.declaration.drivers
        return any((_tool(declared), declared.digest) == (approval.tool, approval.digest) for declared in drivers)

    async def settle(self, approval: Approval) -> Approval | Refusal:
        """Carry out a person's decision. If the driver was accepted, trust it, so that its server is started.

        Return the request after that, or a refusal if the decision cannot be used. A request that was not accepted is
        returned unchanged.
        """
        decision = approval.decision
        if decision is None or decision.what is not What.APPROVED:
            return approval
        used = await self._inbox.use(approval.id)
        if isinstance(used, Refusal):
            return used
        key = approval.tool.removeprefix(PREFIX)
        try:
            await self._service.accept(key, approval.digest, decision.by)
        except (Refused, StoreError) as refused:
            log.error("driver %s was accepted and cannot be trusted: %s", key, refused)
            return await self._inbox.finish(approval.id, Move.FAIL, str(refused))
        return await self._inbox.finish(approval.id, Move.SUCCEED)


def _tool(declared: Declared) -> str:
    return f"{PREFIX}{declared.key}"
