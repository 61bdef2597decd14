"""Participants: their ids, and the privilege that the gateway assigns when they connect (MCPx 3.1, 5.1).

The id of a client in a room is its principal, as far as an id can contain it (X-N-3). Ids of the gateway are reserved:
no participant can join as `interlock` or `system:...`.
"""

import hashlib
import re
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

GATEWAY: Final = "system:gateway"
OWN: Final = "interlock"  # the participant that offers tools of this node

Mode = Literal["mixed", "restricted", "observe", "open"]
# What settled a privilege, for the record.
Origin = Literal["grant", "token", "identity", "mode"]

ParticipantKind = Literal["human", "agent", "robot"]
PARTICIPANT_KINDS: Final[tuple[ParticipantKind, ...]] = ("human", "agent", "robot")

_CERTIFICATE: Final = "certificate:"  # the beginning of a principal that came by one
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")  # X-N-2
_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~-]{0,127}")


class Privilege(Enum):
    """The privilege of a participant (MCPx 3.1). With FULL it may send MCP messages; with RESTRICTED it may only
    propose them.
    """

    FULL = "full"
    RESTRICTED = "restricted"


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A participant as the other participants see it."""

    id: str
    privilege: Privilege
    name: str | None = None
    kind: ParticipantKind | None = None
    mcp_version: str | None = None

    def described(self) -> dict[str, Any]:
        mcp = None if self.mcp_version is None else {"version": self.mcp_version}
        more = {"name": self.name, "kind": self.kind, "mcp": mcp}
        members = {name: value for name, value in more.items() if value is not None}
        return {"id": self.id, "privilege": self.privilege.value, **members}


class AssignedPrivilege(msgspec.Struct, frozen=True):
    """The privilege of a participant, and the rule that determined it."""

    privilege: Privilege
    origin: Origin
    is_observed: bool = False  # it would be restricted in a mixed room, and what that would refuse is recorded (X-8-1)


def is_topic(text: str) -> bool:
    return _TOPIC.fullmatch(text) is not None


def is_participant_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_reserved(participant: str) -> bool:
    """Return whether an id is reserved for the gateway (X-3.2-5, X-N-2)."""
    return participant == OWN or participant.startswith("system:")  # X-N-2


def matches_any(principal: str, patterns: tuple[str, ...]) -> bool:
    """Return whether any of the patterns matches a principal.

    A certificate is only covered by a pattern for certificates, because a CA may issue certificates to others than
    participants.
    """
    if principal.startswith(_CERTIFICATE):
        patterns = tuple(pattern for pattern in patterns if pattern.startswith(_CERTIFICATE))
    return any(fnmatchcase(principal, pattern) for pattern in patterns)


def assign_privilege(
    mode: Mode, *, granted: Privilege | None, of_token: Privilege | None, is_known_full: bool
) -> AssignedPrivilege:
    """Determine the privilege of a participant. The first of these decides: an admin's grant, a mode `restricted` or
    `observe`, the token, the identity, any other mode (X-5.1-4).
    """
    if granted is not None:
        return AssignedPrivilege(granted, "grant")  # X-5.1-4
    if mode == "restricted":  # X-N-3: full only by an admin's grant
        return AssignedPrivilege(Privilege.RESTRICTED, "mode")
    if mode == "observe":  # X-8-1: all are full, and those who would not be in a mixed room are watched
        is_observed = not is_known_full if of_token is None else of_token != Privilege.FULL
        return AssignedPrivilege(Privilege.FULL, "mode", is_observed)
    if of_token is not None:
        return AssignedPrivilege(of_token, "token")  # X-5.1-4
    if is_known_full:
        return AssignedPrivilege(Privilege.FULL, "identity")  # X-5.1-4
    return AssignedPrivilege(Privilege.FULL if mode == "open" else Privilege.RESTRICTED, "mode")  # X-5.1-3, X-5.1-4


def participant_of(principal: str) -> str:
    """Return the participant id of a client: its principal (X-N-3). A principal that is reserved or not a valid id is
    changed and extended by a hash.
    """
    if is_participant_id(principal) and not is_reserved(principal):
        return principal
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._:-") else "-" for char in principal)
    return f"{plain[:55]}-{hashlib.sha256(principal.encode()).hexdigest()[:8]}"
