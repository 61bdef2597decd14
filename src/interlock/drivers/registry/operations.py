"""Operations on drivers for an operator: views, and the few decisions.

A decision names what was shown (the digest of the folder); if the folder is another by now, nothing is decided. It is
on record before it counts. The same service answers in a running node and, with a registry that starts nothing, in a
command while no node runs.
"""

import asyncio
import difflib
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import asdict

from interlock.approvals.protocol.digests import DRIVER
from interlock.approvals.protocol.folder_digest import folder_digest
from interlock.core.clock import Clock, rfc3339
from interlock.drivers.add import DriverRequest, NotAdded, ServerAdder, decide_classes
from interlock.drivers.api import (
    Acceptance,
    AddedDriver,
    AllowedHosts,
    Binding,
    Draft,
    DriverDetail,
    DriverExamples,
    Drivers,
    DriverSummary,
    DriverUpdate,
    RejectedDriver,
    RemovedDriver,
    RunningServer,
    ServedContract,
    SwitchedDriver,
    UnreadableDriver,
)
from interlock.drivers.api import Problem as ProblemView
from interlock.drivers.install.installation import remove_packages
from interlock.drivers.interfaces import DriverState
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.binding.match import qualified_name
from interlock.drivers.protocol.files.driver_checks import is_egress
from interlock.drivers.protocol.model import Binding as DriverBinding
from interlock.drivers.protocol.model import Contract, Driver, Secret
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.protocol.server_name import server_name
from interlock.drivers.registry.registry import Registry
from interlock.drivers.registry.trust_requests import folder_view
from interlock.drivers.workspace.declaration import HOSTS_MAX, Declared, Trusted, changed_keys
from interlock.drivers.workspace.folder import read_folder
from interlock.drivers.workspace.scan import DRIVER_FILE, FoundFolder, mark_of
from interlock.wire.refusal import NotFound, Refused

JsonObject = dict[str, Any]

# Views of a driver in plain values: what an operator is shown of it, and what has changed since it was accepted.

DIFFERENCE_LINES_MAX: Final = 2_000


def problem_view(problem: Problem) -> ProblemView:
    return ProblemView(**msgspec.structs.asdict(problem))


def server_kind(driver: Driver) -> str:
    return driver.server.kind


def declared_facts(one: Declared, driver: Driver) -> JsonObject:
    """What a person looks at before trusting it: command, sandbox, egress, secrets, tags (AIP-security-13). With the
    environment as it is written: it decides what a program does, and holds placeholders where it would hold secrets.

    These are fields of `DriverDetail`, and a part of what is stored of a trusted driver."""
    return {
        "description": driver.description,
        "server": msgspec.to_builtins(driver.server),
        "sandbox": _sandbox(one, driver),
        "egress": list(driver.network.egress) if driver.network is not None else [],
        "install": [" ".join((each.method, *_what(each.options))) for each in driver.install],
        "secrets": {
            name: _place(one.secrets[name]) if name in one.secrets else None
            for name in dict.fromkeys((*driver.secret_names, *one.secrets))
        },
        "policy_tags": list(driver.policy_tags),
        "region": list(driver.region),
        "protocol_version": driver.protocol_version or "latest",
        "extension_keys": list(driver.extension_keys),
        "expose": driver.interlock.expose,
        "isolation": driver.interlock.isolation,
        "bindings": [_binding(binding, one.contracts.get(binding.index)) for binding in driver.implements],
    }


def _sandbox(one: Declared, driver: Driver) -> JsonObject | None:
    """The block with the real paths in it, and those that the file opens elsewhere: a login's state, arguments."""
    block: JsonObject = msgspec.to_builtins(driver.sandbox) if driver.sandbox is not None else {}
    fs: dict[str, list[str]] = {}
    for each in kind_of(driver.server).declared_paths(driver, one.folder):
        fs.setdefault(each.use, []).append(str(one.real_paths.get(each.path, each.real)))
    return ({**block, "fs": fs} if fs else block) or None


