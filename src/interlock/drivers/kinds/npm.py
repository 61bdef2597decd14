"""Servers of kind npm: the package is installed below the driver's own folder and run with node, or left to npx."""

from pathlib import Path

from interlock.drivers.install.installation import Installation, Installed, MethodFailed, MethodResult
from interlock.drivers.kinds.kind import ServerKind
from interlock.drivers.protocol.kinds import NpmServer
from interlock.drivers.protocol.model import Install
from interlock.process.packages.programs import node_program, node_tool, npm_folder, npm_manifest, npm_program


class NpmKind(ServerKind[NpmServer]):
    def implied_methods(self, server: NpmServer) -> tuple[Install, ...]:
        return (Install(method="npm", options={"package": server.package}),)  # AIP-30.install-1

    def pin_package(self, server: NpmServer, method: str, package: str) -> str:
        return (
            pin_reference(package, "@", server.package, server.package, server.version) if method == "npm" else package
        )

    async def complete(self, server: NpmServer, installation: Installation, brought: MethodResult) -> Installed:
        folder, pins = brought.folder, brought.pins
        if pins is not None and pins.registry == "npm":
            if installation.settings.npx:
                npx = node_tool("npx", installation.environment, server.package)
                command = (npx, "--yes", f"{pins.name}@{pins.version}")
                return Installed(command=command, version=pins.version, lock=brought.lock, notes=brought.notes)
            folder = await installation.packages.put(pins)
        if folder is None or not (npm_folder(folder, server.package) / "package.json").is_file():
            raise MethodFailed(f"this does not bring the npm package {server.package}")
        node = await node_program(installation.environment, server.package, installation.reaper)
        return Installed(
            command=(node, str(npm_program(folder, server.package, server.entry))),
            version=str(npm_manifest(folder, server.package).get("version", "")) or None,
            lock=brought.lock,
            reads=(folder, Path(node).resolve()),
            notes=brought.notes,
        )

    def package_name(self, server: NpmServer) -> str | None:
        return server.package

    def names_package(self, server: NpmServer, words: tuple[str, ...]) -> bool:
        """Recognise `npx PACKAGE --version`, with or without a version (AIP-30.version-2)."""
        return any(word[:1] + word[1:].partition("@")[0] == server.package for word in words)


def pin_reference(reference: str, mark: str, name: str, package: str, version: str | None) -> str:
    """Return `reference` with the version of the server block, if it names the server's own package.

    `mark` separates name and version; `package` is the name with its extras. Raises MethodFailed for two versions.
    """
    scope = reference[:1] if reference.startswith("@") else ""
    own_name, _, pin = reference.removeprefix("@").partition(mark)
    if version is None or (scope + own_name).partition("[")[0].lower() != name.lower():
        return reference
    if pin and pin != version:
        raise MethodFailed("install and server name two versions of the package; keep the pin in one of them")
    return f"{package}{mark}{version}"
