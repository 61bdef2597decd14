"""The registry of tool surface names."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="names",
    sections=("registry",),
    operations=("interlock.names.api:OPERATIONS",),
    commands={"names": Command("interlock.names.cli:app", "name")},
    parts="interlock.names.parts:RegistryParts",
)
