"""The name of a driver's server: the segment that precedes the names of its tools.

People see a server under this name everywhere, whether a driver or the configuration declares it. The longer key with
driver and version (`filesystem-mcp@1`) is only used in caches, records and the driver registry (AIP-30).
"""

from interlock.ax.protocol.names import normalise


def exposed_segment(driver_id: str) -> str:
    """Return the name under which people see the server of a driver: filesystem for the driver filesystem-mcp."""
    return normalise(driver_id.removesuffix("-mcp") or driver_id)


def server_name(segment: str) -> str:
    """Return the name under which people see a server: filesystem for the segment filesystem-mcp@1 of a driver.

    A segment without '@' does not belong to a driver and is returned unchanged. The suffix of a server that runs for
    one caller is kept: filesystem-mcp@1+5f2a gives filesystem+5f2a.
    """
    driver_id, at, rest = segment.partition("@")
    if not at:
        return segment
    _, plus, own = rest.partition("+")
    return f"{exposed_segment(driver_id)}{plus}{own}"


def settings_place(segment: str) -> str:
    """Return where a person finds the settings of a server: in its DRIVER.md, or in a section of the configuration."""
    return "its DRIVER.md" if "@" in segment else f"[servers.{segment}]"
