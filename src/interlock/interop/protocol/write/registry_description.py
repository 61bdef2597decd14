"""A driver as an MCP registry describes servers: server.json of 2025-12-11 (AIP-export-3).

Every setting that the format has no word for is told. A secret is an input of the person who installs it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.placeholders import SECRET
from interlock.drivers.protocol.model import Binary, Docker, Driver, Npm, Pypi, Remote

SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
DESCRIPTION_CHARS_MAX: Final = 100
NAMESPACE: Final = "local.interlock"  # of a server that is not published

_TRANSPORTS: Final = {"http": "streamable-http", "sse": "sse"}
_KEPT: Final = ("name", "id", "description", "version", "server", "transport", "implements")


class Described(msgspec.Struct, frozen=True, kw_only=True):
    data: Mapping[str, Any]
    lost: tuple[str, ...]  # dotted keys with no place in the format


def registry_description(driver: Driver, written: Mapping[str, Any], name: str | None = None) -> Described | None:
    """`written`: the frontmatter, for what is lost. None: a program of this machine is in no registry."""
    server = driver.server
    if isinstance(server, Binary):
        return None
    text = " ".join(driver.description.split())
    data: dict[str, Any] = {
        "$schema": SCHEMA,
        "name": name or f"{NAMESPACE}/{driver.id.removesuffix('-mcp') or driver.id}",
        "title": driver.name[:100],
        "description": text if len(text) <= DESCRIPTION_CHARS_MAX else text[: DESCRIPTION_CHARS_MAX - 1] + "…",
        "version": driver.version,
    }
    if isinstance(server, Remote):
        data["remotes"] = [_remote(server, driver.transport)]
    else:
        data["packages"] = [_package(server)]
    lost = [key for key in written if key not in _KEPT and key != "auth"]
    block = written.get("server", {})
    lost += [f"server.{key}" for key in ("cwd", "entry", "runner", "port", "path", "auth") if key in block]
    return Described(data=data, lost=(*lost, *(["implements"] if driver.implements else [])))


def _remote(server: Remote, transport: str) -> dict[str, Any]:
    url = server.url
    variables: dict[str, Any] = {}
    for key, value in server.query.items():
        filled, asked = _template(value)
        url += ("&" if "?" in url else "?") + f"{key}={filled}"
        variables |= asked
    found: dict[str, Any] = {"type": _TRANSPORTS[transport], "url": url}
    found |= {"variables": variables} if variables else {}
    headers = [_setting(name, value) for name, value in server.headers.items()]
    return found | ({"headers": headers} if headers else {})


def _package(server: Npm | Pypi | Docker) -> dict[str, Any]:
    match server:
        case Npm():
            found: dict[str, Any] = {"registryType": "npm", "identifier": server.package}
        case Pypi():
            found = {"registryType": "pypi", "identifier": server.package}
        case Docker():
            found = {"registryType": "oci", "identifier": server.image}
    if not isinstance(server, Docker) and server.version is not None and server.version != "latest":
        found["version"] = server.version
    found["transport"] = {"type": "stdio"}
    if isinstance(server, Docker) and server.volumes:
        found["runtimeHint"] = "docker"
        found["runtimeArguments"] = [{"type": "named", "name": "-v", "value": each} for each in server.volumes]
    arguments = [_argument(each) for each in server.args]
    variables = [_setting(name, value) for name, value in server.env.items()]
    found |= {"packageArguments": arguments} if arguments else {}
    return found | ({"environmentVariables": variables} if variables else {})


def _argument(text: str) -> dict[str, Any]:
    filled, variables = _template(text)
    return {"type": "positional", "value": filled} | ({"variables": variables} if variables else {})


def _setting(name: str, text: str) -> dict[str, Any]:
    whole = SECRET.fullmatch(text)
    if whole is not None and whole[1] == name:
        return {"name": name, "isRequired": True, "isSecret": True}
    filled, variables = _template(text)
    return {"name": name, "value": filled} | ({"variables": variables} if variables else {})


def _template(text: str) -> tuple[str, dict[str, Any]]:
    """{NAME} in place of ${secrets.NAME}, and what is to be asked for."""
    asked = {name: {"isRequired": True, "isSecret": True} for name in SECRET.findall(text)}
    return SECRET.sub(lambda found: f"{{{found[1]}}}", text), asked
