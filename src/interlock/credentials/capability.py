"""The capability that manages credentials for servers: OAuth tokens and secrets."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="credentials",
    operations=("interlock.credentials.api:OPERATIONS",),
    commands={"secrets": Command("interlock.credentials.cli:app", "secret")},
)
