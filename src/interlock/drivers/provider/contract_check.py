"""The contract check: compares the lists of a server with the contracts that its driver binds, and decides which hold.

`check` has no side effects, but how long it takes depends on the server's schemas, so the provider runs it in a thread.
If a server lacks a bound tool, or has one that does not fit, the driver becomes rejected. With the setting
drivers.on_mismatch = "drop_binding" it becomes partial instead and keeps its other bindings, if there are any.

`Snapshots` store the inputs and the result of a driver's last check, so that a lazy start needs no process. They
contain only digests: a tool definition is never served from a snapshot (MCP-AX 13.1).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Final, Literal

import msgspec

from interlock.config.problems import nearest
from interlock.core.clock import Clock
from interlock.drivers.driver_state import DriverState
from interlock.drivers.install.installation import Installed
from interlock.drivers.protocol.binding.match import Bound, HookEntry, match
from interlock.drivers.protocol.model import Contract, Driver
from interlock.drivers.protocol.problems import FileProblem
from interlock.links.link import ServerFacts
from interlock.links.listing import Listing
from interlock.store.ports import KeyValue, StoreError
from interlock.wire.jsonrpc.codec import decode_value

log = logging.getLogger("interlock.drivers")

BUCKET: Final = "driver_snapshots"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check, with a digest of its inputs."""

    about: str  # the driver's folder, its contracts and what was installed
    protocol: str
    tools: dict[str, str]  # contract id -> digest of the tool's definition


def about(folder: str, installed: Installed | None, contracts: Iterable[Contract]) -> str:
    """Return a digest of the inputs of a check. `folder` is the digest of the driver's files."""
    package = "" if installed is None else f"{installed.version} {installed.lock.integrity}"
    return sha256(msgspec.json.encode([folder, package, list(contracts)])).hexdigest()


class Snapshots:
    """Storage of the last check result of one driver."""

    def __init__(self, kv: KeyValue, clock: Clock, key: str) -> None:
        self._kv = kv
        self._clock = clock
        self._key = key
        self._last: Snapshot | None = None

    async def find(self, wanted: str) -> Snapshot | None:
        """Return the last snapshot. Return None if there is none, it is damaged, or its inputs differ from `wanted`.

        Raise StoreError if the store cannot be read.
        """
        entry = await self._kv.get(BUCKET, self._key, self._clock.wall())
        try:
            snapshot = None if entry is None else msgspec.json.decode(entry.value, type=Snapshot)
        except msgspec.DecodeError:
            return None
        self._last = snapshot
        return snapshot if snapshot is not None and snapshot.about == wanted else None

    async def keep(self, snapshot: Snapshot) -> None:
        if snapshot == self._last:
            return
        self._last = snapshot
        try:
            await self._kv.put(BUCKET, self._key, msgspec.json.encode(snapshot), self._clock.wall())
        except StoreError as error:
            log.warning("what %s was found to offer could not be kept: %s", self._key, error)


MISSING: Final = "mcp_tool_missing"
CHANGED: Final = "definition_changed"

OnMismatch = Literal["reject", "drop_binding"]


class ContractVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check: the resulting state of the driver, the bindings that hold, and all problems, errors first."""

    state: DriverState
    bound: Mapping[str, Bound]  # by the contract's id
    problems: tuple[FileProblem, ...] = ()

    @property
    def reason(self) -> str | None:
        return next((problem.message for problem in self.problems if problem.severity == "error"), None)

    @property
    def code(self) -> str | None:
        return next((problem.code for problem in self.problems if problem.severity == "error"), None)


def check(
    driver: Driver,
    contracts: Mapping[int, Contract],
    listing: Listing,
    on_mismatch: OnMismatch,
    earlier: Mapping[str, Bound],
    entry: HookEntry | None = None,
) -> ContractVerdict:
    """Compare the lists of a server with the contracts that its driver binds.

    `contracts` maps the index of each binding to its contract. `earlier` holds the bindings of the previous check: if a
    tool definition has changed since then but still fits, this is only reported as a note (AIP-tools-10). `entry`
    describes the driver's driver.py, or is None if the driver has none.
    """
    raws = {name: raw for (name, _), raw in zip(listing.tools.items, listing.tools.raws, strict=True)}
    bound: dict[str, Bound] = {}
    problems: list[FileProblem] = []
    for binding in driver.implements:
        contract = contracts[binding.index]
        pointer = f"{binding.pointer}/metadata/mcp/tool_name"
        raw = raws.get(binding.tool_name)
        if raw is None:  # AIP-tools-1
            similar = nearest(binding.tool_name, raws)
            names = ", ".join(sorted(raws)[:20]) or "none"
            hint = f"did you mean {similar}?" if similar is not None else f"it lists {names}"
            message = f"the server lists no tool {binding.tool_name}"
            problems.append(driver.places.problem(pointer, MISSING, message, hint))
            continue
        outcome = match(driver, binding, contract, decode_value(raw), entry=entry)
        if isinstance(outcome, tuple):  # AIP-tools-2 and -3
            problems += outcome
            continue
        bound[contract.id] = outcome
        problems += outcome.warnings
        before = earlier.get(contract.id)
        if before is not None and before.tool_digest != outcome.tool_digest:
            message = f"the server's definition of {binding.tool_name} has changed and still fits its contract"
            hint = "nothing needs to be done"
            problems.append(driver.places.problem(pointer, CHANGED, message, hint, severity="note"))
    problems.sort(key=lambda problem: ("error", "warning", "note").index(problem.severity))
    if all(problem.severity != "error" for problem in problems):
        return ContractVerdict(state=DriverState.READY, bound=bound, problems=tuple(problems))
    if on_mismatch == "drop_binding" and bound:  # AIP-tools-9
        return ContractVerdict(state=DriverState.PARTIAL, bound=bound, problems=tuple(problems))
    return ContractVerdict(state=DriverState.REJECTED, bound={}, problems=tuple(problems))  # AIP-tools-3, AIP-tools-9


def greeting_warnings(driver: Driver, facts: ServerFacts, transport: str) -> Iterator[FileProblem]:
    """Yield warnings about harmless differences between what the server reports on connecting and what the file
    declares.
    """
    target = driver.protocol_version
    if target is not None and facts.version < target:  # AIP-proto-3
        message = f"the server speaks MCP {facts.version}, older than the {target} it is declared for"
        hint = f"write protocol_version: {facts.version}, or update the server"
        yield driver.places.problem("/protocol_version", "protocol_below_target", message, hint, severity="warning")
    if transport != driver.transport:  # AIP-transport-10
        message = f"the server refuses {driver.transport} and speaks {transport}"
        hint = f"write transport: {transport}"
        yield driver.places.problem("/transport", "transport_mismatch", message, hint, severity="warning")
