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
from interlock.drivers.protocol.kinds import LocalServer
from interlock.drivers.protocol.model import Driver
from interlock.interop.protocol.drafts import PENDING

_TEMPLATE: Final = "/workspace"


class ShippedTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """Additions from a shipped driver.

    `data`: the completed frontmatter. `what`: the added parts in words, empty if nothing was missing.
    """

    data: Mapping[str, Any]
    shipped: str
    what: tuple[str, ...]


def with_shipped(data: Mapping[str, Any], node_data: Path) -> ShippedTemplate | None:
    """Complete `data` from the shipped driver of its package, or return None if there is none.

    Values that the person wrote (install, sandbox.exec, hosts in network.egress) stay as they are.
    """
    requested = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), DRIVER_FILE).value
    shipped = _for(requested) if requested is not None else None
    if requested is None or shipped is None:
        return None
    server_asked, server_shipped = requested.server, shipped.server
    if not isinstance(server_asked, LocalServer) or not isinstance(server_shipped, LocalServer):
        return None
    home = node_data.absolute() / HOMES / requested.id
    server, completed = dict(data["server"]), dict(data)
    what: list[str] = []
    env = {name: _at(home, value) for name, value in server_shipped.env.items() if name not in server_asked.env}
    if env:
        server["env"] = {**server.get("env", {}), **env}
        what += env
    if server_shipped.args and not server_asked.args and _TEMPLATE not in server_shipped.args:
        server["args"] = [_at(home, each) for each in server_shipped.args]
        what.append(" ".join(server["args"]))
    completed["server"] = server
    beside = [each for entry in shipped.install for each in entry.options.get("with", ())]
    if beside and "install" not in data:
        completed["install"] = [{"method": "pip", "package": server["package"], "with": beside}]
        what.append(f"--with {' '.join(beside)}")
    programs = shipped.sandbox.exec if shipped.sandbox is not None else None
    if programs is not None and "exec" not in data.get("sandbox", {}):
        completed["sandbox"] = {
            **data.get("sandbox", {}),
            "exec": {"allow": programs.allow, "spawn": list(programs.spawn)},
        }
        what.append(f"it may start {', '.join(programs.spawn)}")
    hosts = shipped.network.egress if shipped.network is not None else ()
    if hosts and not data.get("network", {}).get("egress"):
        completed["network"] = {**data.get("network", {}), "egress": list(hosts)}
        what.append(f"it may reach {', '.join('any host' if host == '*' else host for host in hosts)}")
    return ShippedTemplate(data=completed, shipped=shipped.id, what=tuple(what))


def known_hosts(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts that the shipped driver of this package needs; empty if there is no shipped driver."""
    requested = read_driver(frontmatter_text({**data, "implements": [PENDING]}).encode(), DRIVER_FILE).value
    shipped = _for(requested) if requested is not None else None
    return tuple(shipped.network.egress) if shipped is not None and shipped.network is not None else ()


def _for(requested: Driver) -> Driver | None:
    if _package(requested) is None:
        return None
    for folder in sorted((files("interlock") / "shipped" / "drivers").iterdir(), key=lambda each: each.name):
        file = folder / DRIVER_FILE
        shipped = read_driver(file.read_bytes(), DRIVER_FILE).value if file.is_file() else None
        if shipped is not None and _package(shipped) == _package(requested):
            return shipped
    return None


def _package(driver: Driver) -> tuple[str, str] | None:
    name = kind_of(driver.server).package_name(driver.server)
    return None if name is None else (driver.server.kind, name)


def _at(home: Path, text: str) -> str:
    return str(home / text.removeprefix(f"{_TEMPLATE}/")) if text.startswith(f"{_TEMPLATE}/") else text
