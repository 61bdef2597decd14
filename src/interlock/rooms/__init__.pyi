from interlock.sdk.rooms import (
    Answer as Answer,
)
from interlock.sdk.rooms import (
    CallFailed as CallFailed,
)
from interlock.sdk.rooms import (
    Context as Context,
)
from interlock.sdk.rooms import (
    EnvelopeRefused as EnvelopeRefused,
)
from interlock.sdk.rooms import (
    Heard as Heard,
)
from interlock.sdk.rooms import (
    Listener as Listener,
)
from interlock.sdk.rooms import (
    NoAnswer as NoAnswer,
)
from interlock.sdk.rooms import (
    Participant as Participant,
)
from interlock.sdk.rooms import (
    Peer as Peer,
)
from interlock.sdk.rooms import (
    Proposal as Proposal,
)
from interlock.sdk.rooms import (
    ProposalEnded as ProposalEnded,
)
from interlock.sdk.rooms import (
    RoomError as RoomError,
)
from interlock.sdk.rooms import (
    RoomInvalid as RoomInvalid,
)
from interlock.sdk.rooms import (
    RoomRefused as RoomRefused,
)
from interlock.sdk.rooms import (
    RoomUnreachable as RoomUnreachable,
)
from interlock.sdk.rooms import (
    ToolFailed as ToolFailed,
)
from interlock.sdk.rooms import (
    ToolInvalid as ToolInvalid,
)
from interlock.sdk.rooms import (
    ToolResult as ToolResult,
)
