"""The inbox as a capability: approvals of every kind, and the people who may decide about them."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="approvals",
    sections=("anchor", "gate", "approvals"),
    operations=("interlock.approvals.api:OPERATIONS", "interlock.approvals.grants_api:OPERATIONS"),
    commands={
        "approvals": Command("interlock.approvals.cli.inbox:app", "approval"),
        "approve": Command("interlock.approvals.cli.inbox:approve_app"),
        "deny": Command("interlock.approvals.cli.inbox:deny_app"),
        "grants": Command("interlock.approvals.cli.grants:app", "grant"),
    },
)
