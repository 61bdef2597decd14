"""MCP registry descriptions (server.json, 2025-07-09 to 2025-12-11) and server cards as entries (AIP-import-12).

The older files write snake_case; both are read. Of several packages the first that can be run here is taken, then the
remotes; what is not run here is told. A value that somebody has to give becomes an input.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.interop.protocol.formats import Unreadable, read_data
from interlock.interop.protocol.model import ENTRIES_MAX, Entry, FileReading, Note, PersonInput, Transport
from interlock.interop.protocol.read.client_files import text

_REMOTES: Final[dict[str, Transport]] = {"streamable-http": "http", "streamable": "http", "http": "http", "sse": "sse"}
_USUAL_HOSTS: Final = {"npm": "npmjs", "pypi": "pypi"}  # the name before the last dot of each registry's host
_SNAKE: Final = re.compile(r"_([a-z])")
_SHA256: Final = re.compile(r"[a-f0-9]{64}")


def is_registry_data(data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    inner = data.get("server") if isinstance(data.get("server"), Mapping) else data
    listed = data.get("servers")
    several = isinstance(listed, list) and any(isinstance(each, Mapping) for each in listed)
    return isinstance(inner, Mapping) and ("packages" in inner or "remotes" in inner or several)


def read_registry(data_untrusted: bytes) -> FileReading:
    try:
        data = read_data(data_untrusted, "json")
    except Unreadable as error:
        return FileReading(problem=str(error))
    if not is_registry_data(data):
        return FileReading(problem="it describes no server")
    listed = data.get("servers")
    described = listed if isinstance(listed, list) else [data]
    entries = []
    for each in described[:ENTRIES_MAX]:
        inner = each.get("server", each) if isinstance(each, Mapping) else None
        if isinstance(inner, Mapping):
            entries.append(_entry(_camel(inner)))
    return FileReading(entries=tuple(entries))


def _camel(value: Any) -> Any:
    if isinstance(value, Mapping):
        # Names of variables are the author's own and stay as they are.
        return {
            _SNAKE.sub(lambda match: match[1].upper(), str(key)): each if key == "variables" else _camel(each)
            for key, each in value.items()
        }
    return [_camel(each) for each in value] if isinstance(value, list) else value


def _entry(described: Mapping[str, Any]) -> Entry:
    whole = text(described.get("name")) or "server"
    base = Entry(
        name=whole.rpartition("/")[2] or "server",
        style="registry",
        title=text(described.get("title")),
        description=text(described.get("description")),
        version=text(described.get("version")),
    )
    reasons: list[str] = []
    for package in _objects(described.get("packages")):
        candidate = _package(base, package)
        if isinstance(candidate, Entry):
            return candidate
        reasons.append(candidate)
    for remote in _objects(described.get("remotes")):
        candidate = _remote(base, remote)
        if isinstance(candidate, Entry):
            return candidate
        reasons.append(candidate)
    message = "; ".join(dict.fromkeys(reasons)) or "it names no package and no address"
    return msgspec.structs.replace(base, refused=Note(code="unsupported", text=message))


def _package(base: Entry, package: Mapping[str, Any]) -> Entry | str:
    """Return the entry of a package, or why it cannot be used."""
    kind = text(package.get("registryType")) or text(package.get("registryName")) or ""
    identifier = text(package.get("identifier")) or text(package.get("name"))
    speaks = package.get("transport")
    if isinstance(speaks, Mapping) and speaks.get("type") not in (None, "stdio"):
        return f"its {kind} package serves HTTP by itself: start it and import its url"
    if kind == "mcpb":
        return "its package is a bundle: download it, compare its SHA-256, and import the file"
    if kind not in {"npm", "pypi", "oci", "docker"} or identifier is None:
        return f"packages of type {kind[:20]!r} are not run here"
    host = text(package.get("registryBaseUrl"))
    if kind in _USUAL_HOSTS and host and _registry_name(host) != _USUAL_HOSTS[kind]:
        return f"its {kind} package is in another registry"
    inputs: dict[str, PersonInput] = {}
    env = _settings(package.get("environmentVariables"), inputs)
    runtime = _arguments(package.get("runtimeArguments"), inputs)
    args = _arguments(package.get("packageArguments"), inputs)
    version = text(package.get("version"))
    command: tuple[str, ...]
    if kind == "npm":
        command = ("npx", *runtime, identifier if version is None else f"{identifier}@{version}", *args)
    elif kind == "pypi":
        command = ("uvx", *runtime, identifier if version is None else f"{identifier}=={version}", *args)
    else:
        tagged = version is None or ":" in identifier.rpartition("/")[2] or "@" in identifier
        image = identifier if tagged else f"{identifier}:{version}"
        passed = [word for name in env for word in ("-e", name)]
        command = ("docker", "run", *runtime, *passed, image, *args)
    return msgspec.structs.replace(
        base, command=command, env=env, inputs=inputs, install=_install(kind, identifier, version, package)
    )


def _registry_name(url: str) -> str:
    try:
        parts = (urlsplit(url).hostname or "").split(".")
    except ValueError:
        return ""
    return parts[-2] if len(parts) > 1 else ""


def _install(
    kind: str, identifier: str, version: str | None, package: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...]:
    """Return the install step of a package whose SHA-256 is declared, or nothing."""
    digest = text(package.get("fileSha256"))
    method = {"npm": "npm", "pypi": "pip"}.get(kind)
    if method is None or digest is None or not _SHA256.fullmatch(digest):
        return ()
    pin = "" if version is None else f"@{version}" if kind == "npm" else f"=={version}"
    return ({"method": method, "package": f"{identifier}{pin}", "verify_sha256": digest},)


def _remote(base: Entry, remote: Mapping[str, Any]) -> Entry | str:
    kind = text(remote.get("type")) or text(remote.get("transportType")) or ""
    url = text(remote.get("url"))
    if kind not in _REMOTES or url is None:
        return f"remotes of type {kind[:20]!r} are not dialled here"
    inputs = _variables(remote)
    headers = _settings(remote.get("headers"), inputs)
    return msgspec.structs.replace(base, transport=_REMOTES[kind], url=url, headers=headers, inputs=inputs)


def _settings(value: Any, inputs: dict[str, PersonInput]) -> dict[str, str]:
    settings = {}
    for each in _objects(value):
        name = text(each.get("name"))
        if name is not None and (written := _value_text(name, each, inputs)) is not None:
            settings[name] = written
    return settings


def _arguments(value: Any, inputs: dict[str, PersonInput]) -> list[str]:
    arguments: list[str] = []
    for each in _objects(value):
        name = text(each.get("name"))
        input_name = text(each.get("valueHint")) or (name or "argument").lstrip("-")
        written = _value_text(input_name, each, inputs)
        if each.get("type") == "named" and name is not None:
            arguments += [name] if written is None or written == "" else [name, written]
        elif written is not None:
            arguments.append(written)
    return arguments


def _value_text(name: str, setting: Mapping[str, Any], inputs: dict[str, PersonInput]) -> str | None:
    """Return the text of a setting, with its inputs as {NAME}, or None if it has no value and needs none."""
    inputs |= _variables(setting)
    secret = setting.get("isSecret") is True
    fixed = _plain(setting.get("value"))
    if fixed is not None and (not secret or "{" in fixed):
        return fixed
    default = fixed if fixed is not None else _plain(setting.get("default"))
    if default is None and not secret and setting.get("isRequired") is not True:
        return None
    key = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    inputs[key] = PersonInput(description=text(setting.get("description")) or "", secret=secret, default=default)
    return f"{{{key}}}"


def _variables(setting: Mapping[str, Any]) -> dict[str, PersonInput]:
    variables = setting.get("variables")
    inputs = {}
    for name, each in variables.items() if isinstance(variables, Mapping) else ():
        each = _camel(each)
        if isinstance(each, Mapping):
            inputs[str(name)] = PersonInput(
                description=text(each.get("description")) or "",
                secret=each.get("isSecret") is True,
                default=_plain(each.get("value", each.get("default"))),
            )
    return inputs


def _plain(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else text(value)


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else ()
