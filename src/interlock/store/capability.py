"""What the node remembers, and its audit log."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="store",
    sections=("store",),
    commands={
        "audit": Command("interlock.store.cli:app", "audits"),
    },
)
