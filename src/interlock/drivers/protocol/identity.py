"""The identity of a driver across versions, and the requirements of a driver on its machine.

A changed driver is still the same driver if its server, transport, MCP version and narrowed inputs are unchanged.
Otherwise it needs a new major version (AIP-identity-1 to -4). Only the declarations in the files are compared. The
compared properties form a `Manifest`, which is small enough to be stored; the registry decides where and for how long.

`unmet_requirements` compares the `requires` block with a `HostMachine`, which describes this machine. `unverified_tags`
finds tags that contradict the server's address. Nothing here queries the operating system.
"""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from interlock.drivers.protocol.files.versions import CALENDAR_MAJOR_MIN
from interlock.drivers.protocol.model import Driver, Narrowing
from interlock.drivers.protocol.problems import FileProblem, Severity
from interlock.net.protocol.address_scope import Scope, find_scope

_MAJOR = re.compile(r"[^0-9]*([0-9]{1,9})(?![0-9])")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a driver that are compared when a new version of it is registered. Most changes need a new major
    version.
    """

    key: str  # id@major
    version: str
    protocol_version: str | None
    transport: str
    kind: str
    source: str | None  # the package, the image without its tag, the host of the url; of a program nothing
    pinned: str | None  # the package's version as written
    narrowing: dict[str, Narrowing]  # by the contract as the binding names it


def manifest_of(driver: Driver) -> Manifest:
    """Return the properties of a driver with which its next version is compared."""
    server = driver.server
    return Manifest(
        key=driver.key,
        version=driver.version,
        protocol_version=driver.protocol_version,
        transport=driver.transport,
        kind=server.kind,
        source=server.source,
        pinned=server.pinned_version,
        narrowing={_reference(each.tool): each.schema_narrowing for each in driver.implements},
    )


def changes_of_identity(registered: Driver | Manifest, changed: Driver) -> Iterator[FileProblem]:
    """Yield a problem for each change of a driver that is only allowed together with a new major version.

    There are none if the id or the major version differs, because the two are then different drivers.
    """
    before = manifest_of(registered) if isinstance(registered, Driver) else registered
    now = manifest_of(changed)
    if before.key != now.key:  # AIP-identity-1
        return
    hint = f"make this {int(changed.version.partition('.')[0]) + 1}.0.0"

    def change(pointer: str, what: str, severity: Severity = "error") -> FileProblem:
        message = f"{what} changed since {before.version}"
        return changed.places.problem(pointer, "major_bump_required", message, hint, severity)

    for name in ("protocol_version", "transport"):
        if getattr(before, name) != getattr(now, name):  # AIP-identity-1, AIP-identity-3
            yield change(f"/{name}", name)
    if before.kind != now.kind:  # AIP-identity-2
        yield change("/server/kind", "server.kind")
    elif before.source != now.source:  # AIP-identity-2
        field = changed.server.keys[0]
        yield change(f"/server/{field}", f"server.{field}")
    else:
        majors = [int(match[1]) for each in (before, now) if (match := _MAJOR.match(each.pinned or "")) is not None]
        if len(majors) == 2 and majors[0] != majors[1]:  # AIP-identity-2
            # A first number that is a year says nothing about compatibility.
            severity: Severity = "warning" if min(majors) >= CALENDAR_MAJOR_MIN else "error"
            yield change("/server/package", "the major version of server.package", severity)
    for binding in changed.implements:
        was = before.narrowing.get(_reference(binding.tool))
        if was is not None and was != binding.schema_narrowing:  # AIP-30.implements-4
            yield change(f"{binding.pointer}/schema_narrowing", "schema_narrowing")


def _reference(tool: str) -> str:
    return "/".join(part for part in tool.split("/") if part not in {"", "."})


def successor_problems(registered: Manifest | None, changed: Driver, *, dev: bool = False) -> tuple[FileProblem, ...]:
    """Return the problems that prevent a changed driver from replacing the driver that is registered with the same id
    and major version.

    `registered` is None for a driver that was not registered before. With `dev` (drivers.dev) each problem is only a
    warning.
    """
    problems = () if registered is None else tuple(changes_of_identity(registered, changed))
    # AIP-identity-4
    return tuple(msgspec.structs.replace(each, severity="warning") for each in problems) if dev else problems


UNMET: Final = "requirement_unmet"  # AIP-30.front-5
SELF_HOSTED: Final = "self-hosted"

_NEAR: Final = (".local", ".localhost", ".lan", ".internal", ".home.arpa")  # names no public resolver answers for


class HostMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of this machine that drivers may require, as AIP-30 names them.

    None means that a property is unknown; no requirement on it is then met.
    """

    os: str | None
    arch: str | None
    disk_mb: float | None
    memory_mb: float | None


def unmet_requirements(driver: Driver, machine: HostMachine) -> Iterator[FileProblem]:
    """Yield a problem for each requirement that the machine does not meet (AIP-30.front-5)."""
    requires = driver.requires
    messages: dict[str, str] = {}
    for key, wanted, have in (("os", requires.os, machine.os), ("arch", requires.arch, machine.arch)):
        if wanted and have not in wanted:  # AIP-30.front-5
            messages[key] = f"this machine has {have or 'an unknown one'}, not {' or '.join(wanted)}"
    needs = (("disk", requires.min_disk_mb, machine.disk_mb), ("memory", requires.min_memory_mb, machine.memory_mb))
    for name, least, available_mb in needs:
        if least is not None and (available_mb is None or available_mb < least):
            has = "an unknown amount" if available_mb is None else f"{available_mb:.0f} MB"
            messages[f"min_{name}_mb"] = f"this machine has {has}, and {least:.0f} MB are needed"
    for key, message in messages.items():
        yield driver.places.problem(f"/requires/{key}", UNMET, message, "use this driver on another machine")


def unverified_tags(driver: Driver) -> Iterator[FileProblem]:
    """Yield a problem if a driver has the tag self-hosted although its server runs on a public host
    (AIP-security-12).
    """
    address = driver.server.address
    if address is None or SELF_HOSTED not in driver.policy_tags:  # AIP-security-12
        return
    host = urlsplit(address).hostname or ""
    if not is_near(host):  # AIP-security-12
        index = driver.policy_tags.index(SELF_HOSTED)
        message = f"{host} is a public host, so that this server is not {SELF_HOSTED}"
        yield driver.places.problem(f"/policy_tags/{index}", "policy_tag_unverified", message, "remove the tag")


def is_near(host: str) -> bool:
    """Return whether a host is this machine or in a private network, judged by its address or its name.

    Only the name or address itself is examined; it is not resolved.
    """
    host = host.lower().rstrip(".")
    scope = find_scope(host)
    if scope is not None:
        return scope > Scope.PUBLIC
    return bool(host) and ("." not in host or host.endswith(_NEAR))
