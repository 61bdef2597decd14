"""MCPx rooms: agents, people and robots share one ordered stream of envelopes per topic (MCPx v0.1).

How an envelope travels. A participant sends it over a WebSocket (`connections`), over HTTP (`endpoint`), or through a
tool of the node (`room_tools`). `room.Room.receive` checks it in a fixed order: protocol, kind, sender, privilege,
rate, payload, id. An envelope that passes is queued in the `timeline`, which stores it and then delivers it to every
connection in the order of the store. Besides, only the gateway itself publishes events to a room.

What else is here. `rooms` has the registry of all rooms and the decisions of admins. `proposals` and `proposal_records`
follow proposals from their publication to their end. `room_links` makes participants servers of the
namespace; `node_participant` is the reverse, the node as a participant. `connections` also shares between replicas who
is connected. `protocol` has the rules, without I/O.

The classes to import from here are the participant library, `interlock.sdk.rooms`. This package is its public
import path (`from interlock.rooms import Participant`); the library is loaded when one of the names is first used.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import a class of the participant library when it is first used, so that running a node does not load the
    library.
    """
    if name == "__all__" or name[:1].isupper():
        return getattr(import_module("interlock.sdk.rooms"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
