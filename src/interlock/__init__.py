"""Interlock: many MCP servers, one namespace, one guard."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What a driver.py imports: `from interlock import define_driver`. Nobody else pays for it."""
    if name in ("define_driver", "defineDriver"):
        return getattr(import_module("interlock.hooks"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
