"""Driver files in the folder of a command."""

from pathlib import Path
from typing import Any

import yaml


def text(data: Any) -> str:
    return f"---\n{yaml.safe_dump(data, sort_keys=False)}---\n"


def driver(id: str = "files-mcp", **changed: Any) -> dict[str, Any]:
    return {
        "name": "Files",
        "id": id,
        "description": "Files of the workspace.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": {"kind": "binary", "path": "/usr/bin/true", "args": ["--root", "/srv"], "env": {"LEVEL": "info"}},
        "transport": "stdio",
        "implements": [
            {"tool": "./tools/fs-read/TOOL.md", "version": "^1.0.0", "metadata": {"mcp": {"tool_name": "read_file"}}}
        ],
        **changed,
    }


def contract(**changed: Any) -> dict[str, Any]:
    return {
        "name": "Read a file",
        "id": "fs-read",
        "description": "Reads one file.",
        "version": "1.0.0",
        "inputs": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        "outputs": {"type": "object"},
        **changed,
    }


def write(workspace: Path, data: dict[str, Any]) -> Path:
    """Gives the driver's folder."""
    folder = workspace / ".drivers" / data["id"]
    (folder / "tools" / "fs-read").mkdir(parents=True, exist_ok=True)
    (folder / "DRIVER.md").write_text(text(data))
    (folder / "tools" / "fs-read" / "TOOL.md").write_text(text(contract()))
    return folder
