"""Import from and export to other MCP clients."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="interop",
    commands={
        "export": Command("interlock.interop.cli.export:app"),
        "import": Command("interlock.interop.cli.import_:app"),
    },
)
