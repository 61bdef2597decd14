"""server.json beside a DRIVER.md, in place of its server block (AIP-file-5): bytes in, a server block out.

Two shapes: the keys of the server block, or an MCP registry's description, of which the first package or remote is
taken that this host can run and that fits the driver's transport. What comes out has still to pass the schema.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.kinds import SERVERS
from interlock.drivers.protocol.problems import FileFindings

SERVER_JSON: Final = "server.json"
BYTES_MAX: Final = 256 * 1024

_CODE = "server_json_invalid"
_KINDS: Final = {each.registry_type: each for each in SERVERS.values() if each.registry_type is not None}
_REMOTES: Final = {"streamable-http": "http", "sse": "sse"}


def server_from_json(data_untrusted: bytes, transport: Any, findings: FileFindings) -> dict[str, Any] | None:
    """Return the server block that a server.json describes, or None if it is refused; `findings` then says why."""
    try:
        data = msgspec.json.decode(data_untrusted) if len(data_untrusted) <= BYTES_MAX else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        _refuse(findings, "server.json holds no JSON object", "write the keys of the server block as JSON")
        return None
    if "kind" in data:  # AIP-file-5
        return data
    if "packages" in data or "remotes" in data:
        for server in _runnable(data):
            if not isinstance(transport, str) or transport in SERVERS[server["kind"]].transports:
                return server
        _refuse(
            findings,
            "server.json describes no package or remote that this host can run with the transport of DRIVER.md",
            "write the server block into DRIVER.md",
        )
        return None
    # AIP-file-5
    _refuse(findings, "server.json is neither a server block nor a registry's description", "begin it with kind")
    return None


def _refuse(findings: FileFindings, message: str, hint: str) -> None:
    findings.say("/server", _CODE, message, hint)


def _runnable(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for package in _objects(data.get("packages")):
        if (server := _from_package(package)) is not None:
            yield server
    for remote in _objects(data.get("remotes")):
        if remote.get("type") in _REMOTES and isinstance(remote.get("url"), str) and "{" not in remote["url"]:
            headers = _settings(remote.get("headers"))
            if headers is not None:
                yield {"kind": "remote", "url": remote["url"]} | ({"headers": headers} if headers else {})


def _from_package(package: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = _KINDS.get(str(package.get("registryType")))
    identifier = package.get("identifier")
    env = _settings(package.get("environmentVariables"))
    args = _arguments(package.get("packageArguments"))
    speaks = package.get("transport")
    stdio = not isinstance(speaks, Mapping) or speaks.get("type") == "stdio"
    # What a runtime needs besides (mounts, flags) has no place in a server block.
    if kind is None or not isinstance(identifier, str) or env is None or args is None or not stdio:
        return None
    if package.get("runtimeArguments"):
        return None
    server: dict[str, Any] = {"kind": kind.kind, kind.keys[0]: identifier}
    version = package.get("version")
    if isinstance(version, str) and "version" in kind.keys:
        server["version"] = version
    return server | ({"env": env} if env else {}) | ({"args": args} if args else {})


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _settings(value: Any) -> dict[str, str] | None:
    """Return names and values, with a placeholder for each secret, or None if a required setting has no value."""
    settings: dict[str, str] = {}
    for each in _objects(value):
        name = each.get("name")
        if not isinstance(name, str):
            return None
        if each.get("isSecret") is True:
            settings[name] = f"${{secrets.{name.upper().replace('-', '_')}}}"
            continue
        text = _text(each)
        if text is not None:
            settings[name] = text
        elif each.get("isRequired") is True:
            return None
    return settings


def _arguments(value: Any) -> list[str] | None:
    args: list[str] = []
    for each in _objects(value):
        text = _text(each)
        if text is None:
            if each.get("isRequired") is True:
                return None
            continue
        named = each.get("type") == "named" and isinstance(each.get("name"), str)
        args += [each["name"], text] if named else [text]
    return args


def _text(setting: Mapping[str, Any]) -> str | None:
    """Return the fixed or default value, or None if there is none or it has {curly} parts to fill in."""
    for key in ("value", "default"):
        text = setting.get(key)
        if isinstance(text, str) and not ("{" in text and setting.get("variables")):
            return text
    return None
