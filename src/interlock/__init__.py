"""Interlock: many MCP servers, one namespace, one guard."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `define_driver` when a driver.py asks for it, and not before: other programs do not pay for it."""
    if name in ("define_driver", "defineDriver"):
        return getattr(import_module("interlock.drivers.hooks"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
