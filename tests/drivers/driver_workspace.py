"""A workspace with driver files on a real disk, and what is made of them."""

from pathlib import Path
from typing import Any

import yaml

from interlock.config.plan import DriversPlan, Plan
from interlock.drivers.protocol.identity import HostMachine
from interlock.drivers.protocol.problems import FileProblem
from interlock.drivers.workspace.declaration import Declaration, Declared, Remembered, Trusted
from interlock.drivers.workspace.scan import scan_workspace
from interlock.drivers.workspace.survey import Surveyor

MACHINE = HostMachine(os="linux", arch="x64", disk_mb=10_000, memory_mb=8_000)


def text(data: Any, body: str = "") -> bytes:
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---\n{body}".encode()


def driver(id: str = "files-mcp", **changed: Any) -> dict[str, Any]:
    whole = {
        "name": "Files",
        "id": id,
        "description": "Files of the workspace.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": {"kind": "binary", "path": "/usr/bin/true"},
        "transport": "stdio",
        "implements": [binding()],
    }
    return {key: value for key, value in {**whole, **changed}.items() if value is not None}


def remote(url: str, id: str = "far-mcp", **changed: Any) -> dict[str, Any]:
    return driver(id, **{"server": {"kind": "remote", "url": url}, "transport": "http", **changed})


def binding(tool: str = "./tools/fs-read/TOOL.md", **changed: Any) -> dict[str, Any]:
    return {"tool": tool, "version": "^1.0.0", "metadata": {"mcp": {"tool_name": "read_file"}}, **changed}


def contract(id: str = "fs-read", **changed: Any) -> dict[str, Any]:
    return {
        "name": "Read a file",
        "id": id,
        "description": "Reads one file.",
        "version": "1.0.0",
        "inputs": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "head": {"type": "integer"}},
            "required": ["path"],
        },
        "outputs": {"type": "object"},
        **changed,
    }


def secret(slug: str, **changed: Any) -> dict[str, Any]:
    return {"slug": slug, "name": slug, "description": "For a test.", **changed}


class Workspace:
    def __init__(self, root: Path, **drivers: Any) -> None:
        self.path = root / "workspace"
        self.own = root / "config" / "interlock" / "drivers"
        self.path.mkdir(parents=True, exist_ok=True)
        self.plan = Plan(workspace=self.path, data=root / "data", drivers=DriversPlan(own=self.own, **drivers))
        self.surveyor = Surveyor(self.plan, MACHINE)
        self.remembered = Remembered()

    def write(self, name: str | Path, data: Any) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else text(data))
        return path

    def driver(
        self, data: dict[str, Any] | bytes, folder: str | None = None, root: Path | None = None, **contracts: Any
    ) -> Path:
        """A driver with its contract in the usual place. Gives its folder."""
        name = folder or (data["id"] if isinstance(data, dict) else "broken-mcp")
        path = (root or self.path / ".drivers") / name
        self.write(path / "DRIVER.md", data)
        self.write(path / "tools" / "fs-read" / "TOOL.md", contract())
        return path

    def declared(self) -> Declaration:
        return self.surveyor.survey(scan_workspace(self.plan), self.remembered)

    def one(self, key: str | None = None) -> Declared:
        found = [one for one in self.declared().drivers if key is None or one.key == key or one.folder.name == key]
        assert len(found) == 1, [one.key for one in found]
        return found[0]

    def trust(self, only: str | None = None) -> None:
        """Everything, or only the driver with this key, as it is now."""
        self.remembered = Remembered(
            trusted={
                **(self.remembered.trusted if only is not None else {}),
                **{
                    str(one.folder): Trusted(
                        folder=str(one.folder),
                        key=one.key,
                        digest=one.digest,
                        files=one.covered,
                        texts={},
                        tags=(),
                        by="test",
                        at=0.0,
                    )
                    for one in self.declared().drivers
                    if only in (None, one.key)
                },
            },
            manifests=self.remembered.manifests,
            allowed=self.remembered.allowed,
        )


def codes(problems: tuple[FileProblem, ...], severity: str | None = None) -> list[str]:
    return [each.code for each in problems if severity is None or each.severity == severity]
