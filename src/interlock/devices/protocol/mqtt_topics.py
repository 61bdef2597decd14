"""The MQTT topics of one device link (AX-8.1-6)."""

from typing import Final, NamedTuple

ONLINE: Final = b"online"
OFFLINE: Final = b"offline"  # also the device's last will

LINK_MAX: Final = 128
_FORBIDDEN: Final = frozenset("+#/\0")


class Topics(NamedTuple):
    down: str  # gateway to device
    up: str
    status: str  # retained: online or offline


def topics_of(link: str) -> Topics:
    """Raises ValueError for a name that would reach beyond one level."""
    if not 0 < len(link) <= LINK_MAX or _FORBIDDEN & set(link) or not link.isprintable():
        raise ValueError(f"{link[:LINK_MAX]!r} cannot be one level of an MQTT topic")
    return Topics(f"mcpax/{link}/down", f"mcpax/{link}/up", f"mcpax/{link}/status")


def is_online(payload: bytes) -> bool | None:
    """What a device's status says; None: nothing that is known."""
    return {ONLINE: True, OFFLINE: False}.get(payload.strip().lower()) if len(payload) <= len(OFFLINE) + 2 else None
