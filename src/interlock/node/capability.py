"""The node itself: start, configuration, health."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="node",
    sections=("node", "mcp", "limits"),
    operations=("interlock.operator.api:OPERATIONS",),
    commands={
        "init": Command("interlock.node.cli.init:app"),
        "serve": Command("interlock.node.cli.serve:app"),
        "check": Command("interlock.node.cli.check:app"),
        "status": Command("interlock.node.cli.status:app"),
        "open": Command("interlock.node.cli.status:open_app"),
        "doctor": Command("interlock.node.cli.doctor:app"),
        "explain": Command("interlock.cli.explain:app"),
        "version": Command("interlock.cli.version:app"),
    },
)
