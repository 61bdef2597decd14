"""Package descriptions as entries (AIP-import-12): MCP registries, Docker, MCPB bundles, and drivers of other hosts.

- MCP registries: server.json of 2025-07-09 to 2025-12-11 in either spelling of keys, and server cards. The first
  package that can be run here is taken, then the first remote. A value that a person has to give becomes an input.
- Docker: server.yaml of its registry, and catalogs of its gateway. They say which hosts a server needs.
- Bundles: manifest.json of MCPB and DXT 0.1 to 0.4. `interlock.interop.source_files` unpacks the bundle.
- Drivers: a DRIVER.md, so that what was exported can be imported again (AIP-export-3).

`registry_description` describes a driver as an MCP registry does, in server.json of 2025-12-11 (AIP-export-3). A secret
becomes an input that the installing user enters. Settings that the format cannot express are reported.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.plaintext import SECRET
from interlock.drivers.protocol.kinds import LocalServer, RemoteServer
from interlock.drivers.protocol.model import Driver
from interlock.interop.protocol.client_files import HELPERS, host_names, names, section, text, texts
from interlock.interop.protocol.clients import System
from interlock.interop.protocol.launchers import PACKAGED
from interlock.interop.protocol.model import (
    ENTRIES_MAX,
    FileReading,
    PersonInput,
    ServerEntry,
    Transport,
    without_empty,
)
from interlock.interop.protocol.text_edits import UnreadableFile, read_data

_REMOTES: Final[dict[str, Transport]] = {"streamable-http": "http", "streamable": "http", "http": "http", "sse": "sse"}
_USUAL_HOSTS: Final = {"npm": "npmjs", "pypi": "pypi"}  # the name before the last dot of each registry's host
_PACKAGES: Final = {"npm": ("npx", "npm", "@"), "pypi": ("uvx", "pip", "==")}  # launcher, method, mark of a version
_SNAKE: Final = re.compile(r"_([a-z])")
_SHA256: Final = re.compile(r"[a-f0-9]{64}")


def is_registry_data(data: Any) -> bool:
    """Return whether the data describes servers as an MCP registry does."""
    if not isinstance(data, Mapping):
        return False
    inner = section(data, "server") if isinstance(data.get("server"), Mapping) else data
    return "packages" in inner or "remotes" in inner or bool(_objects(data.get("servers")))


def read_registry(data_untrusted: bytes) -> FileReading:
    """Read a server.json, the answer of a registry, or a server card. Raise UnreadableFile if it is none of them."""
    data = read_data(data_untrusted, "json")
    if not is_registry_data(data):
        raise UnreadableFile("it describes no server")
    listed = data.get("servers")
    described = listed[:ENTRIES_MAX] if isinstance(listed, list) else [data]
    inner = _objects([each.get("server", each) for each in _objects(described)])
    return FileReading(entries=tuple(_registry_entry(_camel(each)) for each in inner))


def _camel(value: Any) -> Any:
    """Return data with its keys in camelCase; registries use both spellings."""
    if isinstance(value, Mapping):
        # Names of variables are the author's own and stay as they are.
        return {
            _SNAKE.sub(lambda match: match[1].upper(), str(key)): each if key == "variables" else _camel(each)
            for key, each in value.items()
        }
    return [_camel(each) for each in value] if isinstance(value, list) else value


def _registry_entry(described: Mapping[str, Any]) -> ServerEntry:
    whole = text(described.get("name")) or "server"
    base = ServerEntry(
        name=whole.rpartition("/")[2] or "server",
        style="registry",
        title=text(described.get("title")),
        description=text(described.get("description")),
        version=text(described.get("version")),
    )
    reasons: list[str] = []
    for key, read_entry in (("packages", _package_entry), ("remotes", _remote_entry)):
        for value in _objects(described.get(key)):
            candidate = read_entry(base, value)
            if isinstance(candidate, ServerEntry):
                return candidate
            reasons.append(candidate)
    return base.refuse("unsupported", "; ".join(dict.fromkeys(reasons)) or "it names no package and no address")


def _package_entry(base: ServerEntry, package: Mapping[str, Any]) -> ServerEntry | str:
    """Return the entry of a package in a registry, or a text that says why Interlock cannot use it."""
    kind = text(package.get("registryType")) or text(package.get("registryName")) or ""
    identifier = text(package.get("identifier")) or text(package.get("name"))
    if section(package, "transport").get("type") not in (None, "stdio"):
        return f"its {kind} package serves HTTP by itself: start it and import its url"
    if kind == "mcpb":
        return "its package is a bundle: download it, compare its SHA-256, and import the file"
    if kind not in {"npm", "pypi", "oci", "docker"} or identifier is None:
        return f"packages of type {kind[:20]!r} are not run here"
    if kind in _USUAL_HOSTS and (registry := text(package.get("registryBaseUrl"))):
        try:
            labels = (urlsplit(registry).hostname or "").split(".")
        except ValueError:
            labels = []
        if labels[-2:-1] != [_USUAL_HOSTS[kind]]:
            return f"its {kind} package is in another registry"
    inputs: dict[str, PersonInput] = {}
    env = _settings(package.get("environmentVariables"), inputs)
    runtime = _arguments(package.get("runtimeArguments"), inputs)
    args = _arguments(package.get("packageArguments"), inputs)
    version = text(package.get("version"))
    install: tuple[Mapping[str, Any], ...] = ()  # of a package whose SHA-256 is declared
    if kind in _PACKAGES:
        launcher, method, mark = _PACKAGES[kind]
        pinned = identifier if version is None else f"{identifier}{mark}{version}"
        command = (launcher, *runtime, pinned, *args)
        digest = text(package.get("fileSha256"))
        if digest is not None and _SHA256.fullmatch(digest):
            install = ({"method": method, "package": pinned, "verify_sha256": digest},)
    else:
        tagged = version is None or ":" in identifier.rpartition("/")[2] or "@" in identifier
        image = identifier if tagged else f"{identifier}:{version}"
        passed = [word for name in env for word in ("-e", name)]
        command = ("docker", "run", *runtime, *passed, image, *args)
    return msgspec.structs.replace(base, command=command, env=env, inputs=inputs, install=install)


def _remote_entry(base: ServerEntry, remote: Mapping[str, Any]) -> ServerEntry | str:
    """Return the entry of a remote server in a registry, or a text that says why Interlock cannot use it."""
    kind = text(remote.get("type")) or text(remote.get("transportType")) or ""
    url = text(remote.get("url"))
    if kind not in _REMOTES or url is None:
        return f"remotes of type {kind[:20]!r} are not dialled here"
    inputs = _inputs_of(remote)
    headers = _settings(remote.get("headers"), inputs)
    return msgspec.structs.replace(base, transport=_REMOTES[kind], url=url, headers=headers, inputs=inputs)


def _settings(value: Any, inputs: dict[str, PersonInput]) -> dict[str, str]:
    """Return the environment variables or headers that a registry lists. Values that the user must enter are added to
    `inputs`.
    """
    settings = {}
    for each in _objects(value):
        name = text(each.get("name"))
        if name is not None and (written := _value_text(name, each, inputs)) is not None:
            settings[name] = written
    return settings


def _arguments(value: Any, inputs: dict[str, PersonInput]) -> list[str]:
    """Return the command-line arguments that a registry lists for a package. Values that the user must enter are added
    to `inputs`.
    """
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
    """Return the text of a registry's setting, with each value that the user must enter as {NAME}. Return None for an
    optional setting without a value.
    """
    inputs |= _inputs_of(setting)
    secret = setting.get("isSecret") is True
    fixed = _plain(setting.get("value"))
    if fixed is not None and (not secret or "{" in fixed):
        return fixed
    default = fixed if fixed is not None else _plain(setting.get("default"))
    if default is None and not secret and setting.get("isRequired") is not True:
        return None
    key = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    inputs[key] = _input(setting, "isSecret", default)
    return f"{{{key}}}"


def _inputs_of(setting: Mapping[str, Any]) -> dict[str, PersonInput]:
    """Return the variables that a registry declares for a setting, as values that the user must enter."""
    variables = {str(name): _camel(each) for name, each in section(setting, "variables").items()}
    return {
        name: _input(each, "isSecret", _plain(each.get("value", each.get("default"))))
        for name, each in variables.items()
        if isinstance(each, Mapping)
    }


def _input(setting: Mapping[str, Any], secret_key: str, default: str | None) -> PersonInput:
    described = text(setting.get("description")) or text(setting.get("title")) or ""
    return PersonInput(description=described, secret=setting.get(secret_key) is True, default=default)


def _plain(value: Any) -> str | None:
    """Return a text, number or boolean as text, or None."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else text(value)


