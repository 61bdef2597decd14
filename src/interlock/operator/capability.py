"""The console as a capability: its pages for operators, and the live events that they show."""

from interlock.core.capability import Capability

CAPABILITY = Capability(
    name="console",
    operations=("interlock.operator.open_pages:CONSOLE_PAGES", "interlock.operator.api:CONSOLE_OPERATIONS"),
)
