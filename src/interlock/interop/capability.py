"""Import and export as a capability of the node: exchange of MCP servers with other clients."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="interop",
    commands={
        "export": Command("interlock.interop.cli.export:app"),
        "import": Command("interlock.interop.cli.import_:app"),
    },
)
