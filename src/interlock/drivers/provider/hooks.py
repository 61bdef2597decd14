"""Hooks of one driver (interfaces.Hooks): arguments and values, or a DriverRefusal, after which nothing is sent.

Whatever goes wrong in a hook is `internal` towards the caller, who can do nothing about it; the log and the record say
which hook and why.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.drivers.protocol.binding.hook_entry import Entry, HookInvalid, check_entry, read_driver_result
from interlock.drivers.protocol.binding.match import Bound
from interlock.drivers.protocol.binding.results import upstream_error
from interlock.drivers.protocol.errors import DriverRefusal
from interlock.drivers.protocol.files.driver import DRIVER_FILE
from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.provider.hook_process import HookFailed, HookProcess

log = logging.getLogger("interlock.drivers")

BUILD: Final = "build_arguments"
PARSE: Final = "parse_tool_result"
TRANSFORM: Final = "transform"


class DriverHooks:
    """Made by `load_hooks`."""

    def __init__(self, driver: Driver, entry: Entry, process: HookProcess, problems: tuple[Problem, ...]) -> None:
        self.entry = entry
        self.problems = problems
        self.process = process
        self._driver = driver

    def makes_arguments(self, bound: Bound) -> bool:
        return self.entry.builds or any(each.transform is not None for each in bound.feeding.inputs.values())

    async def arguments(
        self, bound: Bound, given: Mapping[str, Any], context: Mapping[str, Any]
    ) -> dict[str, Any] | DriverRefusal:
        try:
            transformed = await self._transform(bound, given)
            mapped = bound.feeding.arguments(given, context, transformed)
            if self.entry.builds and not isinstance(mapped, DriverRefusal):
                mapped = await self._build_arguments(bound, given, mapped, context)
        except HookFailed as failed:
            return self._internal(bound, BUILD, str(failed))
        return mapped if isinstance(mapped, DriverRefusal) else bound.check_arguments(mapped)

    def reads_results(self, bound: Bound) -> bool:
        return self.entry.parses

    async def value(self, bound: Bound, result: Mapping[str, Any]) -> Any:
        args = {"result": result, "tool_id": bound.contract.id, "tool_name": bound.tool_name}  # AIP-define-3
        is_error = result.get("isError") is True
        try:
            made = read_driver_result(self._driver, await self.process.ask(PARSE, args=args))
        except (HookFailed, HookInvalid) as failed:
            error = self._internal(bound, PARSE, str(failed))
            return upstream_error(result) if is_error else error
        if isinstance(made, DriverRefusal):
            return made
        # AIP-tools-13: a hook may name the failure of a server, and not make a success of it.
        return upstream_error(result) if is_error else bound.satisfying(made)

    async def stop(self) -> None:
        await self.process.stop()

    async def _transform(self, bound: Bound, given: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = {
            name: (each.transform, given[name])
            for name, each in bound.feeding.inputs.items()
            if each.transform is not None and name in given
        }
        if not wanted:
            return {}
        made = await self.process.ask(TRANSFORM, values=wanted)
        if not isinstance(made, dict) or made.keys() != wanted.keys():
            raise HookFailed("its transforms gave other values than were asked for")
        return made

    async def _build_arguments(
        self, bound: Bound, given: Mapping[str, Any], mapped: Mapping[str, Any], context: Mapping[str, Any]
    ) -> dict[str, Any]:
        args = {
            "input": given,  # AIP-define-2
            "mapped": mapped,
            "context": context,
            "tool_id": bound.contract.id,
            "tool_name": bound.tool_name,
        }
        made = await self.process.ask(BUILD, args=args)
        if not isinstance(made, dict):  # AIP-define-2
            raise HookFailed("it returns no dict")
        return made

    def _internal(self, bound: Bound, hook: str, why: str) -> DriverRefusal:
        log.warning("driver %s: %s for %s: %s", self._driver.segment, hook, bound.contract.id, why)
        cause = {"driver": self._driver.key, "hook": hook, "reason": why}
        # AIP-define-2, AIP-define-5
        return DriverRefusal(code="internal", message="a hook of this tool's driver failed", cause=cause)


async def load_hooks(driver: Driver, contracts: Collection[str], folder: Path, process: HookProcess) -> DriverHooks:
    """`contracts`: the ids of those the driver binds. Raises HookFailed, SandboxFailed, ChildStartFailed."""
    entry = await process.load()
    written = await asyncio.to_thread(_as_mapping, folder / DRIVER_FILE)
    if "server" not in written and "server" in entry.manifest:  # it stands in server.json
        written = {**written, "server": entry.manifest["server"]}
    problems = check_entry(driver, entry, written, contracts)
    refused = next((each for each in problems if each.severity == "error"), None)
    if refused is not None:
        raise HookFailed(refused.message, refused.code)
    return DriverHooks(driver, entry, process, problems)


def _as_mapping(file: Path) -> Mapping[str, Any]:
    try:
        reading = read_frontmatter(file.read_bytes(), str(file))
    except OSError as error:
        raise HookFailed(f"{file.name} cannot be read: {error.strerror}") from error
    return {} if reading.value is None else reading.value.data
