"""The manifest of an MCPB or DXT bundle (0.1 to 0.4) as an entry (AIP-import-12). The bundle is unpacked elsewhere."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.interop.protocol.clients import System
from interlock.interop.protocol.formats import Unreadable, read_data
from interlock.interop.protocol.model import Entry, FileReading, Note, PersonInput
from interlock.interop.protocol.read.client_files import names, text, texts

MANIFEST: Final = "manifest.json"
VERSIONS: Final = ("0.1", "0.2", "0.3", "0.4")
_USER: Final = re.compile(r"\$\{user_config\.([^{}]+)\}")


def read_manifest(data_untrusted: bytes, system: System) -> FileReading:
    try:
        data = read_data(data_untrusted, "json")
    except Unreadable as error:
        return FileReading(problem=f"{MANIFEST}: {error}")
    if not isinstance(data, Mapping) or not isinstance(data.get("server"), Mapping):
        return FileReading(problem=f"{MANIFEST} describes no server")
    version = str(data.get("manifest_version", data.get("dxt_version", "")))
    entry = _entry(data, data["server"], system)
    if version not in VERSIONS:
        message = f"manifests of version {version[:10]!r} are not known here"
        entry = msgspec.structs.replace(entry, refused=Note(code="unsupported", text=message))
    return FileReading(entries=(entry,))


def _entry(data: Mapping[str, Any], server: Mapping[str, Any], system: System) -> Entry:
    settings = data.get("user_config")
    settings = settings if isinstance(settings, Mapping) else {}
    entry = Entry(
        name=text(data.get("name")) or "bundle",
        style="bundle",
        title=text(data.get("display_name")),
        description=text(data.get("description")),
        version=text(data.get("version")),
        inputs={str(key): _input(each) for key, each in settings.items() if isinstance(each, Mapping)},
    )
    compatibility = data.get("compatibility")
    platforms = names(compatibility.get("platforms")) if isinstance(compatibility, Mapping) else ()
    if platforms and system not in platforms:
        return _refused_entry(entry, f"it runs on {', '.join(platforms)} only")
    config = server.get("mcp_config")
    config = dict(config) if isinstance(config, Mapping) else {}
    overrides = config.get("platform_overrides")
    if isinstance(overrides, Mapping) and isinstance(overrides.get(system), Mapping):
        config |= overrides[system]
    command = text(config.get("command"))
    if command is None:
        point = text(server.get("entry_point"))
        if server.get("type") != "uv" or point is None:
            return _refused_entry(entry, "it does not say how it is started")
        command, config = "uv", {**config, "args": ["run", "--directory", "${__dirname}", point]}
    args = _expand(names(config.get("args")), settings)
    return msgspec.structs.replace(entry, command=(command, *args), env=texts(config.get("env")))


def _refused_entry(entry: Entry, message: str) -> Entry:
    return msgspec.structs.replace(entry, refused=Note(code="unsupported", text=message))


def _input(setting: Mapping[str, Any]) -> PersonInput:
    default = setting.get("default")
    if isinstance(default, bool):
        default = "true" if default else "false"
    elif isinstance(default, int | float):
        default = str(default)
    described = text(setting.get("description")) or text(setting.get("title")) or ""
    return PersonInput(description=described, secret=setting.get("sensitive") is True, default=text(default))


def _expand(args: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    """Replace each argument that refers to a list of values by one argument per value."""
    expanded: list[str] = []
    for each in args:
        whole = _USER.fullmatch(each)
        setting = settings.get(whole[1]) if whole is not None else None
        if (
            isinstance(setting, Mapping)
            and setting.get("multiple") is True
            and isinstance(setting.get("default"), list)
        ):
            expanded += names(setting["default"])
        else:
            expanded.append(each)
    return expanded
