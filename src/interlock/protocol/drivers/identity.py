"""Is a changed driver still the same one? What changes its server, transport, MCP version or inputs needs a new major.

Only what the two files declare is compared (AIP-identity-1 to -3, AIP-30.implements-4); who keeps the older one, and
how a developer gets past this, is the registry's.
"""

import re
from typing import Any
from urllib.parse import urlsplit

from interlock.protocol.drivers.messages import Docker, Driver, Npm, Problem, Pypi, Remote, Severity
from interlock.protocol.drivers.versions import CALENDAR_MAJOR_MIN

CODE = "major_bump_required"

_MAJOR = re.compile(r"[^0-9]*([0-9]{1,9})(?![0-9])")


def changes_of_identity(registered: Driver, changed: Driver) -> tuple[Problem, ...]:
    """Nothing for drivers of another id or major: those are distinct."""
    if registered.key != changed.key:
        return ()
    found: list[Problem] = []

    def refuse(pointer: str, what: str, severity: Severity = "error") -> None:
        major = int(changed.version.partition(".")[0]) + 1
        found.append(
            changed.places.problem(
                pointer, CODE, f"{what} changed since {registered.version}", f"make this {major}.0.0", severity=severity
            )
        )

    if registered.protocol_version != changed.protocol_version:
        refuse("/protocol_version", "protocol_version")
    if registered.transport != changed.transport:
        refuse("/transport", "transport")
    if (field := _other_source(registered.server, changed.server)) is not None:
        refuse(f"/server/{field}", f"server.{field}")
    elif (majors := _pinned_majors(registered.server, changed.server)) is not None and majors[0] != majors[1]:
        calendar = min(majors) >= CALENDAR_MAJOR_MIN
        refuse("/server/package", "the major version of server.package", "warning" if calendar else "error")
    before = {binding.tool: binding.schema_narrowing for binding in registered.implements}
    for binding in changed.implements:
        if binding.tool in before and before[binding.tool] != binding.schema_narrowing:
            refuse(f"{binding.pointer}/schema_narrowing", "schema_narrowing")
    return tuple(found)


def _other_source(before: Any, now: Any) -> str | None:
    if type(before) is not type(now):
        return "kind"
    match now:
        case Npm() | Pypi():
            return "package" if before.package != now.package else None
        case Docker():
            return "image" if _image_name(before.image) != _image_name(now.image) else None
        case Remote():
            return "url" if urlsplit(before.url).hostname != urlsplit(now.url).hostname else None
    return None


def _image_name(image: str) -> str:
    name = image.partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def _pinned_majors(before: Any, now: Any) -> tuple[int, int] | None:
    """None where one of the two is not pinned."""
    found = [_MAJOR.match(getattr(each, "version", None) or "") for each in (before, now)]
    if found[0] is None or found[1] is None:
        return None
    return int(found[0][1]), int(found[1][1])