def is_docker_data(data: Any) -> bool:
    """Return whether the data is a server.yaml or a catalog of Docker, or a description of Smithery."""
    if not isinstance(data, Mapping):
        return False
    is_server = "image" in data or data.get("type") in {"server", "remote", "poci"}
    is_named = text(data.get("name")) is not None
    return isinstance(data.get("registry"), Mapping) or "startCommand" in data or (is_named and is_server)


def read_docker(data_untrusted: bytes) -> FileReading:
    """Read a server.yaml or a catalog of Docker. Raise UnreadableFile if it is neither."""
    data = read_data(data_untrusted, "yaml")
    if not is_docker_data(data):
        raise UnreadableFile("it describes no server")
    if "startCommand" in data:
        smithery = ServerEntry(name="smithery")
        helper = next((key for key in HELPERS if key in section(data, "startCommand")), None)
        if helper:
            refused = smithery.refuse("helper_not_run", f"{helper} is code to run and is not imported")
        else:
            refused = smithery.refuse("unsupported", "it does not say how the server is started")
        return FileReading(entries=(refused,))
    if isinstance(registry := data.get("registry"), Mapping):
        listed = [(str(name), each) for name, each in registry.items() if isinstance(each, Mapping)]
        return FileReading(entries=tuple(_docker_entry(name, each) for name, each in listed[:ENTRIES_MAX]))
    return FileReading(entries=(_docker_entry(text(data.get("name")) or "server", data),))


