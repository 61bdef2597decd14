"""A changed configuration, taken up while the node runs.

The files are looked at every second, and at once upon SIGHUP. One that cannot be used changes nothing: the node goes on
as it was and says why. What cannot change in a running node is named, and waits for the next start.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from interlock.config.device_files import device_files
from interlock.config.difference import as_written, differences, section_of, without
from interlock.config.load import ConfigInvalid, Loaded
from interlock.config.plan import Plan
from interlock.core.clock import Clock, rfc3339
from interlock.core.start_errors import CannotStart
from interlock.operator.api import ConfigurationState
from interlock.store.ports import StoreError

log = logging.getLogger("interlock.config")

LOOK_S: Final = 1.0

Read = Callable[[], Loaded]  # raises ConfigInvalid
Take = Callable[[Plan, Plan], Awaitable[None]]  # the old plan, the new one
_Seen = tuple[tuple[int, int, int] | str | None, ...]


class Reload:
    def __init__(
        self, read: Read, paths: tuple[Path, ...], plan: Plan, takes: Mapping[str, Take], clock: Clock
    ) -> None:
        """`takes`: for a key, or the start of one, what puts a change into effect."""
        self._read = read
        self._paths = paths
        self._takes = takes
        self._clock = clock
        self._read_wall = clock.wall()
        self._seen = _look(paths, plan.workspace)
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.plan = plan  # in effect, but for `restart_for`
        self.problem: str | None = None
        self.restart_for: tuple[str, ...] = ()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGHUP, self._asked.set)
        self._task = loop.create_task(self._watch(), name="configuration")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
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
        while True:
            try:
                await asyncio.wait_for(self._asked.wait(), LOOK_S)
            except TimeoutError:
                if _look(self._paths, self.plan.workspace) == self._seen:
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
        self._seen = _look(self._paths, self.plan.workspace)
        try:
            # Reading asks the file system only, but files may lie on a slow one.
            loaded = await asyncio.to_thread(self._read)
        except ConfigInvalid as invalid:
            first = invalid.problems[0]
            place = ":".join(str(part) for part in (first.file, first.line) if part is not None)
            self.problem = f"{place + ': ' if place else ''}{first.message}"
            log.error("the configuration has changed and cannot be used: %s; the node goes on as it was", self.problem)
            return
        if _look(self._paths, self.plan.workspace) != self._seen:
            return  # written while it was read: the next look finds that, and it is read again
        self._read_wall = self._clock.wall()
        plan, self.problem = _with_devices_kept(loaded.plan, self.plan)
        if self.problem is not None:
            log.error("the configuration has changed: %s", self.problem)
        if loaded.paths != self._paths:
            self._paths, self._seen = loaded.paths, ()
        await self._put_into_effect(plan)

    async def _put_into_effect(self, new: Plan) -> None:
        old, changed = self.plan, differences(self.plan, new)
        if not changed:
            self.restart_for = ()
            return
        takes = {key: self._take_for(key) for key in changed}
        self.restart_for = tuple(key for key, take in takes.items() if take is None)
        wanted = self.plan = without(new, self.restart_for, old)
        failed: dict[Take, Exception] = {}
        for take in dict.fromkeys(take for take in takes.values() if take is not None):
            try:
                await take(old, wanted)
            except Exception as error:  # it keeps nothing else from being taken up: an anchor that is gone is gone
                failed[take] = error
        # Not in effect, so that it differs again when the files are next read. Servers are taken up one by one.
        left = tuple(key for key, take in takes.items() if take in failed and section_of(key) != "servers")
        self.plan = without(wanted, left, old)
        at_once = [key for key, take in takes.items() if take is not None and take not in failed]
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

    def _take_for(self, key: str) -> Take | None:
        return self._takes.get(key) or self._takes.get(section_of(key))


def _look(paths: tuple[Path, ...], workspace: Path) -> _Seen:
    """The files read, and the descriptions of devices, also those that could not be read."""
    try:
        devices = device_files(workspace)
    except OSError:
        devices = []
    return (*map(_facts, paths), *(fact for file in devices for fact in (file.name, _facts(file))))


def _facts(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (the same, without a Path per second)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _with_devices_kept(new: Plan, old: Plan) -> tuple[Plan, str | None]:
    """A device whose description is wrong now goes on as it was described before, and why; a new one with a wrong
    description is failed, as at a start. Neither keeps the rest from being taken up."""
    before = {one.segment: one for one in old.devices.described if one.fault is None}
    wrong = [one for one in new.devices.described if one.fault is not None and one.segment in before]
    if not wrong:
        return new, None
    described = tuple(before.get(one.segment, one) if one in wrong else one for one in new.devices.described)
    devices = msgspec.structs.replace(new.devices, described=described)
    told = f"{wrong[0].fault}; the device {wrong[0].segment} goes on as it was"
    return msgspec.structs.replace(new, devices=devices), told