def _binding(binding: DriverBinding, contract: Contract | None) -> Binding:
    if contract is None:
        return Binding(tool_name=binding.tool_name, contract=binding.tool, version=None, file=None)
    file = contract.places.file
    return Binding(tool_name=binding.tool_name, contract=contract.id, version=contract.version, file=file)


def summary(one: Declared) -> JsonObject:
    """What the digest is made of, and what it means."""
    declared = declared_facts(one, one.driver) if one.driver is not None else {}
    return {DRIVER: one.key, "folder": str(one.folder), **declared, "files": one.covered}


def accepted_view(trusted: Trusted | None) -> Acceptance | None:
    if trusted is None:
        return None
    return Acceptance(digest=trusted.digest, by=trusted.by, at=rfc3339(trusted.at), policy_tags=trusted.tags)


def texts_of(one: Declared) -> dict[str, str]:
    """The short files of a folder, the contracts elsewhere and what its names lead to, as they are now. Raises Refused
    when they are others than those that were declared. Blocking."""
    folder = read_folder(FoundFolder(root=one.root, path=one.folder, mark=mark_of(one.folder)))
    outside = {name: digest for name, digest in one.files.items() if Path(name).is_absolute()}
    if folder_digest({**folder.digests, **outside, **one.resolved}) != one.digest:
        raise Refused("changed", f"the files of {one.segment} are changing", {"driver": one.key})
    texts = {name: data.decode("utf-8", "replace") for name, data in folder.texts.items()} | dict(one.resolved)
    for name in outside:
        try:
            texts[name] = Path(name).read_text("utf-8", "replace")
        except OSError:
            continue
    return texts


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    left = DIFFERENCE_LINES_MAX
    for name in sorted({**before, **now}):
        old, new = before.get(name, ""), now.get(name, "")
        if old == new:
            continue
        for line in difflib.unified_diff(
            old.splitlines(), new.splitlines(), f"{name} (accepted)", f"{name} (now)", lineterm="", n=2
        ):
            if not left:
                yield f"... more than {DIFFERENCE_LINES_MAX} lines"
                return
            left -= 1
            yield line


def _what(options: Mapping[str, Any]) -> Iterator[str]:
    """What is installed by it."""
    return (str(options[key]) for key in ("package", "url", "path", "image") if key in options)


def _place(secret: Secret) -> str:
    """With where it is, which may be a file or a variable that has nothing to do with the driver."""
    return secret.slug if secret.backend is None else f"{secret.slug} from {secret.backend}"


def unserved_contract(contract: Contract, name: str | None) -> ServedContract:
    """The view of a contract that no driver serves now, in the form of a served one (`CompiledContract.explained`)."""
    return ServedContract(
        contract=contract.id,
        version=contract.version,
        name=name or contract.id,
        file=contract.places.file,
        pinned=None,
        decided_by="",
        ranked=(),
        rejected=(),
        error="no_route",
    )


Record = Callable[[bytes], Awaitable[None]]  # on disk when it returns; raises StoreError

PACKAGES: Final = "packages"  # in the data folder
OWN_FILES: Final = ("DRIVER.md", "driver.py", "server.json", "SECRETS.md")  # of a driver beside a contract


Explain = Callable[[str], ServedContract | None]  # which driver serves a contract now, and why


class Tester(Protocol):
    async def run(self, declared: Declared, by: str, *, allow_mutation: bool) -> DriverExamples: ...


class Updater(Protocol):
    async def look(self, one: Declared) -> DriverUpdate: ...

    async def switch(self, one: Declared, candidate: str) -> SwitchedDriver: ...


