"""Updates: a newer release of a driver's server is checked before it is used (AIP-30.install-3).

`look` installs the newest release beside the running one, starts it once in the driver's sandbox, asks for its tools
and reports the differences. `switch` accepts only a release that `look` has returned. It replaces the record of the
installed release and restarts the server.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.config.plan import Plan
from interlock.drivers.api import DriverUpdate, SwitchedDriver
from interlock.drivers.install.installation import Locked, Locks, differences
from interlock.drivers.registry.operations import difference
from interlock.drivers.registry.registry import Registry
from interlock.drivers.trial import TrialResult, TrialRunner
from interlock.drivers.workspace.declaration import Declared
from interlock.store.ports import Damaged
from interlock.wire.jsonrpc.codec import decode_value
from interlock.wire.refusal import Refused

JsonObject = dict[str, Any]

LINES_MAX: Final = 1_000
CANDIDATES_MAX: Final = 100
_ELSEWHERE: Final = frozenset(("present", "vendored"))  # not installed by the node, so there is nothing to update


class UpdateService:
    """A service that checks newer releases of servers and remembers which of them `switch` may use."""

    def __init__(self, registry: Registry, locks: Locks) -> None:
        self._registry = registry
        self._locks = locks
        self._candidates: dict[tuple[str, str], Locked] = {}  # by the driver's key and what was shown

    async def look(self, declared: Declared) -> DriverUpdate:
        """Install and start the newest release beside the running one, and return what differs.

        Raise Refused if the release cannot be installed or started or the node does not install this server, and
        StoreError if the store fails.
        """
        plan = self._registry.plan
        try:
            before = await self._locks.get(declared.key)
        except Damaged:
            before = None  # an update repairs a damaged record
        new = await _try_out(plan, declared, newest=True)
        if new.installed is None or not new.is_up:
            why = new.reason or new.state.value
            raise Refused(
                "update_failed",
                f"the newest release of {declared.segment} does not come up: {why}",
                {"driver": declared.key},
            )
        after = new.installed.lock
        if after.method in _ELSEWHERE:
            raise Refused(
                "nothing_to_update", f"{declared.segment} is not installed from anywhere", {"driver": declared.key}
            )
        changes = () if before is None else differences(before, after)
        is_other = before is None or bool(changes)
        candidate = hashlib.sha256(msgspec.json.encode(after)).hexdigest() if is_other else None
        if candidate is not None:
            if len(self._candidates) >= CANDIDATES_MAX:
                self._candidates.clear()
            self._candidates[declared.key, candidate] = after
        provider = self._registry.providers.get(declared.key)
        listing = provider.listing if provider is not None else None
        tools: list[Any]
        if listing is not None:
            tools = [decode_value(raw) for raw in listing.tools.raws]
        else:  # the server of the release in use has not listed its tools yet
            tools = list((await _try_out(plan, declared, newest=False)).tools)
        old = {str(tool.get("name")): tool for tool in tools if isinstance(tool, dict)}
        now = {str(tool.get("name")): tool for tool in new.tools}
        return DriverUpdate(
            id=declared.id,
            key=declared.key,
            before=before.version if before is not None else None,
            to=after.version,
            changes=tuple(changes),
            state=new.state.value,
            reason=new.reason,
            added=tuple(sorted(now.keys() - old.keys())),
            removed=tuple(sorted(old.keys() - now.keys())),
            changed=tuple(sorted(name for name in old.keys() & now.keys() if old[name] != now[name])),
            difference=tuple(difference(_format(old), _format(now), ("in use", "newest"), LINES_MAX)),
            candidate=candidate,
        )

    async def switch(self, declared: Declared, candidate: str) -> SwitchedDriver:
        """Switch to a release that `look` has returned, and restart the server.

        Raise Refused if `look` has not returned this release, and StoreError if it cannot be recorded.
        """
        lock = self._candidates.pop((declared.key, candidate), None)
        if lock is None:
            raise Refused(
                "not_looked_at", f"look at the newest release of {declared.segment} first", {"driver": declared.key}
            )
        await self._locks.put(declared.key, lock)
        await self._registry.renew(declared.key)
        return SwitchedDriver(id=declared.id, key=declared.key, to=lock.version)


async def _try_out(plan: Plan, declared: Declared, *, newest: bool) -> TrialResult:
    async with TrialRunner(plan, newest=newest) as runner:
        return await runner.run_once(declared, lambda _: None)


def _format(tools: Mapping[str, JsonObject]) -> dict[str, str]:
    """Return the definition of each tool as formatted JSON, by name."""
    return {
        name: msgspec.json.format(msgspec.json.encode(tool, order="sorted")).decode() for name, tool in tools.items()
    }
