"""What the node remembers, and its audit log."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="store",
    sections=("store",),
    operations=("interlock.store.api:OPERATIONS",),
    commands={"audit": Command("interlock.store.cli:app", "audits")},
)