def _docker_entry(name: str, described: Mapping[str, Any]) -> ServerEntry:
    about, run, config, remote = (section(described, key) for key in ("about", "run", "config", "remote"))
    inputs: dict[str, PersonInput] = {}
    env = texts(run.get("env"))
    for source in (described, config):
        for each in _objects(source.get("env")):
            variable, value = text(each.get("name")), text(each.get("value"))
            if variable is not None and value is not None:
                env[variable] = value
        for each in _objects(source.get("secrets")):
            variable, slug = text(each.get("env")), text(each.get("name"))
            if variable is not None and slug is not None:
                env[variable] = f"{{{{{slug}}}}}"
                inputs[slug] = PersonInput(description=text(each.get("description")) or "", secret=True)
    hosts = described.get("allowHosts", run.get("allowHosts"))
    egress = host_names(names(hosts)) if isinstance(hosts, list) else None
    if described.get("disableNetwork") is True or run.get("disableNetwork") is True:
        egress = ()
    entry = ServerEntry(
        name=name,
        style="docker",
        title=text(about.get("title")) or text(described.get("title")),
        description=text(about.get("description")) or text(described.get("description")),
        env=env,
        inputs=inputs,
        egress=egress,
    )
    if (url := text(remote.get("url"))) is not None:
        kind = text(remote.get("transport_type")) or text(remote.get("transport")) or "streamable-http"
        transport = "sse" if kind == "sse" else "http"
        headers = texts(remote.get("headers"))
        for variable, value in env.items():  # a header names the entry's variables as ${VAR} or $VAR
            for spelling in (f"${{{variable}}}", f"${variable}"):
                headers = {key: header.replace(spelling, value) for key, header in headers.items()}
        return msgspec.structs.replace(entry, url=url, transport=transport, headers=headers, env={})
    image = text(described.get("image"))
    if image is None or described.get("type") == "poci":
        kind = text(described.get("type")) or "unknown"
        return entry.refuse("unsupported", f"Docker entries of type {kind[:20]!r} are not run here")
    volumes = [*names(described.get("volumes")), *names(run.get("volumes"))]
    args = [*names(described.get("command")), *names(run.get("command"))]
    server = {"kind": "docker", "image": image} | without_empty({"volumes": volumes, "args": args})
    return msgspec.structs.replace(entry, server=server)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


