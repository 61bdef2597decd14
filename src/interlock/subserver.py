"""The public import path of the subserver library, `interlock.sdk.subserver`."""

from interlock.sdk.subserver import (
    Context,
    Parent,
    RegistrationRefused,
    Subserver,
    SubserverInvalid,
    ToolFailed,
    ToolInvalid,
    ToolResult,
)

__all__ = [
    "Context",
    "Parent",
    "RegistrationRefused",
    "Subserver",
    "SubserverInvalid",
    "ToolFailed",
    "ToolInvalid",
    "ToolResult",
]
