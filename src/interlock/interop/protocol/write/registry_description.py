"""A driver as an MCP registry describes servers: server.json of 2025-12-11 (AIP-export-3).

Every setting that the format has no word for is told. A secret is an input of the person who installs it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.drivers.protocol.files.placeholders import SECRET
from interlock.drivers.protocol.kinds.remote import Remote
from interlock.drivers.protocol.kinds.server import LocalServer
from interlock.drivers.protocol.model import Driver

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
    package = server.registry_package() if isinstance(server, LocalServer) else None
    if package is None and not isinstance(server, Remote):
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
    elif isinstance(server, LocalServer) and package is not None:
        data["packages"] = [_package(server, package)]
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


def _package(server: LocalServer, package: dict[str, Any]) -> dict[str, Any]:
    arguments = [_argument(each) for each in server.args]
    variables = [_setting(name, value) for name, value in server.env.items()]
    package |= {"packageArguments": arguments} if arguments else {}
    return package | ({"environmentVariables": variables} if variables else {})


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
