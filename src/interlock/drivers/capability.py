"""Drivers as a capability of the node: servers that are declared as files (AIP-32)."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="drivers",
    sections=("drivers",),
    operations=("interlock.drivers.api:OPERATIONS",),
    commands={
        "add": Command("interlock.drivers.cli.add:app"),
        "discover": Command("interlock.drivers.cli.discover:app"),
        "drivers": Command("interlock.drivers.cli.drivers:app", "driver"),
        "skills": Command("interlock.drivers.cli.drivers:skills_app", "skill"),
    },
    parts="interlock.drivers.parts:DriverParts",
)
