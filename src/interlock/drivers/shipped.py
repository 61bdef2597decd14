"""Shipped drivers, as templates for a package that a person adds by its name.

A shipped driver is a template: `/workspace` in it stands for a folder of the person's. Here a file of that folder
becomes one of the server's private home, which its sandbox may always write; the folder itself is never guessed.
What the person says goes before what the template says.
"""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.drivers.kinds import kind_of
from interlock.drivers.kinds.kind import HOMES
from interlock.drivers.protocol.files.driver import DRIVER_FILE, read_driver
from interlock.drivers.protocol.files.frontmatter import frontmatter_text
from interlock.drivers.protocol.kinds.server import LocalServer
from interlock.drivers.protocol.model import Driver
from interlock.interop.protocol.convert.draft import PENDING

_TEMPLATE: Final = "/workspace"


class ShippedTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """What a shipped driver adds. `data`: the frontmatter with what was added; `what`: its parts in words, none where
    nothing was lacking."""

    data: Mapping[str, Any]
    shipped: str
    what: tuple[str, ...]


def with_shipped(data: Mapping[str, Any], node_data: Path) -> ShippedTemplate | None:
    """Complete `data` from the shipped driver; None where none ships for the package. Present in `data` is what the
    person said: install, sandbox.exec, and hosts in network.egress are left as they are."""
    asked = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), DRIVER_FILE).value
    shipped = _for(asked) if asked is not None else None
    if asked is None or shipped is None:
        return None
    server_asked, server_shipped = asked.server, shipped.server
    if not isinstance(server_asked, LocalServer) or not isinstance(server_shipped, LocalServer):
        return None
    home = node_data.absolute() / HOMES / asked.id
    server, made = dict(data["server"]), dict(data)
    what: list[str] = []
    env = {name: _at(home, value) for name, value in server_shipped.env.items() if name not in server_asked.env}
    if env:
        server["env"] = {**server.get("env", {}), **env}
        what += env
    if server_shipped.args and not server_asked.args and _TEMPLATE not in server_shipped.args:
        server["args"] = [_at(home, each) for each in server_shipped.args]
        what.append(" ".join(server["args"]))
    made["server"] = server
    beside = [each for entry in shipped.install for each in entry.options.get("with", ())]
    if beside and "install" not in data:
        made["install"] = [{"method": "pip", "package": server["package"], "with": beside}]
        what.append(f"--with {' '.join(beside)}")
    programs = shipped.sandbox.exec if shipped.sandbox is not None else None
    if programs is not None and "exec" not in data.get("sandbox", {}):
        made["sandbox"] = {**data.get("sandbox", {}), "exec": {"allow": programs.allow, "spawn": list(programs.spawn)}}
        what.append(f"it may start {', '.join(programs.spawn)}")
    hosts = shipped.network.egress if shipped.network is not None else ()
    if hosts and not data.get("network", {}).get("egress"):
        made["network"] = {**data.get("network", {}), "egress": list(hosts)}
        what.append(f"it may reach {', '.join('any host' if host == '*' else host for host in hosts)}")
    return ShippedTemplate(data=made, shipped=shipped.id, what=tuple(what))


def known_hosts(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The hosts that a server of this package needs, as its shipped driver has them; none where none ships."""
    asked = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), DRIVER_FILE).value
    shipped = _for(asked) if asked is not None else None
    return tuple(shipped.network.egress) if shipped is not None and shipped.network is not None else ()


def _for(asked: Driver) -> Driver | None:
    if _package(asked) is None:
        return None
    for folder in sorted((files("interlock") / "shipped" / "drivers").iterdir(), key=lambda each: each.name):
        file = folder / DRIVER_FILE
        shipped = read_driver(file.read_bytes(), DRIVER_FILE).value if file.is_file() else None
        if shipped is not None and _package(shipped) == _package(asked):
            return shipped
    return None


def _package(driver: Driver) -> tuple[str, str] | None:
    name = kind_of(driver.server).package_name(driver.server)
    return None if name is None else (driver.server.kind, name)


def _at(home: Path, text: str) -> str:
    return str(home / text.removeprefix(f"{_TEMPLATE}/")) if text.startswith(f"{_TEMPLATE}/") else text