class DriverService:
    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        record: Record,
        *,
        explain: Explain | None = None,
        tester: Tester | None = None,
        updater: Updater | None = None,
    ) -> None:
        """The last three: of a node that runs."""
        self.registry = registry
        self._explain = explain
        self._tester = tester
        self._updater = updater
        self._clock = clock
        self._record = record
        self._adding = asyncio.Lock()

    async def list_all(self) -> Drivers:
        declaration = await self.registry.current()
        return Drivers(
            drivers=tuple(self._summary(one) for one in declaration.drivers),
            drafts=tuple(Draft(id=path.name, folder=str(path)) for path in self.registry.sight.drafts),
            problems=tuple(problem_view(one) for one in declaration.problems if one.severity != "note"),
        )

    async def get(self, name: str) -> DriverDetail | ServedContract:
        """A driver, by its server's name, its id, id@major or folder, and what changed since it was accepted.

        Raises NotFound, Refused.
        """
        await self.registry.current()
        served = self._maybe_contract(name)
        if served is not None:
            return served
        one = self._find(name)
        accepted = self.registry.memory.maybe_trusted(one.folder)
        is_changed = accepted is not None and not one.trusted
        now = await asyncio.to_thread(texts_of, one) if is_changed else {}
        make = UnreadableDriver if one.driver is None else DriverDetail
        declared = {} if one.driver is None else declared_facts(one, one.driver)
        return make(
            **asdict(self._summary(one)),
            **declared,
            digest=one.digest,
            accepted=accepted_view(accepted),
            changed=tuple(sorted(changed_keys(one.covered, accepted.files))) if accepted is not None else (),
            difference=tuple(difference(accepted.texts, now)) if accepted is not None and is_changed else (),
            files=tuple(sorted(one.files)),
            problems=tuple(problem_view(each) for each in self._problems(one)),
            running=self._server(one),
        )

    async def add(self, adder: ServerAdder, request: DriverRequest, by: str, *, accept: bool) -> AddedDriver:
        """Write a driver for a server, once the server came up. `accept`: see `decide_classes`.

        The driver is not trusted: that is a decision of its own. Raises Refused, StoreError.
        """
        # A trial installs a package and starts processes, so an operator's requests run one after the other.
        async with self._adding:
            await self._record(self._line("add", request.key, by, {}))
            try:
                async with adder:
                    tried = await adder.try_out(request)
                    added = await adder.write(tried, decide_classes(tried.proposals, {}, accept=accept))
            except NotAdded as error:
                raise refused(error) from None
        await self.registry.refresh()
        return added.describe(self._summary(self._find(added.key)))

    async def trust(self, name: str, digest: str, by: str) -> DriverSummary:
        """Trust a driver. `digest`: of the folder that was looked at. Raises NotFound, Refused, StoreError."""
        await self.registry.refresh()
        one = self._trustable(name, digest)
        more = {
            "digest": one.digest,
            "policy_tags": list(one.driver.policy_tags if one.driver is not None else ()),
            "unsandboxed": self._is_unsandboxed(one),
        }
        await self._record(self._line("trust", one.key, by, more))
        return await self._trust(one, by)

    async def accept(self, key: str, digest: str, by: str) -> DriverSummary:
        """Trust a driver where the decision is on record already. Raises NotFound, Refused, StoreError."""
        return await self._trust(self._trustable(key, digest), by)

    def _trustable(self, name: str, digest: str) -> Declared:
        one = self._find(name)
        if one.driver is None or one.state is DriverState.REJECTED:
            raise Refused("rejected", f"{one.segment} cannot be used: {one.reason}", {"driver": one.key})
        if one.digest != digest:
            raise Refused("changed", f"the files of {one.segment} changed since they were shown", {"driver": one.key})
        return one

    async def _trust(self, one: Declared, by: str) -> DriverSummary:
        texts = await asyncio.to_thread(texts_of, one)
        await self.registry.memory.trust(
            Trusted(
                folder=str(one.folder),
                key=one.key,
                digest=one.digest,
                files=one.covered,
                texts=texts,
                tags=one.driver.policy_tags if one.driver is not None else (),
                summary=summary(one),
                by=by,
                at=self._clock.wall(),
            )
        )
        await self.registry.refresh()
        return self._summary(self._find(one.key))

    async def comparison(self, one: Declared) -> JsonObject:
        """What a person is shown in the inbox: the driver, or what it was and what it has become."""
        now = await asyncio.to_thread(texts_of, one)
        accepted = self.registry.memory.maybe_trusted(one.folder)
        if accepted is None:
            return {"definition": folder_view(summary(one), now, {"DRIVER.md"})}
        names = changed_keys(one.covered, accepted.files)
        return {
            "before": folder_view(accepted.summary, dict(accepted.texts), names),
            "after": folder_view(summary(one), now, names),
        }

    async def allow(self, name: str, host: str, by: str, *, revoke: bool = False) -> AllowedHosts:
        """Allow a host that the server may reach besides those of its file. Raises NotFound, Refused, StoreError."""
        await self.registry.refresh()
        one = self._find(name)
        if one.driver is None:
            raise Refused("rejected", f"{one.segment} cannot be used: {one.reason}", {"driver": one.key})
        host = host.lower()
        if not is_egress(host):
            raise Refused(
                "bad_host", "write api.example.com, api.example.com:443 or *.example.com, without path", {"host": host}
            )
        before = self.registry.memory.all.allowed.get(one.id, ())
        if revoke and host not in before:
            raise NotFound("host", host, before, few=True)
        after = tuple(each for each in before if each != host) + (() if revoke else (host,))
        if len(after) > HOSTS_MAX:
            raise Refused("too_many_hosts", f"{one.segment} has {HOSTS_MAX} hosts; allow * or a wider suffix instead")
        await self._record(self._line("revoke" if revoke else "allow", one.key, by, {"host": host}))
        await self.registry.memory.allow(one.id, after)
        await self.registry.refresh()
        return AllowedHosts(id=one.id, allowed=after)

    async def remove(self, name: str, by: str, *, forget: bool) -> RemovedDriver:
        """Remove the folder, and what was accepted of it. `forget`: also what was registered, which the next one of its
        major version is compared with (AIP-identity-4). Raises NotFound, StoreError."""
        await self.registry.refresh()
        try:
            one = self._find(name)
        except NotFound:
            if forget and (gone := self._forgettable(name)):
                await self._record(self._line("forget", name, by, {}))
                for key in gone:
                    await self.registry.memory.forget(key)
                return RemovedDriver(removed=None, forgotten=gone)
            raise
        await self._record(self._line("remove", one.key, by, {"digest": one.digest, "forget": forget}))
        removed = await asyncio.to_thread(_delete, one)
        await self.registry.memory.distrust(str(one.folder))
        forgotten: tuple[str, ...] = ()
        if forget:
            await self.registry.memory.allow(one.id, ())
            forgotten = (one.key,) if await self.registry.memory.forget(one.key) else ()
        await self.registry.refresh()
        if forget and one.driver is not None:
            await self.registry.wait_until_stopped()  # what runs is not taken from under it
            await remove_packages(self.registry.plan.data / PACKAGES, one.driver)
        return RemovedDriver(removed=removed, forgotten=forgotten)

    async def test(self, name: str, by: str, *, allow_mutation: bool) -> DriverExamples:
        """Run the examples of its contracts through this driver. Raises NotFound, Refused."""
        one = await self._running_driver(name)
        if self._tester is None:
            raise _not_here()
        return await self._tester.run(one, by, allow_mutation=allow_mutation)

    async def update(self, name: str, by: str, candidate: str | None) -> DriverUpdate | SwitchedDriver:
        """What the newest release of its server would change; with `candidate`, which that named, it is switched to.
        Raises NotFound, Refused, StoreError."""
        one = await self._running_driver(name)
        if self._updater is None:
            raise _not_here()
        if candidate is None:
            return await self._updater.look(one)
        await self._record(self._line("update", one.key, by, {"candidate": candidate}))
        return await self._updater.switch(one, candidate)

    async def _running_driver(self, name: str) -> Declared:
        await self.registry.refresh()
        one = self._find(name)
        if one.key not in self.registry.providers:
            state, reason = self.registry.state_of(one)
            said = f"{one.segment} is {state}" + (f": {reason}" if reason else "")
            raise Refused("not_running", said, {"driver": one.key})
        return one

    def _maybe_contract(self, name: str) -> ServedContract | None:
        """The contract of that name, where no driver has it."""
        if any(name in (one.key, one.id, one.folder.name, one.segment) for one in self.registry.declaration.drivers):
            return None
        served = self._explain(name) if self._explain is not None else None
        bound = [
            (one, contract)
            for one in self.registry.declaration.drivers
            for contract in one.contracts.values()
            if name in (contract.id, _qualified_name(contract))
        ]
        if served is None:
            if not bound:
                return None
            served = unserved_contract(bound[0][1], _qualified_name(bound[0][1]))
        known = {each.driver for each in served.ranked} | {each.driver for each in served.rejected}
        rejected = [*served.rejected]
        for one, _ in bound:  # those that are not even asked
            if one.key not in known:
                state, reason = self.registry.state_of(one)
                rejected.append(RejectedDriver(driver=one.key, phase=2, code=state, reason=reason or state))
        return msgspec.structs.replace(served, rejected=tuple(rejected))

    def _forgettable(self, name: str) -> tuple[str, ...]:
        kept = self.registry.memory.all.manifests
        return tuple(key for key in kept if name in (key, key.partition("@")[0]))

    def _find(self, name: str) -> Declared:
        drivers = self.registry.declaration.drivers
        called = [(one.key, one.id, one.folder.name, one.segment) for one in drivers]
        for way in range(4):
            found = [one for one, names in zip(drivers, called, strict=True) if names[way] == name]
            if len(found) == 1:
                return found[0]
            if found:
                keys = [str(one.folder) if one.state is DriverState.REJECTED else one.key for one in found]
                raise Refused("ambiguous", f"{name} is {' and '.join(keys)}", {"drivers": keys})
        raise NotFound("driver", name, [one.segment for one in drivers], few=True)

    def _summary(self, one: Declared) -> DriverSummary:
        state, reason = self.registry.state_of(one)
        driver = one.driver
        return DriverSummary(
            segment=one.segment,
            id=one.id,
            key=one.key,
            version=driver.version if driver is not None else None,
            name=driver.name if driver is not None else None,
            state=state,
            reason=reason,
            trusted=one.trusted,
            server_kind=server_kind(driver) if driver is not None else None,
            transport=driver.transport if driver is not None else None,
            sandboxed=not self._is_unsandboxed(one),
            contracts=tuple(contract.id for contract in one.contracts.values()),
            root=one.root.kind,
            folder=str(one.folder),
            found=tuple(problem_view(each) for each in self._findings(one)),
            warnings=sum(each.severity == "warning" for each in self._problems(one)),
        )

    def _server(self, one: Declared) -> RunningServer | None:
        provider = self.registry.providers.get(one.key)
        return None if provider is None else provider.running()

    def _problems(self, one: Declared) -> tuple[Problem, ...]:
        return tuple(dict.fromkeys((*one.problems, *self._findings(one))))

    def _findings(self, one: Declared) -> tuple[Problem, ...]:
        """Problems that only its server shows, and collisions with what others offer."""
        provider = self.registry.providers.get(one.key)
        if provider is None:
            return ()
        files = {str(one.folder / DRIVER_FILE), *(contract.places.file for contract in one.contracts.values())}
        offered = (each for each in self.registry.offered_problems() if each.file in files)
        return (*provider.problems, *offered)

    def _is_unsandboxed(self, one: Declared) -> bool:
        return self.registry.plan.drivers.sandbox.get(one.id) == "off"

    def _line(self, method: str, key: str, by: str, more: JsonObject) -> bytes:
        """The row for the audit log."""
        return msgspec.json.encode(
            {
                "at": rfc3339(self._clock.wall()),
                "who": by,
                "via": "operator",
                "method": f"drivers/{method}",
                "tool": server_name(key),
                "driver": key,
                "args_sha256": None,
                "verdict": "decided",
                "outcome": "decided",
                "ms": 0.0,
                **more,
            }
        )


def refused(error: NotAdded) -> Refused:
    """Return the error of the operation for a server that was not added."""
    details: JsonObject = {"problems": [str(problem) for problem in error.problems]} if error.problems else {}
    return Refused(error.code, error.message, {**details, "hint": error.hint} if error.hint else details)


def _not_here() -> Refused:
    return Refused("not_running", "this takes a node that runs: interlock serve")


def _delete(one: Declared) -> str:
    """Delete the folder. Nothing behind a link is touched, nor a contract that a driver only stands beside."""
    folder = one.folder
    if one.root.below_tools:
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
    return None if isinstance(name, Problem) else ".".join(name)
