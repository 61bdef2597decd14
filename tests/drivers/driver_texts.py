"""Files of drivers, contracts and secrets for tests: a whole one as data, and its text."""

from typing import Any

import yaml

from interlock.drivers.protocol.files.contract import read_contract
from interlock.drivers.protocol.files.driver import read_driver
from interlock.drivers.protocol.files.inventory import read_secrets
from interlock.drivers.protocol.model import Contract, Driver, SecretInventory
from interlock.drivers.protocol.problems import FileProblem, ParsedFile

MISSING: Any = object()


def driver(**changed: Any) -> dict[str, Any]:
    whole = {
        "name": "Filesystem",
        "id": "filesystem-mcp",
        "description": "Files of the workspace.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": {"kind": "npm", "package": "@modelcontextprotocol/server-filesystem", "args": ["/workspace"]},
        "transport": "stdio",
        "implements": [binding()],
    }
    return {key: value for key, value in {**whole, **changed}.items() if value is not MISSING}


def binding(**changed: Any) -> dict[str, Any]:
    whole = {"tool": "./tools/fs-read/TOOL.md", "version": "^1.0.0", "metadata": {"mcp": {"tool_name": "read_file"}}}
    return {key: value for key, value in {**whole, **changed}.items() if value is not MISSING}


def remote(url: str = "https://mcp.example.com/v1", **more: Any) -> dict[str, Any]:
    return driver(server={"kind": "remote", "url": url, **more}, transport="http")


def contract(**changed: Any) -> dict[str, Any]:
    whole = {
        "name": "Read a file",
        "id": "fs-read",
        "description": "Reads one file.",
        "version": "1.0.0",
        "inputs": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        "outputs": {"type": "object"},
    }
    return {key: value for key, value in {**whole, **changed}.items() if value is not MISSING}


def secret(**changed: Any) -> dict[str, Any]:
    whole = {"slug": "stripe-api-key", "name": "Stripe", "description": "Charges customers."}
    return {key: value for key, value in {**whole, **changed}.items() if value is not MISSING}


def text(data: Any) -> bytes:
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---\n".encode()


def as_driver(data: dict[str, Any], **options: Any) -> ParsedFile[Driver]:
    return read_driver(text(data), "DRIVER.md", **options)


def as_contract(data: dict[str, Any]) -> ParsedFile[Contract]:
    return read_contract(text(data), "TOOL.md")


def as_secrets(*entries: Any) -> ParsedFile[SecretInventory]:
    return read_secrets(text({"secrets": list(entries)}), "SECRETS.md")


def of_severity(reading: ParsedFile[Any], severity: str) -> tuple[FileProblem, ...]:
    """Return the problems of a file that have this severity: error, warning or note."""
    return tuple(each for each in reading.problems if each.severity == severity)


def told(problems: tuple[FileProblem, ...]) -> list[tuple[str, str]]:
    return [(each.code, each.field) for each in problems]