MANIFEST: Final = "manifest.json"
VERSIONS: Final = ("0.1", "0.2", "0.3", "0.4")
_USER: Final = re.compile(r"\$\{user_config\.([^{}]+)\}")


def read_manifest(data_untrusted: bytes, system: System) -> FileReading:
    """Read the manifest of a bundle that would run on this system. Raise UnreadableFile if it cannot be read."""
    try:
        data = read_data(data_untrusted, "json")
    except UnreadableFile as error:
        raise UnreadableFile(f"{MANIFEST}: {error}") from None
    if not isinstance(data, Mapping) or not isinstance(data.get("server"), Mapping):
        raise UnreadableFile(f"{MANIFEST} describes no server")
    version = str(data.get("manifest_version", data.get("dxt_version", "")))
    entry = _bundle_entry(data, data["server"], system)
    if version not in VERSIONS:
        entry = entry.refuse("unsupported", f"manifests of version {version[:10]!r} are not known here")
    return FileReading(entries=(entry,))


def _bundle_entry(data: Mapping[str, Any], server: Mapping[str, Any], system: System) -> ServerEntry:
    settings = section(data, "user_config")
    entry = ServerEntry(
        name=text(data.get("name")) or "bundle",
        style="bundle",
        title=text(data.get("display_name")),
        description=text(data.get("description")),
        version=text(data.get("version")),
        inputs={
            str(key): _input(each, "sensitive", _plain(each.get("default")))
            for key, each in settings.items()
            if isinstance(each, Mapping)
        },
    )
    platforms = names(section(data, "compatibility").get("platforms"))
    if platforms and system not in platforms:
        return entry.refuse("unsupported", f"it runs on {', '.join(platforms)} only")
    config = section(server, "mcp_config")
    config = {**config, **section(section(config, "platform_overrides"), system)}
    command = text(config.get("command"))
    if command is None:
        point = text(server.get("entry_point"))
        if server.get("type") != "uv" or point is None:
            return entry.refuse("unsupported", "it does not say how it is started")
        command, config = "uv", {**config, "args": ["run", "--directory", "${__dirname}", point]}
    args: list[str] = []
    for each in names(config.get("args")):
        # An argument that refers to a setting with several values becomes one argument per default value.
        whole = _USER.fullmatch(each)
        setting = section(settings, whole[1]) if whole is not None else {}
        has_list = setting.get("multiple") is True and isinstance(setting.get("default"), list)
        args += names(setting["default"]) if has_list else (each,)
    return msgspec.structs.replace(entry, command=(command, *args), env=texts(config.get("env")))


def read_driver_entry(data_untrusted: bytes) -> FileReading:
    """Read a DRIVER.md of another host. Raise UnreadableFile if it cannot be read."""
    reading = read_frontmatter(data_untrusted, "DRIVER.md")
    front = reading.value
    if front is None:
        raise UnreadableFile(f"line {reading.problems[0].line}: {reading.problems[0].message}")
    server = front.data.get("server")
    identifier = text(front.data.get("id"))
    if not isinstance(server, Mapping) or identifier is None:
        raise UnreadableFile("it describes no server")
    return FileReading(entries=(_driver_entry(identifier, front.data, server),))


