"""Links to configured servers."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="links",
    sections=("servers",),
    operations=("interlock.links.api:OPERATIONS",),
    commands={"links": Command("interlock.links.cli:app", "link")},
)
