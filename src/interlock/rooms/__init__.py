"""MCPx rooms: agents, people and robots share one ordered stream of envelopes per topic (MCPx v0.1).

An envelope is checked, stored and then delivered, in this order. Nothing else publishes to a room.

The names in `__all__` are the participant library, `interlock.sdk.rooms`. This package is its public import path
(`from interlock.rooms import Participant`); the library is loaded when one of the names is first used.
"""

from importlib import import_module
from typing import Any

__all__ = [
    "Answer",
    "CallFailed",
    "Context",
    "EnvelopeRefused",
    "Heard",
    "Listener",
    "NoAnswer",
    "Participant",
    "Peer",
    "Proposal",
    "ProposalEnded",
    "RoomError",
    "RoomInvalid",
    "RoomRefused",
    "RoomUnreachable",
    "ToolFailed",
    "ToolInvalid",
    "ToolResult",
]


def __getattr__(name: str) -> Any:
    """Return a name of the library, and import the library only now: a node does not need it."""
    if name in __all__:
        return getattr(import_module("interlock.sdk.rooms"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
