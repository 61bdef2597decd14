"""The capability that decides who may call: tokens, OAuth access tokens, logins."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="access",
    sections=("auth", "access"),
    operations=("interlock.access.api:OPERATIONS",),
    commands={"access": Command("interlock.access.cli:app", "accesses")},
)
