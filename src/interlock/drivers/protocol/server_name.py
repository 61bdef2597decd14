"""The name of a driver's server: the segment below which its tools stand.

People see a server under this name wherever they look, whether a driver declares it or the configuration. What also
names the driver and its version (`filesystem-mcp@1`) is for caches, records and the registration of drivers (AIP-30).
"""

from typing import Final

from interlock.ax.protocol.names import normalise

_DRIVER_SUFFIX: Final = "-mcp"


def exposed_segment(driver_id: str) -> str:
    """Return the server name of a driver id: filesystem for filesystem-mcp."""
    return normalise(driver_id.removesuffix(_DRIVER_SUFFIX) or driver_id)


def server_name(segment: str) -> str:
    """Return the server name of a link's segment: filesystem for filesystem-mcp@1.

    A segment without '@' belongs to no driver and is the name already. The suffix of a caller's own server stays:
    filesystem-mcp@1+5f2a gives filesystem+5f2a.
    """
    driver_id, at, rest = segment.partition("@")
    if not at:
        return segment
    _, plus, own = rest.partition("+")
    return f"{exposed_segment(driver_id)}{plus}{own}"


def settings_place(segment: str) -> str:
    """Return where a person writes the settings of this server."""
    return "its DRIVER.md" if "@" in segment else f"[servers.{segment}]"
