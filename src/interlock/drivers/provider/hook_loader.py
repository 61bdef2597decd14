"""Loads a driver's driver.py into a process of its own, and ends that process."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from interlock.drivers.kinds.kind import HOMES
from interlock.drivers.protocol.files.driver import ENTRY
from interlock.drivers.protocol.model import Binding, Driver
from interlock.drivers.provider.environment import DriverEnvironment
from interlock.drivers.provider.hook_process import HookFailed, HookPlan, HookProcess
from interlock.drivers.provider.hooks import DriverHooks, load_hooks
from interlock.process.launch import ChildStartFailed
from interlock.process.sandbox.errors import SandboxFailed


class LoadFailed(msgspec.Struct, frozen=True, kw_only=True):
    """`is_final`: the file does not fit; otherwise it may be tried again later."""

    code: str
    message: str
    is_final: bool


class HookLoader:
    def __init__(
        self,
        driver: Driver,
        bindings: Mapping[str, Binding],
        environment: DriverEnvironment,
        folder: Path,
        files: Mapping[str, str],
    ) -> None:
        """`files`: the digest of each file of the trusted folder."""
        self._driver = driver
        self._bindings = bindings
        self._folder = folder
        self._limits = environment.connector_parts.limits
        self._process = HookProcess(
            HookPlan(
                name=driver.key,
                folder=folder.absolute(),
                home=environment.data / HOMES / "_hooks" / driver.key,
                digests=files,
                may_do_without=environment.plan.sandbox.get(driver.id) == "off",
            ),
            environment.connector_parts,
        )

    async def load(self) -> DriverHooks | LoadFailed:
        try:
            async with self._limits.starting():
                return await load_hooks(self._driver, self._bindings, self._folder, self._process)
        except HookFailed as failed:
            return LoadFailed(code=failed.code, message=f"{ENTRY}: {failed}", is_final=True)
        except (SandboxFailed, ChildStartFailed) as failed:
            code = failed.code if isinstance(failed, SandboxFailed) else "tool_unavailable"
            return LoadFailed(code=code, message=f"{ENTRY}: {failed}", is_final=False)

    async def stop(self) -> None:
        await self._process.stop()
