"""The provider factory: creates the provider of each driver that may run."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from interlock.config.plan import Plan
from interlock.core.clock import Clock
from interlock.core.recorder import Recorder
from interlock.credentials.service import CredentialService
from interlock.drivers.install.install import install, install_checked
from interlock.drivers.install.installation import (
    CommandRunner,
    Installation,
    Installed,
    InstallFailed,
    Locks,
    runner_for,
    sandboxed_runner,
)
from interlock.drivers.kinds import kind_of
from interlock.drivers.protocol.model import Driver
from interlock.drivers.provider.keeper import DriverEnvironment
from interlock.drivers.provider.provider import DriverProvider, OnChanged, OnStep
from interlock.drivers.provider.vault import Vault
from interlock.drivers.workspace.declaration import Declared
from interlock.drivers.workspace.folder import TamperCheck
from interlock.links.connector import ConnectorParts
from interlock.links.keeper import Keeper
from interlock.links.link import LinkEvents
from interlock.process.sandbox.sandbox import private_paths
from interlock.store.ports import KeyValue


class ProviderFactory:
    """Factory of driver providers. Its providers share the limits on installing and starting servers."""

    def __init__(
        self,
        *,
        kv: KeyValue,
        clock: Clock,
        recorder: Recorder,
        keepers: dict[str, Keeper],
        link_events: LinkEvents,
        credentials: CredentialService,
        connector_parts: ConnectorParts,
        plan: Callable[[], Plan],
        newest: bool = False,
    ) -> None:
        """Prepare to create providers.

        `plan` is called for the current plan each time a provider is created or its server is installed. With `newest`,
        the record of installed releases is neither used nor changed.
        """
        self._plan = plan
        self._newest = newest
        self._locks = Locks(kv, clock)
        self._connector_parts = connector_parts
        first, sandboxes = plan(), connector_parts.sandboxes
        self._environment = DriverEnvironment(
            plan=first.drivers,
            data=first.data,
            connector_parts=connector_parts,
            link_events=link_events,
            keepers=keepers,
            kv=kv,
            install=partial(self._install, {}),
            holder_for=credentials.holder,
            vault=Vault(
                store=credentials.secrets,
                clock=clock,
                record=recorder.add_line,
                workspace=str(first.workspace),
                environment=os.environ,
                private=private_paths(first) if sandboxes is None else sandboxes.private,
            ),
            vendor_meta=first.mcp.meta_pass == "vendor",  # noqa: S105  (a choice, not a password)
        )

    def __call__(
        self, declared: Declared, on_changed: OnChanged | None = None, on_step: OnStep | None = None
    ) -> DriverProvider:
        """Return a provider, not started, for a driver whose files were read."""
        environment = msgspec.structs.replace(
            self._environment, plan=self._plan().drivers, install=partial(self._install, declared.real_paths)
        )
        seal = TamperCheck(declared.root, declared.folder, declared.files) if declared.files else None
        return DriverProvider(declared, environment, seal=seal, on_changed=on_changed, on_step=on_step)

    async def _install(
        self, real_paths: Mapping[Path, Path], driver: Driver, folder: Path, say: Callable[[str], None]
    ) -> Installed | InstallFailed:
        """Install the recorded release of a driver's server.

        Install the newest release instead if none is recorded, if the file's install request has changed since, or if
        the recorded release fails the version check. Then record what was installed. Raise StoreError if the record
        cannot be read or written. If it cannot be read, nothing is installed, because the newest release must not
        replace a recorded one.
        """
        plan, connector_parts = self._plan(), self._connector_parts
        is_sandboxed = plan.drivers.sandbox.get(driver.id) != "off"
        lock = None if self._newest else await self._locks.get(driver.key)

        async def installer(anew: bool) -> Installed | InstallFailed:
            installation = Installation(
                driver,
                packages=connector_parts.packages,
                folder=folder,
                progress=say,
                reaper=connector_parts.reaper,
                settings=plan.drivers,
                workspace=plan.workspace if folder.is_relative_to(plan.workspace) else folder,
                node=plan.node.name,
                caged=partial(sandboxed_runner, connector_parts, driver.id) if is_sandboxed else None,
            )
            return await install(installation, None if anew else lock)

        def runner_of(installed: Installed) -> CommandRunner:
            compiled = kind_of(driver.server).compile_plan(
                driver, installed, folder=folder, data=plan.data, is_sandboxed=is_sandboxed, real_paths=real_paths
            )
            return runner_for(compiled, connector_parts, folder)

        outcome = await install_checked(driver, installer, runner_of)
        if isinstance(outcome, Installed) and outcome.lock != lock and not self._newest:
            await self._locks.put(driver.key, outcome.lock)
        return outcome
