"""The console: pages for operators, and what they watch live."""

from interlock.core.capability import Capability

CAPABILITY = Capability(
    name="console",
    operations=("interlock.operator.console:CONSOLE_PAGES", "interlock.operator.api:CONSOLE_OPERATIONS"),
)
