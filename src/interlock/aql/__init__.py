"""MCP-AQL at the node: native operations, the automatic adapter over the namespace, and calls through both.

The classes and functions to import from here are the adapter library, `interlock.sdk.aql`. This package is its public
import path (`from interlock.aql import Adapter`); the library is loaded when one of the names is first used.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import the adapter library on first access to one of its names, so that running a node does not load it.

    Return the object with this name. Raise AttributeError if the library does not export it.
    """
    if name[:1].isupper() or name in ("__all__", "already_exists", "fail", "not_found"):
        return getattr(import_module("interlock.sdk.aql"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
