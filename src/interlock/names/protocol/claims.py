"""What a server claims of the revision that its tool keeps to, held against the tool's schemas (REG-8.2-2).

Two claims stand in the tool's `_meta`. `dev.interlock/specification` names a revision by its number, its reference or
the digest of its schemas. `schema_version` of MCP-AX's capability annotation is a semantic version: the first revision
of an entry is 1.0, a breaking one adds to the major number and any other to the minor one. The patch number and what
follows it are the server's own, and a version below 1.0.0 claims nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from interlock.ax.protocol.capability import is_semver
from interlock.ax.protocol.hop_metadata import CAPABILITY
from interlock.mcp.items import Item, maybe_value
from interlock.names.protocol.model import Revision

SPECIFICATION: Final = "dev.interlock/specification"


class Claim(msgspec.Struct, frozen=True):
    specification: object = None
    version: tuple[int, int] | None = None  # major and minor of schema_version


NO_CLAIM: Final = Claim()


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """What the schemas of a tool are."""

    digests: tuple[str, ...]  # of the schemas together, and of that of the arguments
    kept: Sequence[Revision]  # the revisions that have these very schemas
    keeps_current: bool  # to the current revision, be it by other schemas


def read_claim(meta: Item | None) -> Claim:
    if not meta:
        return NO_CLAIM
    annotation = maybe_value(meta, CAPABILITY) if CAPABILITY in meta else None
    said = annotation.get("schema_version") if isinstance(annotation, Mapping) else None
    return Claim(maybe_value(meta, SPECIFICATION), _version(said))


def is_contradicted(claim: Claim, revisions: Sequence[Revision], offered: Offered) -> bool:
    """`revisions`: all of the entry, the current one last."""
    if claim.specification is not None and not _is_named(claim.specification, offered):
        return True
    if claim.version is None:
        return False
    if offered.kept:
        return claim.version not in [_version_of(revisions, each) for each in offered.kept]
    return not offered.keeps_current or claim.version[0] != _version_of(revisions, revisions[-1])[0]


def _is_named(claimed: object, offered: Offered) -> bool:
    if isinstance(claimed, Mapping):
        known = [claimed[key] for key in ("revision", "digest", "reference") if key in claimed]
        return bool(known) and all(_is_named(each, offered) for each in known)
    if isinstance(claimed, str) and claimed.startswith("sha256:"):
        return claimed in offered.digests
    return any(str(claimed) in (str(each.revision), each.specification_reference) for each in offered.kept)


def _version(said: object) -> tuple[int, int] | None:
    if not isinstance(said, str) or not is_semver(said):
        return None
    major, minor, _ = said.split(".", 2)
    return (int(major), int(minor)) if major != "0" else None


def _version_of(revisions: Sequence[Revision], wanted: Revision) -> tuple[int, int]:
    major, minor = 1, 0
    for each in revisions[1 : revisions.index(wanted) + 1]:
        major, minor = (major + 1, 0) if each.is_breaking else (major, minor + 1)
    return major, minor
