"""Microcontrollers and PLCs (MCP-AX 8)."""

from interlock.core.capability import Capability, Command

CAPABILITY = Capability(
    name="devices",
    sections=("devices",),
    commands={"device": Command("interlock.devices.cli:app", "devices")},
    parts="interlock.devices.parts:DeviceParts",
)
