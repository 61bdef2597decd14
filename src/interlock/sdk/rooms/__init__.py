"""A participant of a room (MCPx): Python functions as tools for the others, and a few verbs to take part with.

    from interlock.rooms import Participant

    agent = Participant("ws://127.0.0.1:7411", "garden", token="ilr_...")

    @agent.tool(mutable=False)
    def moisture(bed: int) -> float:
        "How wet the soil of a bed is, from 0 to 1."
        return read_sensor(bed)

    agent.run()

The library loads nothing of the node: it uses the protocol and the transports alone.
"""

from interlock.sdk.rooms.conversation import Listener
from interlock.sdk.rooms.model import (
    Answer,
    CallFailed,
    EnvelopeRefused,
    Heard,
    NoAnswer,
    Peer,
    Proposal,
    ProposalEnded,
    RoomError,
    RoomInvalid,
    RoomRefused,
    RoomUnreachable,
)
from interlock.sdk.rooms.participant import Participant
from interlock.sdk.subserver.tools import Context, ToolFailed, ToolInvalid, ToolResult

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
