"""The namespace of tools, prompts and resources."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="catalog",
    sections=("tool",),
    commands={
        "tools": Command("interlock.catalog.cli.tools:app", "tool"),
    },
)
