"""May a driver bind a secret? Judged by the inventory alone, before any value is fetched (AIP-19.access-1)."""

from collections.abc import Collection
from typing import Final

from interlock.drivers.protocol.model import Driver, Secret

OWN_INVENTORY: Final = "auth.ref"
USER: Final = "userId"
_KNOWN: Final = frozenset((USER, "role", "cap", "tool", "workflow"))


def maybe_granted_by(
    secret: Secret, driver: Driver, contracts: Collection[str], *, is_own: bool, user: str | None = None
) -> str | None:
    """Which entry lets the driver have it; None: none does.

    `contracts`: ids of what it implements; `is_own`: the entry stands in the SECRETS.md that its auth.ref names;
    `user`: whose own process it is for. Roles, capabilities and workflows are a caller's, and a process has no caller.
    """
    if secret.access is None:  # AIP-19.access-1
        return OWN_INVENTORY if is_own else None
    tools = {driver.id, driver.key, *contracts}
    for grant in secret.access.bind:
        # AIP-19.access-1
        if (grant.kind == "tool" and grant.value in tools) or (grant.kind == USER and grant.value == user):
            return f"{grant.kind}:{grant.value}"
    return None


def is_for_users_alone(secret: Secret) -> bool:
    """Every entry that could grant it names a user: on a shared process it would be everybody's (AIP-security-8)."""
    kinds = {grant.kind for grant in secret.access.bind} & _KNOWN if secret.access is not None else set()
    return kinds == {USER}  # AIP-security-8
