"""Output of an export: entries for clients, entries of single drivers, and server.json for a registry.

- `stdio_entry`, `http_entry` and `with_token` write an entry in the format of a client in `clients` (AIP-export-1).

- `driver_entry` lets a client start or dial the server of a driver directly, without Interlock (AIP-export-2). Secrets
  become variables of the client's environment, in the client's notation. A client that does not expand variables gets
  no such entry, and runs the driver through Interlock instead.

- `registry_description` describes a driver as an MCP registry does, in server.json of 2025-12-11 (AIP-export-3). A
  secret becomes an input that the installing user enters. Settings that the format cannot express are reported.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from interlock.drivers.protocol.files.inventory import secret_for
from interlock.drivers.protocol.files.plaintext import SECRET
from interlock.drivers.protocol.kinds import LocalServer, RemoteServer
from interlock.drivers.protocol.model import Driver, SecretInventory
from interlock.interop.protocol.clients import ClientProgram
from interlock.interop.protocol.model import without_empty

SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
DESCRIPTION_CHARS_MAX: Final = 100
NAMESPACE: Final = "local.interlock"  # of a server that is not published

_TRANSPORTS: Final = {"http": "streamable-http", "sse": "sse"}
_KEPT: Final = ("name", "id", "description", "version", "server", "transport", "implements")


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A server.json, and a list of the driver's settings that it cannot express."""

    data: Mapping[str, Any]
    lost: tuple[str, ...]  # dotted keys with no place in the format


def registry_description(driver: Driver, written: Mapping[str, Any], name: str | None = None) -> Described | None:
    """Return the server.json of a driver. Return None for a program on this machine, which a registry cannot describe.

    `written` is the frontmatter of the driver. It is used to determine which settings are lost.
    """
    server = driver.server
    package = server.registry_package() if isinstance(server, LocalServer) else None
    if package is None and not isinstance(server, RemoteServer):
        return None
    text = " ".join(driver.description.split())
    data: dict[str, Any] = {
        "$schema": SCHEMA,
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
    return Described(data=data, lost=(*lost, *(["implements"] if driver.implements else [])))


def _setting(name: str, text: str) -> dict[str, Any]:
    whole = SECRET.fullmatch(text)
    if whole is not None and whole[1] == name:
        return {"name": name, "isRequired": True, "isSecret": True}
    return {"name": name} | _template(text)


def _template(text: str) -> dict[str, Any]:
    """Return a value with {NAME} in place of ${secrets.NAME}, and the variables that the user has to enter."""
    variables = {name: {"isRequired": True, "isSecret": True} for name in SECRET.findall(text)}
    return {"value": SECRET.sub(lambda match: f"{{{match[1]}}}", text)} | without_empty({"variables": variables})


GOOSE_TIMEOUT_S = 300  # the default of Goose, which Goose writes to its files


def stdio_entry(client: ClientProgram, name: str, command: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """Return an entry with which a client starts the server as a program."""
    program, *args = command
    fields: dict[str, Any] = {"command": program, "args": args, **_some("env", env)}
    if client.shape == "opencode":
        fields = {"command": [program, *args], **_some("environment", env)}
    elif client.shape == "goose":
        fields = {"cmd": program, "args": args, **_some("envs", env)}
    return _with_common_fields(client, name, client.stdio_type, fields)


def with_token(client: ClientProgram, name: str, url: str, variable: str) -> dict[str, Any] | None:
    """Return an entry that sends a bearer token, which the client reads from a variable of its environment.

    Return None if the client does not expand variables, because the token itself would have to be in the file, or if
    it cannot connect to a URL.
    """
    if client.shape == "codex":
        return {"url": url, "bearer_token_env_var": variable}
    if client.expands is None or client.stdio_only:
        return None
    return http_entry(client, name, url, {"Authorization": f"Bearer {client.expands.replace('VAR', variable)}"})


def http_entry(
    client: ClientProgram, name: str, url: str, headers: Mapping[str, str], *, sse: bool = False
) -> dict[str, Any]:
    """Return an entry with which a client connects to a URL. The client must not be `stdio_only`."""
    http_type = "sse" if sse and client.http_type is not None and client.shape != "opencode" else client.http_type
    key = "url" if sse and client.shape == "gemini" else client.url_key
    fields = {key: url, **_some("http_headers" if client.shape == "codex" else "headers", headers)}
    if client.shape == "continue":
        fields = {key: url, **without_empty({"requestOptions": _some("headers", headers)})}
    return _with_common_fields(client, name, http_type, fields)


def _with_common_fields(
    client: ClientProgram, name: str, kind: str | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an entry with the type and the other fields that every entry of this client has."""
    entry = {**({"type": kind} if kind is not None else {}), **fields}
    match client.shape:
        case "opencode":
            return {**entry, "enabled": True}
        case "goose":
            return {"name": name, **entry, "enabled": True, "timeout": GOOSE_TIMEOUT_S}
        case "continue":
            return {"name": name, **entry}
    around = {"source": "custom"} if client.name == "zed" else {}
    return {**around, **entry, **({"tools": ["*"]} if client.name == "copilot-cli" else {})}


def _some(key: str, values: Mapping[str, str]) -> dict[str, Any]:
    return {key: dict(values)} if values else {}


_ENVIRONMENT = "env://"


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """An entry for a driver, and the environment variables that the entry needs."""

    entry: Mapping[str, Any]
    variables: tuple[str, ...] = ()  # of the client's environment


def driver_entry(driver: Driver, secrets: SecretInventory | None, client: ClientProgram, name: str) -> Exported | None:
    """Return the entry with which a client runs a driver.

    Return None if the file would contain a secret, the client cannot connect to the URL or log in there, or the driver
    sets defaults for variables of the environment, which an entry cannot express.
    """
    if driver.secret_names and client.expands is None:  # AIP-export-2
        return None
    if isinstance(driver.server, RemoteServer) and (client.stdio_only or driver.server.auth is not None):
        return None
    if driver.sandbox is not None and driver.sandbox.env is not None and driver.sandbox.env.set:
        return None  # an entry has no place for defaults
    variables = {}
    for secret_name in driver.secret_names:
        secret = secret_for(secret_name, driver.id, secrets, ())
        backend = (secret.backend if secret is not None else None) or ""
        is_variable = backend.startswith(_ENVIRONMENT)
        variables[secret_name] = backend.removeprefix(_ENVIRONMENT) if is_variable else secret_name
    spelling = client.expands or ""

    def filled(text: str) -> str:
        return SECRET.sub(lambda match: spelling.replace("VAR", variables[match[1]]), text)

    server = driver.server
    if isinstance(server, RemoteServer):
        url = server.url
        if server.query:
            # A placeholder is for the client to fill in and stays as it is written.
            pairs = "&".join(f"{urlencode({key: ''})}{filled(value)}" for key, value in server.query.items())
            url += ("&" if "?" in url else "?") + pairs
        headers = {key: filled(value) for key, value in server.headers.items()}
        entry = http_entry(client, name, url, headers, sse=driver.transport == "sse")
    elif isinstance(server, LocalServer):
        env = {key: filled(value) for key, value in server.env.items()}
        command = server.client_command([filled(each) for each in server.args], list(env))
        entry = stdio_entry(client, name, command, env)
    else:
        raise TypeError(f"a server of kind {server.kind} is neither dialled nor started")
    return Exported(entry=entry, variables=tuple(dict.fromkeys(variables.values())))
