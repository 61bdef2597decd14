"""Servers of kind pypi: the package gets a virtual environment of its own, or is run by uvx or pipx."""

import re
import sys
from pathlib import Path

from interlock.drivers.install.installation import Installation, Installed, MethodFailed, MethodResult
from interlock.drivers.kinds.kind import ServerKind
from interlock.drivers.kinds.npm import pin_reference
from interlock.drivers.protocol.kinds import PypiServer
from interlock.drivers.protocol.model import Install
from interlock.process.packages.installer import PythonRunners
from interlock.process.packages.programs import normalised_name, pypi_command


class PypiKind(ServerKind[PypiServer]):
    def implied_methods(self, server: PypiServer) -> tuple[Install, ...]:
        return (Install(method="pip", options={"package": server.package}),)  # AIP-30.install-1

    def pin_package(self, server: PypiServer, method: str, package: str) -> str:
        if method != "pip":
            return package
        return pin_reference(package, "==", server.package.partition("[")[0], server.package, server.version)

    async def complete(self, server: PypiServer, installation: Installation, brought: MethodResult) -> Installed:
        pins = brought.pins
        if pins is None or pins.registry != "pypi" or pins.name != self.package_name(server):
            raise MethodFailed(f"this does not bring the Python package {server.package}")
        if server.runner in {"uvx", "pipx"}:
            runners = PythonRunners(installation.packages)
            keep = runners.keep_with_uvx if server.runner == "uvx" else runners.keep_with_pipx
            runnable = await keep(pins, server.package, server.entry, brought.beside)
            return Installed(
                command=runnable.command,
                version=pins.version,
                lock=brought.lock,
                reads=runnable.reads,
                writes=runnable.writes,
                env=runnable.env,
                notes=brought.notes,
            )
        folder = await installation.packages.put(pins)
        return Installed(
            command=pypi_command(folder, pins.name, server.entry),
            version=pins.version,
            lock=brought.lock,
            reads=(folder, Path(sys.base_prefix).resolve()),
            notes=brought.notes,
        )

    def package_name(self, server: PypiServer) -> str:
        return normalised_name(server.package.partition("[")[0])

    def names_package(self, server: PypiServer, words: tuple[str, ...]) -> bool:
        """Recognise `uvx --from PACKAGE NAME` and the package's own program (AIP-30.version-2)."""
        if words[:1] == (server.entry,):
            return True
        name = self.package_name(server)
        return any(normalised_name(re.split(r"==|\[|@", word)[0]) == name for word in words)
