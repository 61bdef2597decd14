"""MCP-AQL at the node: native operations, the automatic adapter over the namespace, and calls through both.

The names in `__all__` are the adapter library, `interlock.sdk.aql`. This package is its public import path
(`from interlock.aql import Adapter`); the library is loaded when one of the names is first used.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "Adapter",
    "BigInt",
    "Binary",
    "Category",
    "Code",
    "Concurrency",
    "Context",
    "Danger",
    "DeclarationInvalid",
    "Example",
    "Execution",
    "Limits",
    "Listing",
    "OperationFailed",
    "Page",
    "Sort",
    "already_exists",
    "fail",
    "not_found",
]


def __getattr__(name: str) -> Any:
    """Import the adapter library on first access to one of its names, so that running a node does not load it.

    Return the object with this name. Raise AttributeError if the library does not export it.
    """
    if name in __all__:
        return getattr(import_module("interlock.sdk.aql"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
