"""Is a changed driver still the same one? What changes its server, transport, MCP version or inputs needs a new major.

Only what the two files declare is compared (AIP-identity-1 to -3, AIP-30.implements-4). What is compared of a driver is
its Manifest, small enough to be kept (`history`).
"""

import re

import msgspec

from interlock.drivers.protocol.files.versions import CALENDAR_MAJOR_MIN
from interlock.drivers.protocol.model import Driver, Narrowing
from interlock.drivers.protocol.problems import Problem, Severity

CODE = "major_bump_required"  # AIP-identity-1

_MAJOR = re.compile(r"[^0-9]*([0-9]{1,9})(?![0-9])")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a driver the one it is."""

    key: str  # id@major
    version: str
    protocol_version: str | None
    transport: str
    kind: str
    source: str | None  # the package, the image without its tag, the host of the url; of a program nothing
    pinned: str | None  # the package's version as written
    narrowing: dict[str, Narrowing]  # by the contract as the binding names it


def manifest_of(driver: Driver) -> Manifest:
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


def changes_of_identity(registered: Driver | Manifest, changed: Driver) -> tuple[Problem, ...]:
    """Nothing for drivers of another id or major: those are distinct."""
    before = manifest_of(registered) if isinstance(registered, Driver) else registered
    now = manifest_of(changed)
    if before.key != now.key:  # AIP-identity-1
        return ()
    found: list[Problem] = []

    def refuse(pointer: str, what: str, severity: Severity = "error") -> None:
        major = int(changed.version.partition(".")[0]) + 1
        found.append(
            changed.places.problem(
                pointer, CODE, f"{what} changed since {before.version}", f"make this {major}.0.0", severity=severity
            )
        )

    if before.protocol_version != now.protocol_version:  # AIP-identity-1
        refuse("/protocol_version", "protocol_version")
    if before.transport != now.transport:  # AIP-identity-3
        refuse("/transport", "transport")
    if before.kind != now.kind:  # AIP-identity-2
        refuse("/server/kind", "server.kind")
    elif before.source != now.source:  # AIP-identity-2
        field = changed.server.keys[0]
        refuse(f"/server/{field}", f"server.{field}")
    elif (majors := _pinned_majors(before, now)) is not None and majors[0] != majors[1]:  # AIP-identity-2
        calendar = min(majors) >= CALENDAR_MAJOR_MIN
        refuse("/server/package", "the major version of server.package", "warning" if calendar else "error")
    for binding in changed.implements:
        was = before.narrowing.get(_reference(binding.tool))
        if was is not None and was != binding.schema_narrowing:  # AIP-30.implements-4
            refuse(f"{binding.pointer}/schema_narrowing", "schema_narrowing")
    return tuple(found)


def _reference(tool: str) -> str:
    return "/".join(part for part in tool.split("/") if part not in {"", "."})


def _pinned_majors(before: Manifest, now: Manifest) -> tuple[int, int] | None:
    """None where one of the two is not pinned."""
    found = [_MAJOR.match(each.pinned or "") for each in (before, now)]
    if found[0] is None or found[1] is None:
        return None
    return int(found[0][1]), int(found[1][1])
