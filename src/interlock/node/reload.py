"""Reloading of the configuration while the node runs.

Theory of operation. The files are compared every second, and at once upon SIGHUP. A file that cannot be used changes
nothing: the node goes on as before and reports the problem. Otherwise the new plan is compared with the plan in effect.
Each changed key has a step that puts it into effect (`ReloadSteps`, and `reload_steps` of capabilities); a key without
a step is reported and takes effect at the next start. Steps are taken one after the other, each with the old plan and
the new one.

Which sections may change at once is declared on the fields of the plan (`AT_ONCE` of `config.keys`), and a test
compares the declarations with the steps.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from interlock.approvals.guard_changes import GuardChanges
from interlock.approvals.notifier import make_channels
from interlock.config.difference import as_written, differences, section_of, without
from interlock.config.load import ConfigInvalid, Loaded, device_files
from interlock.config.plan import Plan
from interlock.core.background import BackgroundTasks
from interlock.core.clock import Clock, rfc3339
from interlock.core.part import CannotStart
from interlock.guard.budgets import is_limited
from interlock.operator.api import ConfigurationState
from interlock.store.ports import StoreError

if TYPE_CHECKING:
    from interlock.node.capability_parts import NodeParts

log = logging.getLogger("interlock.config")

LOOK_S: Final = 1.0

Read = Callable[[], Loaded]  # raises ConfigInvalid
ReloadStep = Callable[[Plan, Plan], Awaitable[None]]  # called with the old plan and the new one
_Seen = tuple[tuple[int, int, int] | str | None, ...]


class Reload:
    """The part of a node that watches the configuration files and applies their changes.

    `plan` is the plan in effect. `problem` says why the files cannot be used, and `restart_for` names the changed keys
    that take effect only at the next start. Both appear in the node's status.
    """

    def __init__(
        self,
        read: Read,
        paths: tuple[Path, ...],
        plan: Plan,
        steps: Mapping[str, ReloadStep],
        clock: Clock,
        guard_changes: GuardChanges | None = None,
    ) -> None:
        """Prepare to watch `paths`. `steps` maps a key or section to the function that applies a change of it.
        `guard_changes` holds back unsigned changes that loosen the guard.
        """
        self._guard_changes = guard_changes
        self._read, self._paths, self._steps, self._clock = read, paths, steps, clock
        self._read_wall = clock.wall()
        self._seen = _file_states(paths, plan.workspace)
        self._asked = asyncio.Event()
        self._work = BackgroundTasks()
        self.plan = plan  # in effect, but for `restart_for`
        self.problem: str | None = None
        self.restart_for: tuple[str, ...] = ()

    async def open(self) -> None:
        if sys.platform != "win32":
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked.set)
        if self._guard_changes is not None:
            self._guard_changes.signed.subscribe(lambda _: self._asked.set())
        self._work.begin(self._watch(), "configuration")

    async def close(self) -> None:
        await self._work.close()
        if sys.platform != "win32":
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    def status(self) -> ConfigurationState:
        return ConfigurationState(
            files=tuple(str(path) for path in self._paths),
            read_at=rfc3339(self._read_wall),
            problem=self.problem,
            restart_for=tuple(as_written(key) for key in self.restart_for),
        )

    async def _watch(self) -> None:
        """Look for changed files every LOOK_S, and at once after the signal SIGHUP."""
        while True:
            try:
                await asyncio.wait_for(self._asked.wait(), LOOK_S)
            except TimeoutError:
                if _file_states(self._paths, self.plan.workspace) == self._seen:
                    continue
            self._asked.clear()
            try:
                await self.take_up()
            except (CannotStart, StoreError) as unusable:
                self.problem = str(unusable)
                log.error("the configuration has changed and this cannot be taken up: %s", unusable)
            except Exception:
                log.exception("the configuration could not be taken up")
                self.problem = "internal error while it was taken up; the log has it"

    async def take_up(self) -> None:
        """Read the configuration files again and apply what changed. If they cannot be used, nothing changes."""
        self._seen = _file_states(self._paths, self.plan.workspace)
        try:
            # Reading asks the file system only, but files may lie on a slow one.
            loaded = await asyncio.to_thread(self._read)
        except ConfigInvalid as invalid:
            first = invalid.problems[0]
            place = ":".join(str(part) for part in (first.file, first.line) if part is not None)
            self.problem = f"{place + ': ' if place else ''}{first.message}"
            log.error(
                "the configuration has changed and cannot be used: %s; the node keeps its configuration", self.problem
            )
            return
        if _file_states(self._paths, self.plan.workspace) != self._seen:
            return  # written while it was read: the next look finds that, and it is read again
        self._read_wall = self._clock.wall()
        plan, self.problem = _keep_faulty_devices(loaded.plan, self.plan)
        if self.problem is not None:
            log.error("the configuration has changed: %s", self.problem)
        if loaded.paths != self._paths:
            self._paths, self._seen = loaded.paths, ()
        if self._guard_changes is not None:
            plan = await self._guard_changes.hold_back(plan)
        await self._put_into_effect(plan)

    async def _put_into_effect(self, new: Plan) -> None:
        """Apply a new plan: run the function for every key that changed.

        If steps fail, the remaining steps still run, and the first error is raised at the end.

        Keys may share a step, which then runs once. If a step fails, its keys keep their old values in the plan, so the
        next reload finds them changed again. Keys of servers keep the new ones, as servers are replaced one by one.
        """
        old, changed = self.plan, differences(self.plan, new)
        if not changed:
            self.restart_for = ()
            return
        steps = {key: self._steps.get(key) or self._steps.get(section_of(key)) for key in changed}
        self.restart_for = tuple(key for key, step in steps.items() if step is None)
        wanted = self.plan = without(new, self.restart_for, old)
        failed: dict[ReloadStep, Exception] = {}
        for step in dict.fromkeys(step for step in steps.values() if step is not None):
            try:
                await step(old, wanted)
            except Exception as error:
                failed[step] = error
        # Not in effect, so that it differs again when the files are next read. Servers are taken up one by one.
        left = tuple(key for key, step in steps.items() if step in failed and section_of(key) != "servers")
        self.plan = without(wanted, left, old)
        at_once = [key for key, step in steps.items() if step is not None and step not in failed]
        if at_once:
            log.info("the configuration has changed: %s", ", ".join(map(as_written, at_once)))
        if self.restart_for:
            later = ", ".join(map(as_written, self.restart_for))
            log.warning("the configuration has changed: %s from the next start", later)
        if failed:
            first, *others = failed.values()
            for other in others:
                log.error("the configuration has changed and this cannot be taken up either: %s", other)
            raise first


def _file_states(paths: tuple[Path, ...], workspace: Path) -> _Seen:
    """Return a value to compare with an earlier one: it changes whenever a configuration file or the description of a
    device changes.
    """
    try:
        devices = device_files(workspace)
    except OSError:
        devices = []
    return (*map(_file_state, paths), *(fact for file in devices for fact in (file.name, _file_state(file))))


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  (the same, without a Path per second)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _keep_faulty_devices(new: Plan, old: Plan) -> tuple[Plan, str | None]:
    """Return the new plan, in which a device keeps its previous description if the new description is invalid. Also
    return a text about the first such device.

    A device that is new and has an invalid description is marked as failed, as it would be at a start. In both cases
    the other changes are applied.
    """
    before = {device.segment: device for device in old.devices.described if device.fault is None}
    faulty = [device for device in new.devices.described if device.fault is not None and device.segment in before]
    if not faulty:
        return new, None
    described = tuple(
        before.get(device.segment, device) if device in faulty else device for device in new.devices.described
    )
    devices = msgspec.structs.replace(new.devices, described=described)
    problem = f"{faulty[0].fault}; the device {faulty[0].segment} keeps its description"
    return msgspec.structs.replace(new, devices=devices), problem


class ReloadSteps:
    """The functions that apply a changed configuration to the parts of a running node, by the key or section that
    changed.
    """

    def __init__(self, node: "NodeParts") -> None:
        self._node = node
        self._stores, self._approvals, self._calls = node.stores, node.approvals, node.calls
        self._links, self._fronts = node.links, node.fronts
        self._capabilities = tuple(node.capabilities.values())

    def by_key(self) -> Mapping[str, ReloadStep]:
        steps: dict[str, ReloadStep] = {
            "servers": self._take_servers,
            "tools": self.take_tools,
            "gate": self.take_tools,
            "approvals": self._take_approvals,
            "access": self._take_access,
            "anchors": self._take_anchors,
            "budget": self._take_budget,
            "withheld_secrets": self._take_secrets,
        }
        for capability in self._capabilities:
            steps |= capability.reload_steps(self)
        return steps

    # Steps that capabilities use in their own

    def limit(self, new: Plan) -> None:
        """Make a new plan the current one, and apply its limits on calls."""
        self._stores.current.replace(new)
        self._calls.budgets.limit(new.budget.limits, enforced=is_limited(new))

    def take_segments(self, new: Plan) -> None:
        """Put a new plan into effect, and let capabilities react to servers, devices and children that were added or
        removed.
        """
        self._stores.current.replace(new)
        for capability in self._capabilities:
            capability.on_segments_changed(new)

    async def take_tools(self, old: Plan, new: Plan) -> None:
        """Apply changed rules about tools, and list the tools of all servers again."""
        self.limit(new)
        self._calls.catalog.replan(new)
        await self._links.servers.restock()
        for capability in self._capabilities:
            await capability.on_rules_changed(new)

    # Steps of the common parts

    async def _take_servers(self, old: Plan, new: Plan) -> None:
        self.take_segments(new)
        self._fronts.public.replan(new)
        await self._links.servers.take(old, new)
        for capability in self._capabilities:
            await capability.on_servers_changed()

    async def _take_secrets(self, old: Plan, new: Plan) -> None:
        """Start links again that may use a secret now, or no longer."""
        self._stores.current.replace(new)
        for segment in {use.segment for use in {*old.withheld_secrets} ^ {*new.withheld_secrets}}:
            if (keeper := self._calls.keepers.get(segment)) is not None and keeper.is_offered:
                await keeper.restart()

    async def _take_budget(self, old: Plan, new: Plan) -> None:
        """Apply new budgets to subservers that register from now on (MCP-AX 11.4). Subservers that are already
        registered keep the old budgets.

        A tool's cost is part of its listing.
        """
        self.limit(new)
        if old.budget.units != new.budget.units:
            await self.take_tools(old, new)

    async def _take_approvals(self, old: Plan, new: Plan) -> None:
        """Apply the new rules to future approvals. Approvals that are already waiting keep their time limit."""
        self._stores.current.replace(new)
        self._approvals.inbox.replan(new.approvals)
        await self._approvals.notifier.replan(make_channels(new.approvals, self._stores.clock))

    async def _take_access(self, old: Plan, new: Plan) -> None:
        """Apply new [[access]] entries. Connected clients are told that their lists have changed."""
        self.limit(new)
        self._stores.tokens.replan(new.access)
        self._fronts.public.replan(new)
        self._calls.audience.readmit(self._stores.tokens.as_it_is)
        self._fronts.lines.replan()
        for capability in self._capabilities:
            await capability.on_access_changed(old, new)
        self._fronts.public.dismiss_unwelcome()

    async def _take_anchors(self, old: Plan, new: Plan) -> None:
        """Apply new anchors, the keys that the node trusts. Unused approvals and grants end if their key may no longer
        give them.

        Authority that a subserver proved earlier remains valid until its link ends.
        """
        await self._approvals.anchors.replan(new.anchors)
        self._stores.current.replace(new)
        await self._approvals.enrolments.replan()
        await self._approvals.revocation.void_unfounded()