def _driver_entry(identifier: str, data: Mapping[str, Any], server: Mapping[str, Any]) -> ServerEntry:
    env, headers, query = (texts(server.get(key)) for key in ("env", "headers", "query"))
    args = names(server.get("args"))
    values = (*env.values(), *headers.values(), *query.values(), *args)
    secret_names = {name for each in values for name in SECRET.findall(each)}
    url = text(server.get("url"))
    if url is not None and query:
        url += ("&" if "?" in url else "?") + "&".join(f"{name}={value}" for name, value in query.items())
    block: dict[str, Any] | None = None
    command: tuple[str, ...] = ()
    path = text(server.get("path"))
    if server.get("kind") == "binary" and path is not None:
        command = (path, *args)
    elif server.get("kind") in PACKAGED:
        block = {key: value for key, value in server.items() if key not in {"env", "cwd"}}
    elif url is None:
        return ServerEntry(name=identifier).refuse("unsupported", "its kind of server is not known here")
    network = data.get("network")
    return ServerEntry(
        name=identifier,
        style="driver",
        title=text(data.get("name")),
        description=text(data.get("description")),
        transport="sse" if data.get("transport") == "sse" else "http" if url is not None else "stdio",
        command=command,
        server=block,
        env=env,
        cwd=text(server.get("cwd")),
        url=url,
        headers=headers,
        inputs={name: PersonInput(secret=True) for name in secret_names},
        egress=names(network.get("egress")) if isinstance(network, Mapping) else None,
        connect_timeout_ms=section(data, "connection_options").get("timeout_ms"),
        call_timeout_ms=data.get("timeout_override_ms"),
    )


_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
DESCRIPTION_CHARS_MAX: Final = 100
NAMESPACE: Final = "local.interlock"  # of a server that is not published

_TRANSPORTS: Final = {"http": "streamable-http", "sse": "sse"}
_KEPT: Final = ("name", "id", "description", "version", "server", "transport", "implements")


def registry_description(
    driver: Driver, written: Mapping[str, Any], name: str | None = None
) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """Return the server.json of a driver, and the dotted keys of settings that it cannot express.

    Return None for a program on this machine, which a registry cannot describe. `written` is the frontmatter of the
    driver. It is used to determine which settings are lost.
    """
    server = driver.server
    package = server.registry_package() if isinstance(server, LocalServer) else None
    if package is None and not isinstance(server, RemoteServer):
        return None
    text = " ".join(driver.description.split())
    data: dict[str, Any] = {
        "$schema": _SCHEMA,
        "name": name or f"{NAMESPACE}/{driver.id.removesuffix('-mcp') or driver.id}",
        "title": driver.name[:100],
        "description": text if len(text) <= DESCRIPTION_CHARS_MAX else text[: DESCRIPTION_CHARS_MAX - 1] + "…",
        "version": driver.version,
    }
    if isinstance(server, RemoteServer):
        url = server.url
        variables: dict[str, Any] = {}
        for key, value in server.query.items():
            filled = _template(value)
            url += ("&" if "?" in url else "?") + f"{key}={filled['value']}"
            variables |= filled.get("variables", {})
        headers = [_setting(name, value) for name, value in server.headers.items()]
        remote = {"type": _TRANSPORTS[driver.transport], "url": url}
        data["remotes"] = [remote | without_empty({"variables": variables, "headers": headers})]
    elif isinstance(server, LocalServer) and package is not None:
        arguments = [{"type": "positional"} | _template(each) for each in server.args]
        settings = [_setting(key, value) for key, value in server.env.items()]
        inputs = without_empty({"packageArguments": arguments, "environmentVariables": settings})
        data["packages"] = [package | inputs]
    lost = [key for key in written if key not in _KEPT and key != "auth"]
    block = written.get("server", {})
    lost += [f"server.{key}" for key in ("cwd", "entry", "runner", "port", "path", "auth") if key in block]
    return data, (*lost, *(["implements"] if driver.implements else []))


def _setting(name: str, text: str) -> dict[str, Any]:
    whole = SECRET.fullmatch(text)
    if whole is not None and whole[1] == name:
        return {"name": name, "isRequired": True, "isSecret": True}
    return {"name": name} | _template(text)


def _template(text: str) -> dict[str, Any]:
    """Convert the value of a setting to the form of an MCP registry. Each ${secrets.NAME} becomes {NAME}, and NAME
    becomes a variable that the user has to enter.
    """
    variables = {name: {"isRequired": True, "isSecret": True} for name in SECRET.findall(text)}
    return {"value": SECRET.sub(lambda match: f"{{{match[1]}}}", text)} | without_empty({"variables": variables})
