"""How each client of `protocol.interop.clients` spells an entry: what import reads, written (AIP-export-1)."""

from collections.abc import Mapping, Sequence
from typing import Any

from interlock.interop.protocol.clients import Client

GOOSE_TIMEOUT_S = 300  # its own default, which its files carry


def stdio_entry(client: Client, name: str, command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    program, *args = command
    kind = {"type": client.stdio_type} if client.stdio_type is not None else {}
    match client.shape:
        case "opencode":
            return {**kind, "command": [program, *args], **_some("environment", env), "enabled": True}
        case "goose":
            entry = {"name": name, **kind, "cmd": program, "args": args, **_some("envs", env)}
            return {**entry, "enabled": True, "timeout": GOOSE_TIMEOUT_S}
        case "continue":
            return {"name": name, **kind, "command": program, "args": args, **_some("env", env)}
    around = {"source": "custom"} if client.name == "zed" else {}
    return {**around, **kind, "command": program, "args": args, **_some("env", env), **_tools(client)}


def with_token(client: Client, name: str, url: str, variable: str) -> dict[str, Any] | None:
    """To dial with a bearer token of the client's environment; None where the token itself would stand in the file."""
    if client.shape == "codex":
        return {"url": url, "bearer_token_env_var": variable}
    if client.expands is None or client.stdio_only:
        return None
    return http_entry(client, name, url, {"Authorization": f"Bearer {client.expands.replace('VAR', variable)}"})


def http_entry(client: Client, name: str, url: str, headers: Mapping[str, str], *, sse: bool = False) -> dict[str, Any]:
    """For clients that dial: not for one that is `stdio_only`."""
    http_type = "sse" if sse and client.http_type is not None and client.shape != "opencode" else client.http_type
    kind = {"type": http_type} if http_type is not None else {}
    match client.shape:
        case "opencode":
            return {**kind, "url": url, **_some("headers", headers), "enabled": True}
        case "goose":
            entry = {"name": name, **kind, "uri": url, **_some("headers", headers)}
            return {**entry, "enabled": True, "timeout": GOOSE_TIMEOUT_S}
        case "continue":
            options = {"requestOptions": {"headers": dict(headers)}} if headers else {}
            return {"name": name, **kind, "url": url, **options}
        case "codex":
            return {"url": url, **_some("http_headers", headers)}
    around = {"source": "custom"} if client.name == "zed" else {}
    key = "url" if sse and client.shape == "gemini" else client.url_key
    return {**around, **kind, key: url, **_some("headers", headers), **_tools(client)}


def _some(key: str, values: Mapping[str, str]) -> dict[str, Any]:
    return {key: dict(values)} if values else {}


def _tools(client: Client) -> dict[str, Any]:
    return {"tools": ["*"]} if client.name == "copilot-cli" else {}
