"""The namespace of tools, prompts and resources."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="catalog",
    sections=("tool",),
    operations=("interlock.catalog.api:OPERATIONS",),
    commands={"tools": Command("interlock.catalog.cli.tools:app", "tool")},
)
